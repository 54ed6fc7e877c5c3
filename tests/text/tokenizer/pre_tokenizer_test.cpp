#include "text/tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer/utf8.h"

namespace pivot {
namespace {

using Pieces = std::vector<std::string>;

std::vector<SplitPattern> deepseek_splits() {
  std::vector<SplitPattern> splits;
  for (const std::string_view pattern : kDeepseekPatterns) splits.push_back({std::string(pattern), false});
  return splits;
}

Pieces pieces_of(const PreTokenizer& pre, std::string_view text) {
  PreTokenizer::Workspace workspace;
  Pieces pieces;
  pre.split(text, workspace, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Pieces regex_pieces(std::string_view pattern, std::string_view text, bool literal = false) {
  const Result<RegexSplitter> splitter = RegexSplitter::create(pattern, literal);
  if (!splitter) return {"ERROR: " + splitter.error().to_string()};
  std::vector<std::string_view> views;
  splitter->split(text, views);
  return {views.begin(), views.end()};
}

TEST(RegexSplitter, IsolatesMatchesAndKeepsWhatIsBetween) {
  EXPECT_EQ(regex_pieces("[0-9]{1,3}", "ab12345c"), (Pieces{"ab", "123", "45", "c"}));
  EXPECT_EQ(regex_pieces("x", ""), Pieces{});
  EXPECT_EQ(regex_pieces("x", "abc"), Pieces{"abc"});
  EXPECT_EQ(regex_pieces(".", "a+b", false), (Pieces{"a", "+", "b"}));
  EXPECT_EQ(regex_pieces("+", "a+b", true), (Pieces{"a", "+", "b"}));
  EXPECT_EQ(regex_pieces("\\p{L}+", "é你1"), (Pieces{"é你", "1"}));
}

TEST(RegexSplitter, EmptyMatchesCutWithoutLoopingOrSplittingACharacter) {
  EXPECT_EQ(regex_pieces("(?=b)", "abab"), (Pieces{"a", "ba", "b"}));
  EXPECT_EQ(regex_pieces("x*", "你xb"), (Pieces{"你", "x", "b"}));
  EXPECT_EQ(regex_pieces("$", "a\nb"),
            (Pieces{"a", "\nb"}));  // $ is the end of any line, as in the reference
}

TEST(RegexSplitter, RefusesWhatTheReferenceReadsDifferently) {
  for (const std::string pattern :
       {"\\h+", "[a-z&&[^b]]", "[a[bc]]", "\\y", "(*UTF)x", "(?C1)(?{1})", "(", "[a", "\\C"}) {
    const Result<RegexSplitter> splitter = RegexSplitter::create(pattern, false);
    ASSERT_FALSE(splitter) << pattern;
    EXPECT_EQ(splitter.error().code, ErrorCode::kUnsupported) << pattern;
    EXPECT_NE(splitter.error().message.find("split pattern"), std::string::npos);
  }
  for (const std::string pattern : {"[[:alpha:]]+", "[\\[a]", "[]a]", "[^]a]", "a&&b", "\\\\h"}) {
    EXPECT_TRUE(RegexSplitter::create(pattern, false)) << pattern;
  }
  EXPECT_FALSE(RegexSplitter::create(std::string(100'000, 'a'), false));
}

TEST(RegexSplitter, APatternThatBacktracksForEverStops) {
  EXPECT_EQ(regex_pieces("(a+)+$|\\d", "1" + std::string(60, 'a') + "b"),
            (Pieces{"1", std::string(60, 'a') + "b"}));
}

// A long match needs more stack than the compiled code has.
TEST(RegexSplitter, LongMatchesAreWhole) {
  const std::string text = std::string(300'000, 'a') + "c";
  EXPECT_EQ(regex_pieces("(?:a|b)+", text), (Pieces{std::string(300'000, 'a'), "c"}));
}

TEST(PreTokenizer, ChoosesTheHandWrittenMatcherOnlyForItsOwnPatterns) {
  EXPECT_TRUE(PreTokenizer::create(deepseek_splits())->by_hand());
  EXPECT_FALSE(PreTokenizer::create(deepseek_splits(), PreTokenizer::Matchers::kRegexOnly)->by_hand());
  for (std::size_t changed = 0; changed < kDeepseekPatterns.size(); ++changed) {
    std::vector<SplitPattern> splits = deepseek_splits();
    splits[changed].pattern += "|q";
    EXPECT_FALSE(PreTokenizer::create(splits)->by_hand());
    splits = deepseek_splits();
    splits.erase(splits.begin() + static_cast<std::ptrdiff_t>(changed));
    EXPECT_FALSE(PreTokenizer::create(splits)->by_hand());
  }
  EXPECT_EQ(pieces_of(*PreTokenizer::create({}), "a b"), Pieces{"a b"});
}

TEST(PreTokenizer, CutsAsThePatternsSay) {
  const auto by_hand = PreTokenizer::create(deepseek_splits());
  const auto by_regex = PreTokenizer::create(deepseek_splits(), PreTokenizer::Matchers::kRegexOnly);
  const std::vector<std::pair<std::string, Pieces>> cases = {
      {"The capital of France is", {"The", " capital", " of", " France", " is"}},
      {"12345 6", {"123", "45", " ", "6"}},
      {"don't _x_", {"don", "'t", " _", "x", "_"}},
      {"a  b", {"a", " ", " b"}},
      {"a  \n\n b", {"a", "  \n\n", " b"}},
      {"end  ", {"end", "  "}},
      {"end  1", {"end", "  ", "1"}},
      {"end  .", {"end", " ", " ."}},
      {"x...\r\n\ny", {"x", "...\r\n\n", "y"}},
      {"你好世界abc", {"你好世界", "abc"}},
      {"ア゛・ー", {"ア", "゛・", "ー"}},
      {"e\u0301\u0301x", {"e\u0301\u0301x"}},
      {"\u0301", {"\u0301"}},
      {"\x01\x02z", {"\x01", "\x02z"}},
      {"\u200b\u200b!", {"\u200b\u200b", "!"}},
      {"\u00a0word", {"\u00a0word"}},
      {"\u3000\u3000字", {"\u3000\u3000", "字"}},
      {"", {}},
  };
  for (const auto& [text, want] : cases) {
    EXPECT_EQ(pieces_of(*by_hand, text), want) << text;
    EXPECT_EQ(pieces_of(*by_regex, text), want) << text;
  }
}

// The class of each code point according to PCRE2, and whether PCRE2 knows it as unassigned.
struct PcreClasses {
  PcreClasses() : of(0x110000, CharClass::kOther), unassigned(0x110000, 0) {
    std::string all;
    for (char32_t c = 0; c <= 0x10FFFF; ++c) {
      if (c < 0xD800 || c > 0xDFFF) utf8::append(all, c);
    }
    const auto mark = [&](std::string_view pattern, auto&& set) {
      std::vector<std::string_view> pieces;
      const auto splitter = RegexSplitter::create(pattern, false);
      const auto single = RegexSplitter::create("^" + std::string(pattern), false);
      splitter->split(all, pieces);
      for (const std::string_view piece : pieces) {
        // A piece is a match or a stretch between matches; its first character tells which.
        const std::string first(piece.substr(0, utf8::decode_at(piece, 0).length_bytes));
        std::vector<std::string_view> cut;
        single->split(first + "\u0001", cut);
        if (cut.size() != 2) continue;
        for (std::size_t at = 0; at < piece.size();) {
          const auto [c, length_bytes] = utf8::decode_at(piece, at);
          set(c);
          at += length_bytes;
        }
      }
    };
    mark("\\p{L}+", [&](char32_t c) { of[c] = CharClass::kLetter; });
    mark("\\p{M}+", [&](char32_t c) { of[c] = CharClass::kMark; });
    mark("\\p{N}+", [&](char32_t c) { of[c] = CharClass::kNumber; });
    mark("\\p{P}+", [&](char32_t c) { of[c] = CharClass::kPunctuation; });
    mark("\\p{S}+", [&](char32_t c) { of[c] = CharClass::kSymbol; });
    mark("\\s+", [&](char32_t c) { of[c] = CharClass::kSpace; });
    mark("\\p{Cn}+", [&](char32_t c) { unassigned[c] = 1; });
  }
  std::vector<CharClass> of;
  std::vector<char> unassigned;
};

const PcreClasses& pcre() {
  static const PcreClasses classes;
  return classes;
}

// The two come from different Unicode versions: they may differ only where one of them knows no character
// yet.
TEST(UnicodeClasses, DifferFromPcre2OnlyOnNewlyAssignedCharacters) {
  const UnicodeClasses& ours = UnicodeClasses::instance();
  std::size_t different = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || ours.of(c) == pcre().of[c]) continue;
    ++different;
    EXPECT_TRUE(pcre().unassigned[c] != 0 || ours.of(c) == CharClass::kOther)
        << std::hex << static_cast<int>(c);
  }
  EXPECT_LT(different, 40'000u);
  EXPECT_EQ(ours.of(0x1C89), CharClass::kLetter);  // assigned in Unicode 16
}

TEST(PreTokenizer, BothMatchersAgreeOnRandomText) {
  const auto by_hand = PreTokenizer::create(deepseek_splits());
  const auto by_regex = PreTokenizer::create(deepseek_splits(), PreTokenizer::Matchers::kRegexOnly);
  std::array<std::vector<char32_t>, 7> by_class;  // characters on which the two Unicode versions agree
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const CharClass kind = UnicodeClasses::instance().of(c);
    if (kind == pcre().of[c]) by_class[static_cast<std::size_t>(kind)].push_back(c);
  }
  std::mt19937 random(5);
  const auto character = [&]() -> char32_t {
    switch (random() % 8) {
      case 0:
        return static_cast<char32_t>(random() % 128);
      case 1:
        return U" \n\r\t\u00a0\u3000"[random() % 6];
      case 2:
        return U"aZ'_-.$1290"[random() % 11];
      case 3:
        return U"\u303f\u3040\u309f\u30a0\u30fb\u30ff\u3100\u3099\u309b\u4dff\u4e00\u9fa5\u9fa6"[random() %
                                                                                                 13];
      default: {
        const auto& pool = by_class[random() % by_class.size()];
        return pool[random() % pool.size()];
      }
    }
  };
  for (int round = 0; round < 30'000; ++round) {
    std::string text;
    for (std::size_t i = 0, n = random() % 24; i < n; ++i) {
      const char32_t c = character();
      const CharClass kind = UnicodeClasses::instance().of(c);
      if (kind != pcre().of[c]) continue;
      for (std::size_t times = random() % 6 == 0 ? 1 + random() % 5 : 1; times > 0; --times)
        utf8::append(text, c);
    }
    ASSERT_EQ(pieces_of(*by_hand, text), pieces_of(*by_regex, text)) << ::testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace pivot
