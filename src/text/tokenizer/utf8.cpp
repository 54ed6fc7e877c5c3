#include "text/tokenizer/utf8.h"

#include <simdjson.h>

namespace pivot::utf8 {
namespace {

// What a lead byte announces: the length of its character and the range its second byte must lie in. Length
// 0: not a lead byte. The narrowed ranges exclude overlong forms (E0, F0), surrogates (ED) and values above
// U+10FFFF (F4).
struct Lead {
  std::uint8_t length;
  std::uint8_t second_min;
  std::uint8_t second_max;
};

constexpr Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

bool is_valid(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

void append(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

void Repair::push(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (held_count_ > 0) {
      const Lead lead = lead_of(static_cast<unsigned char>(held_[0]));
      const bool continues =
          held_count_ == 1 ? byte >= lead.second_min && byte <= lead.second_max : (byte & 0xC0) == 0x80;
      if (continues) {
        held_[held_count_++] = c;
        if (held_count_ == held_length_) {
          out.append(held_, held_count_);
          held_count_ = 0;
        }
        continue;
      }
      out += kReplacement;  // what is held is a maximal invalid subpart; this byte starts afresh
      held_count_ = 0;
    }
    const Lead lead = lead_of(byte);
    if (lead.length == 1) {
      out.push_back(c);
    } else if (lead.length == 0) {
      out += kReplacement;
    } else {
      held_[0] = c;
      held_count_ = 1;
      held_length_ = lead.length;
    }
  }
}

void Repair::finish(std::string& out) {
  if (held_count_ > 0) out += kReplacement;
  held_count_ = 0;
}

std::string repaired(std::string_view bytes) {
  if (is_valid(bytes)) return std::string(bytes);
  std::string out;
  out.reserve(bytes.size() + 16);
  Repair repair;
  repair.push(bytes, out);
  repair.finish(out);
  return out;
}

}  // namespace pivot::utf8
