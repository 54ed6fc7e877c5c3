// UTF-8: decoding of valid text, and the replacement of invalid bytes that Python's errors="replace" makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pivot::utf8 {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Decoded {
  char32_t code_point;
  std::uint32_t length_bytes;  // 1 to 4
};

// Decodes the character at `at`. REQUIRES: `text` is valid UTF-8 and `at` is the start of a character in it.
inline Decoded decode_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const auto tail = [&](std::size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | tail(1), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

bool is_valid(std::string_view text);
void append(std::string& out, char32_t code_point);

// Turns a stream of bytes into whole, valid characters. A character that is split over pushes is held until
// it is complete; each maximal invalid subpart (Unicode 15, section 3.9, table 3-8) becomes one U+FFFD.
class Repair {
 public:
  void push(std::string_view bytes, std::string& out);
  // End of the stream: an unfinished character becomes one U+FFFD. The object is then as new.
  void finish(std::string& out);
  std::size_t held_bytes() const { return held_count_; }

 private:
  char held_[4] = {};             // the bytes of an unfinished character
  std::uint8_t held_count_ = 0;   // how many are there
  std::uint8_t held_length_ = 0;  // how many the lead byte announces
};

// A whole text at once: valid text comes back unchanged.
std::string repaired(std::string_view bytes);

}  // namespace pivot::utf8
