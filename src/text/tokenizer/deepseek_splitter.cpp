#include "text/tokenizer/deepseek_splitter.h"

namespace pivot {
namespace {

constexpr bool is_letter_or_mark(CharClass kind) {
  return kind == CharClass::kLetter || kind == CharClass::kMark;
}
constexpr bool is_symbol(CharClass kind) {
  return kind == CharClass::kPunctuation || kind == CharClass::kSymbol;
}
constexpr bool is_newline(char c) { return c == '\r' || c == '\n'; }
constexpr bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

}  // namespace

DeepseekSplitter::DeepseekSplitter() : classes_(UnicodeClasses::instance()) {
  for (char32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = classes_.of(c);
}

std::size_t DeepseekSplitter::skip_letters(const Cursor& segment, std::size_t at) const {
  for (Peek next = peek_in(segment, at); is_letter_or_mark(next.kind); next = peek_in(segment, at)) {
    at += next.length_bytes;
  }
  return at;
}

std::size_t DeepseekSplitter::skip_symbols_then_newlines(const Cursor& segment, std::size_t at) const {
  for (Peek next = peek_in(segment, at); is_symbol(next.kind); next = peek_in(segment, at))
    at += next.length_bytes;
  if (segment.in_range) return at;
  while (at < segment.text.size() && is_newline(segment.text[at])) ++at;
  return at;
}

std::size_t DeepseekSplitter::match(const Cursor& segment, std::size_t at, Peek first) const {
  const std::size_t next_at = at + first.length_bytes;
  // [!-/:-@\[-`{-~][A-Za-z]+
  if (is_symbol(first.kind)) {
    std::size_t end = next_at;
    if (first.length_bytes == 1) {
      while (end < segment.text.size() && is_ascii_letter(segment.text[end])) ++end;
    }
    if (end > next_at) return end;
    return skip_symbols_then_newlines(segment, next_at);  // ?[\p{P}\p{S}]+[\r\n]*
  }
  // [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
  if (is_letter_or_mark(first.kind)) return skip_letters(segment, next_at);
  const char lead = segment.text[at];
  if (!is_newline(lead)) {
    const Peek second = peek_in(segment, next_at);
    if (is_letter_or_mark(second.kind)) return skip_letters(segment, next_at + second.length_bytes);
    if (lead == ' ' && is_symbol(second.kind)) {  // ' ?[\p{P}\p{S}]+[\r\n]*' with its space
      return skip_symbols_then_newlines(segment, next_at + second.length_bytes);
    }
  }
  return first.kind == CharClass::kSpace ? match_space(segment, at) : at;
}

// \s*[\r\n]+ ends after the last newline of the white space; \s+(?!\S) is all of it where the segment ends
// there, else all but its last character; \s+ is what remains: a single white-space character before
// something else.
std::size_t DeepseekSplitter::match_space(const Cursor& segment, std::size_t at) const {
  std::size_t end = at;
  std::size_t last = at;  // start of the last white-space character
  std::size_t after_newline = at;
  Peek next = peek_in(segment, end);
  while (next.kind == CharClass::kSpace) {
    last = end;
    end += next.length_bytes;
    if (is_newline(segment.text[last])) after_newline = end;
    next = peek_in(segment, end);
  }
  if (after_newline > at) return after_newline;
  const bool segment_ends = next.length_bytes == 0;
  return segment_ends || last == at ? end : last;
}

}  // namespace pivot
