// The byte-level alphabet in which tokenizer.json spells its vocabulary: each byte is one printable
// character, so that " the" is written "Ġthe". Bytes that are printable in Latin-1 stand for themselves; the
// other 68, in ascending order, are U+0100, U+0101, ...
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace pivot {

class ByteLevelAlphabet {
 public:
  static const ByteLevelAlphabet& instance();

  // The character of each byte.
  char32_t spelling_of(unsigned char byte) const { return spelling_[byte]; }
  // Appends the bytes that a vocabulary entry stands for. An entry with any character outside the alphabet
  // stands for its own UTF-8 bytes, as the reference decoder has it ("<｜end▁of▁sentence｜>"). REQUIRES:
  // entry is valid UTF-8.
  void append_bytes(std::string_view entry, std::string& out) const;

 private:
  static constexpr char32_t kLimit = 0x100 + 68;
  static constexpr std::int16_t kNone = -1;
  ByteLevelAlphabet();

  std::array<char32_t, 256> spelling_{};
  std::array<std::int16_t, kLimit> byte_of_{};  // kNone where the character is not in the alphabet
};

}  // namespace pivot
