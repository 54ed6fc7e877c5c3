// Public fault B32: characters split over tokens.
#include "text/tokenizer/streaming_detokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "text/tokenizer/tiny_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot {
namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer =
      *Tokenizer::parse(test::tiny_tokenizer_json(test::tiny_merges()).dump(), "tiny");
  return tokenizer;
}

std::vector<std::string> pieces_of(const std::vector<std::string>& chunks) {
  StreamingDetokenizer stream(tiny());
  std::vector<std::string> pieces;
  for (const std::string& chunk : chunks) pieces.push_back(stream.push_bytes(chunk));
  pieces.push_back(stream.finish());
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(StreamingDetokenizer, HoldsBytesUntilTheCharacterIsWhole) {
  EXPECT_EQ(pieces_of({"\xF0\x9F", "\x98\x80"}), (Pieces{"", "😀", ""}));
  EXPECT_EQ(pieces_of({"\xE4", "\xBD\xA0\xE5", "\xA5\xBD"}), (Pieces{"", "你", "好", ""}));
  EXPECT_EQ(pieces_of({"\xEC\x82\xBC\xEA", "\xB2\xB9"}), (Pieces{"삼", "겹", ""}));
  EXPECT_EQ(pieces_of({"e\xCC", "\x81"}), (Pieces{"e", "\u0301", ""}));
  EXPECT_EQ(pieces_of({"", "a", ""}), (Pieces{"", "a", "", ""}));
}

TEST(StreamingDetokenizer, ReplacesWhatNeverBecomesACharacter) {
  EXPECT_EQ(pieces_of({"ok", "\xC3"}), (Pieces{"ok", "", "\uFFFD"}));          // a lone C3 at the end
  EXPECT_EQ(pieces_of({"a", "\xFF", "b"}), (Pieces{"a", "\uFFFD", "b", ""}));  // FF in the middle
  EXPECT_EQ(pieces_of({"\xF0\x9F", "\x98"}), (Pieces{"", "", "\uFFFD"}));      // an emoji cut at max_tokens
  EXPECT_EQ(pieces_of({"\xF0\x9F", "x"}), (Pieces{"", "\uFFFDx", ""}));        // a character given up
  EXPECT_EQ(pieces_of({"\xC3", "\xC3\xA9"}), (Pieces{"", "\uFFFDé", ""}));
}

TEST(StreamingDetokenizer, StartsAfreshAfterFinish) {
  StreamingDetokenizer stream(tiny());
  EXPECT_EQ(stream.push_bytes("\xC3"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push_bytes("\xA9"), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamingDetokenizer, SkipsSpecialTokensOnlyWhenAsked) {
  const TokenId eos = *tiny().special().eos;
  const TokenId think = *tiny().special().think_open;  // added, but not special
  StreamingDetokenizer all(tiny());
  EXPECT_EQ(all.push(eos), "<｜end▁of▁sentence｜>");
  EXPECT_EQ(all.push(think), "<think>");
  StreamingDetokenizer some(tiny(), true);
  EXPECT_EQ(some.push(eos), "");
  EXPECT_EQ(some.push(think), "<think>");
}

// A special token that is skipped joins what stands around it, as decode(skip_special) does.
TEST(StreamingDetokenizer, SkippedTokensDoNotSplitACharacter) {
  const std::vector<TokenId> ids = {TokenId{3 + 0xC3}, *tiny().special().eos, TokenId{3 + 0xA9}};
  StreamingDetokenizer stream(tiny(), true);
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.push(ids[1]), "");
  EXPECT_EQ(stream.push(ids[2]), "é");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(tiny().decode(ids, true), "é");
  EXPECT_EQ(tiny().decode(ids), "\uFFFD<｜end▁of▁sentence｜>\uFFFD");
}

RC_GTEST_PROP(StreamingDetokenizer, PiecesJoinedAreTheDecodedText, ()) {
  // All ids, and a few that do not exist.
  const auto numbers =
      *rc::gen::container<std::vector<int>>(rc::gen::inRange(-2, static_cast<int>(tiny().vocab_size()) + 2));
  const bool skip_special = *rc::gen::arbitrary<bool>();
  std::vector<TokenId> ids;
  std::string joined;
  StreamingDetokenizer stream(tiny(), skip_special);
  for (const int number : numbers) {
    ids.push_back(TokenId{number});
    const std::string piece = stream.push(ids.back());
    RC_ASSERT(utf8::is_valid(piece));
    joined += piece;
  }
  joined += stream.finish();
  RC_ASSERT(joined == tiny().decode(ids, skip_special));
}

}  // namespace
}  // namespace pivot
