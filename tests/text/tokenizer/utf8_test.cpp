#include "text/tokenizer/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace pivot {
namespace {

using namespace std::string_literals;

// Whether some well-formed character starts with these bytes (Unicode table 3-7, written out as value
// ranges).
bool starts_a_character(std::string_view bytes) {
  struct Row {
    unsigned char low[4], high[4];
    std::size_t length;
  };
  static constexpr Row kRows[] = {{{0x00}, {0x7F}, 1},
                                  {{0xC2, 0x80}, {0xDF, 0xBF}, 2},
                                  {{0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}, 3},
                                  {{0xE1, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}, 3},
                                  {{0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}, 3},
                                  {{0xEE, 0x80, 0x80}, {0xEF, 0xBF, 0xBF}, 3},
                                  {{0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}, 4},
                                  {{0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}, 4},
                                  {{0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}, 4}};
  for (const Row& row : kRows) {
    bool fits = bytes.size() <= row.length;
    for (std::size_t i = 0; fits && i < bytes.size(); ++i) {
      const auto byte = static_cast<unsigned char>(bytes[i]);
      fits = byte >= row.low[i] && byte <= row.high[i];
    }
    if (fits) return true;
  }
  return false;
}

std::size_t length_of_lead(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The definition itself: at each place the longest prefix of a well-formed character, or else one byte.
std::string plainly_repaired(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t length = 0;
    while (length < 4 && at + length < bytes.size() && starts_a_character(bytes.substr(at, length + 1)))
      ++length;
    if (length > 0 && length == length_of_lead(bytes[at])) {
      out += bytes.substr(at, length);
    } else {
      out += "\uFFFD";
    }
    at += length > 0 ? length : 1;
  }
  return out;
}

TEST(Utf8, InvalidBytesBecomeOneReplacementPerMaximalSubpart) {
  // What Python's bytes.decode("utf-8", "replace") gives.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xC3", "\uFFFD"},
      {"a\xFF"
       "b",
       "a\uFFFDb"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98x", "\uFFFDx"},
      {"\xE4\xBD\xE4\xBD\xA0", "\uFFFD你"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate: ED does not take A0
      {"\xC0\xAF", "\uFFFD\uFFFD"},                      // overlong
      {"\xE0\x80\xAF", "\uFFFD\uFFFD\uFFFD"},            // overlong
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // above U+10FFFF
      {"\xF1\x80\x80\xE1\x80\xC2\x62\x80", "\uFFFD\uFFFD\uFFFD\x62\uFFFD"},
      {"\x80\x80", "\uFFFD\uFFFD"},
      {"a\0b"s, "a\0b"s},
      {"\U0010FFFF\uFFFE", "\U0010FFFF\uFFFE"},
  };
  for (const auto& [bytes, want] : cases) {
    EXPECT_EQ(utf8::repaired(bytes), want);
    EXPECT_EQ(plainly_repaired(bytes), want);
  }
}

TEST(Utf8, AppendAndDecodeAreInverse) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    utf8::append(text, c);
    EXPECT_TRUE(utf8::is_valid(text));
    const auto [decoded, length_bytes] = utf8::decode_at(text, 0);
    EXPECT_EQ(decoded, c);
    EXPECT_EQ(length_bytes, text.size());
  }
}

// Bytes that often make characters, and often nearly.
rc::Gen<std::string> tricky_bytes() {
  return rc::gen::container<std::string>(
      rc::gen::element<char>('a', '\0', '\x7F', '\x80', '\x8F', '\x90', '\x9F', '\xA0', '\xBF', '\xC0',
                             '\xC1', '\xC2', '\xC3', '\xDF', '\xE0', '\xE4', '\xEC', '\xED', '\xEE', '\xEF',
                             '\xF0', '\xF1', '\xF3', '\xF4', '\xF5', '\xFF', '\xBD', '\x98'));
}

RC_GTEST_PROP(Utf8, RepairFollowsTheDefinition, ()) {
  const std::string bytes = *tricky_bytes();
  const std::string whole = utf8::repaired(bytes);
  RC_ASSERT(whole == plainly_repaired(bytes));
  RC_ASSERT(utf8::is_valid(whole));
  RC_ASSERT(utf8::is_valid(bytes) == (whole == bytes));
}

RC_GTEST_PROP(Utf8, AnyChunkingGivesTheSameAndOnlyWholeCharacters, ()) {
  const std::string bytes = *tricky_bytes();
  utf8::Repair repair;
  std::string joined;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = *rc::gen::inRange<std::size_t>(1, 6);
    std::string piece;
    repair.push("", piece);
    repair.push(std::string_view(bytes).substr(at, length), piece);
    RC_ASSERT(utf8::is_valid(piece));
    RC_ASSERT(repair.held_bytes() <= 3u);
    joined += piece;
    at += length;
  }
  repair.finish(joined);
  RC_ASSERT(joined == utf8::repaired(bytes));
  RC_ASSERT(repair.held_bytes() == 0u);
}

}  // namespace
}  // namespace pivot
