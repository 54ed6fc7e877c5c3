#include "checkpoint/problems.h"

#include "base/check.h"

namespace pivot {

void Problems::add_sentence(ErrorCode code, std::string sentence) {
  if (count_ == 0) code_ = code;
  ++count_;
  if (sentences_.size() < kMaxListed) sentences_.push_back(std::move(sentence));
}

Error Problems::to_error(std::string_view subject) const {
  PIVOT_CHECK(!empty());
  Error error;
  error.code = code_;
  if (count_ == 1) {
    error.message = fmt::format("{}: {}", subject, sentences_.front());
    return error;
  }
  error.message = fmt::format("{} has {} problems:", subject, count_);
  for (const std::string& sentence : sentences_) error.message += "\n  - " + sentence;
  if (count_ > sentences_.size())
    error.message += fmt::format("\n  - and {} more", count_ - sentences_.size());
  return error;
}

std::string quote_name(std::string_view name) {
  constexpr std::size_t kMaxShown = 120;
  std::string text = "\"";
  for (char c : name.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  // A cut inside a multi-byte character would make the message invalid UTF-8: drop the incomplete tail.
  if (name.size() > kMaxShown) {
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0u) == 0x80u) text.pop_back();
    if (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0u) == 0xc0u) text.pop_back();
    text += "...";
  }
  return text + '"';
}

}  // namespace pivot
