#include "text/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace pivot {
namespace {

AddedToken token(std::int32_t id, std::string content, bool normalized = false) {
  AddedToken result;
  result.id = TokenId{id};
  result.content = std::move(content);
  result.normalized = normalized;
  return result;
}

// "text[id]text" with ids in brackets.
std::string shown(const std::vector<AddedToken>& tokens, std::string_view text) {
  const AddedTokenSplitter splitter(tokens);
  std::string out;
  splitter.split(
      text,
      [&](std::string_view piece) {
        EXPECT_FALSE(piece.empty());
        out += piece;
      },
      [&](TokenId id) { out += "[" + std::to_string(raw(id)) + "]"; });
  return out;
}

TEST(AddedTokens, LeftmostThenLongest) {
  const std::vector<AddedToken> tokens = {token(1, "<a>"), token(2, "<a>b"), token(3, "a>b<"), token(4, "<"),
                                          token(5, "<a>bcd")};
  EXPECT_EQ(shown(tokens, "x<a>y"), "x[1]y");
  EXPECT_EQ(shown(tokens, "<a>b<"), "[2][4]");
  EXPECT_EQ(shown(tokens, "<a>bc"), "[2]c");
  EXPECT_EQ(shown(tokens, "<a>bcd<a"), "[5][4]a");
  EXPECT_EQ(shown(tokens, ""), "");
  EXPECT_EQ(shown(tokens, "plain"), "plain");
  EXPECT_EQ(shown({}, "<a>"), "<a>");
}

TEST(AddedTokens, UnnormalizedOnesAreTakenOutOfTheWholeTextFirst) {
  const std::vector<AddedToken> tokens = {token(1, "<｜/table>｜"), token(2, "｜DSML｜", true),
                                          token(3, "bc"), token(4, "abc", true)};
  EXPECT_EQ(shown(tokens, "<｜/table>｜DSML｜"), "[1]DSML｜");
  EXPECT_EQ(shown(tokens, "<｜/table>｜｜DSML｜"), "[1][2]");
  EXPECT_EQ(shown(tokens, "abc"), "a[3]");  // although "abc" starts first
  EXPECT_EQ(shown(tokens, "｜DSML｜bc｜DSML｜"), "[2][3][2]");
}

// The definition: the first position where any token fits, and there the longest.
std::string plainly_shown(const std::vector<AddedToken>& tokens, std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* best = nullptr;
    for (const AddedToken& candidate : tokens) {
      const bool fits = text.substr(at).starts_with(candidate.content);
      if (fits && (best == nullptr || candidate.content.size() > best->content.size())) best = &candidate;
    }
    if (best != nullptr) {
      out += "[" + std::to_string(raw(best->id)) + "]";
      at += best->content.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

TEST(AddedTokens, AgreesWithTheDefinitionOnRandomTokensAndTexts) {
  std::mt19937 random(3);
  const auto word = [&](std::size_t most) {
    std::string text;
    for (std::size_t i = 0, n = 1 + random() % most; i < n; ++i) text += "<ab"[random() % 3];
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<AddedToken> tokens;
    for (std::size_t i = 0, n = random() % 8; i < n; ++i) {
      std::string content = round % 2 == 0 ? "<" + word(4) : word(5);
      bool is_new = true;
      for (const AddedToken& other : tokens) is_new = is_new && other.content != content;
      if (is_new) tokens.push_back(token(static_cast<std::int32_t>(i), content));
    }
    const std::string text = word(40);
    ASSERT_EQ(shown(tokens, text), plainly_shown(tokens, text)) << text;
  }
}

}  // namespace
}  // namespace pivot
