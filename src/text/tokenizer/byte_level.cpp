#include "text/tokenizer/byte_level.h"

#include "text/tokenizer/utf8.h"

namespace pivot {

ByteLevelAlphabet::ByteLevelAlphabet() {
  byte_of_.fill(kNone);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    const char32_t spelling = printable ? static_cast<char32_t>(byte) : next++;
    spelling_[static_cast<std::size_t>(byte)] = spelling;
    byte_of_[spelling] = static_cast<std::int16_t>(byte);
  }
}

const ByteLevelAlphabet& ByteLevelAlphabet::instance() {
  static const ByteLevelAlphabet alphabet;
  return alphabet;
}

void ByteLevelAlphabet::append_bytes(std::string_view entry, std::string& out) const {
  const std::size_t start = out.size();
  for (std::size_t at = 0; at < entry.size();) {
    const auto [code_point, length_bytes] = utf8::decode_at(entry, at);
    const std::int16_t byte = code_point < kLimit ? byte_of_[code_point] : kNone;
    if (byte == kNone) {
      out.resize(start);
      out += entry;
      return;
    }
    out.push_back(static_cast<char>(byte));
    at += length_bytes;
  }
}

}  // namespace pivot
