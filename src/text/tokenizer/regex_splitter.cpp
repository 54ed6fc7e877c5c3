#include "text/tokenizer/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/log.h"
#include "text/tokenizer/utf8.h"

namespace pivot {
namespace {

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContextPtr = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;

// Longer patterns are no pre-tokenizer's, and PCRE2's compile time grows with them.
constexpr std::size_t kMaxPatternBytes = 16 << 10;

// What Oniguruma reads differently from PCRE2, or empty. The rest of the two dialects agrees on what
// pre-tokenizers use.
std::string_view foreign_construct(std::string_view pattern) {
  int depth = 0;  // inside [...]
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\') {
      if (next == 'h' || next == 'H') return "\\h (a hexadecimal digit there, a blank in PCRE2)";
      if (next == 'y' || next == 'Y') return "\\y (a text segment boundary)";
      if (next == 'C') return "\\C (a single byte in PCRE2)";
      ++i;
    } else if (depth > 0) {
      if (c == '[' && next != ':') return "a character class inside a class";
      if (c == '&' && next == '&') return "an intersection of character classes (&&)";
      if (c == '[') {  // [:name:]
        const std::size_t close = pattern.find(":]", i + 2);
        if (close == std::string_view::npos) return "an unfinished [: class";
        i = close + 1;
      } else if (c == ']') {
        depth = 0;
      }
    } else if (c == '[') {
      depth = 1;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') ++i;
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') ++i;  // a ] that comes first is literal
    } else if (c == '(' && next == '*') {
      return "a (*VERB)";
    } else if (c == '(' && next == '?' && pattern.substr(i, 4).find('{') != std::string_view::npos) {
      return "a callout";
    }
  }
  return {};
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct RegexSplitter::Code {
  std::string pattern;
  CodePtr compiled;
};

RegexSplitter::RegexSplitter(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

Result<RegexSplitter> RegexSplitter::create(std::string_view pattern, bool literal) {
  if (pattern.size() > kMaxPatternBytes) {
    return fail(ErrorCode::kUnsupported, "the split pattern has {} bytes and at most {} are handled",
                pattern.size(), kMaxPatternBytes);
  }
  if (!literal) {
    if (const std::string_view foreign = foreign_construct(pattern); !foreign.empty()) {
      return fail(ErrorCode::kUnsupported, "the split pattern \"{}\" uses {}, which is not implemented",
                  pattern, foreign);
    }
  }
  const CompileContextPtr context(pcre2_compile_context_create(nullptr));
  if (!context) return fail(ErrorCode::kOutOfMemory, "no memory to compile a split pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 50);
  // MULTILINE: in Ruby syntax ^ and $ are always line anchors. A literal pattern takes UTF only.
  const std::uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE error_at = 0;
  CodePtr compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options,
                                 &error, &error_at, context.get()));
  if (!compiled) {
    return fail(ErrorCode::kUnsupported, "the split pattern \"{}\" cannot be compiled: {} at byte {}",
                pattern, message_of(error), error_at);
  }
  // Where the machine forbids run-time code the interpreter does the work: slower, same result.
  pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  return RegexSplitter(std::make_unique<Code>(Code{std::string(pattern), std::move(compiled)}));
}

void RegexSplitter::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const MatchDataPtr match(pcre2_match_data_create_from_pattern(code_->compiled.get(), nullptr));
  const MatchContextPtr context(pcre2_match_context_create(nullptr));
  std::size_t piece = 0;  // start of what is not yet in a piece
  const auto cut_at = [&](std::size_t at) {
    if (at > piece) pieces.push_back(text.substr(piece, at - piece));
    piece = std::max(piece, at);
  };
  int rc = match && context ? PCRE2_ERROR_NOMATCH : PCRE2_ERROR_NOMEMORY;
  if (rc == PCRE2_ERROR_NOMATCH) {
    // Backtracking that is linear in the text passes; a pattern that is exponential on it stops. The heap is
    // what the interpreter uses, one frame of some hundred bytes for each repetition of a group.
    const std::size_t steps = std::min<std::size_t>(100'000 + 64 * text.size(), 1'000'000'000);
    const std::size_t heap_kib = std::min<std::size_t>((64 << 10) + text.size() / 4, 8 << 20);
    pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(steps));
    pcre2_set_heap_limit(context.get(), static_cast<std::uint32_t>(heap_kib));
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    for (std::size_t at = 0; at < text.size();) {
      rc = pcre2_match(code_->compiled.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(),
                       context.get());
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
        rc = pcre2_match(code_->compiled.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         match.get(), context.get());
      }
      if (rc < 0) break;
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
      // \K inside a lookaround can place the start behind the end or before this search; take what moves
      // forward.
      const std::size_t end = std::max<std::size_t>(span[1], at);
      const std::size_t begin = std::clamp<std::size_t>(span[0], at, end);
      cut_at(begin);
      cut_at(end);
      // An empty match only cuts; the search goes on one character further.
      at = end > begin || end >= text.size() ? end : end + utf8::decode_at(text, end).length_bytes;
    }
  }
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
    spdlog::warn("split pattern \"{}\": {}; the rest of the text ({} bytes) is taken as one piece",
                 code_->pattern, message_of(rc), text.size() - piece);
  }
  cut_at(text.size());
}

}  // namespace pivot
