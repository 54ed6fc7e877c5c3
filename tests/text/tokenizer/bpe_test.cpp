#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer/tiny_tokenizer.h"

namespace pivot {
namespace {

// A Bpe over the 256 bytes (id = byte) and the results of the merges, and the text of each id.
struct Fixture {
  explicit Fixture(const test::Merges& merges_in) : merges(merges_in) {
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
    std::vector<BpeMerge> list;
    for (const auto& [left, right] : merges) list.push_back({add(left), add(right), add(left + right)});
    std::array<TokenId, 256> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes[static_cast<std::size_t>(byte)] = TokenId{byte};
    bpe = Bpe(bytes, list);
  }
  TokenId add(const std::string& text) {
    const auto [at, is_new] = ids.try_emplace(text, TokenId{static_cast<std::int32_t>(texts.size())});
    if (is_new) texts.push_back(text);
    return at->second;
  }
  std::vector<std::string> encode(std::string_view word) {
    std::vector<TokenId> out;
    bpe.encode(word, workspace, out);
    std::vector<std::string> parts;
    for (const TokenId id : out) parts.push_back(texts[static_cast<std::size_t>(raw(id))]);
    return parts;
  }

  test::Merges merges;
  std::map<std::string, TokenId> ids;
  std::vector<std::string> texts;
  Bpe bpe;
  Bpe::Workspace workspace;
};

std::string random_word(std::mt19937& random, std::string_view letters, std::size_t length) {
  std::string word;
  for (std::size_t i = 0; i < length; ++i) word += letters[random() % letters.size()];
  return word;
}

// Merges learnt by joining random tokens, so that they nest, overlap and tie.
test::Merges random_merges(std::mt19937& random, std::string_view letters, std::size_t count) {
  std::vector<std::string> tokens;
  for (const char letter : letters) tokens.emplace_back(1, letter);
  test::Merges merges;
  while (merges.size() < count) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  return merges;
}

TEST(Bpe, AppliesTheLowestRankFirstAndTheLeftmostOnTies) {
  Fixture f({{"b", "c"}, {"a", "b"}, {"a", "a"}});
  EXPECT_EQ(f.encode("abc"), (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(f.encode("ab"), (std::vector<std::string>{"ab"}));
  EXPECT_EQ(f.encode("aaa"), (std::vector<std::string>{"aa", "a"}));
  EXPECT_EQ(f.encode("x"), (std::vector<std::string>{"x"}));
}

TEST(Bpe, APairListedTwiceHasItsLastRank) {
  Fixture f({{"a", "b"}, {"b", "c"}, {"a", "b"}});
  EXPECT_EQ(f.encode("abc"), (std::vector<std::string>{"a", "bc"}));
}

// Lengths on both sides of the cached, the scanned and the heap path, with every word met twice (second time
// cached).
TEST(Bpe, AgreesWithThePlainAlgorithmAtEveryLength) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    const std::string_view letters = round % 3 == 0   ? "ab"
                                     : round % 3 == 1 ? "abcdef"
                                                      : "\xE4\xBD\xA0\xE5\xA5";
    Fixture f(random_merges(random, letters, 1 + random() % 40));
    for (std::size_t length = 1; length <= 120; ++length) {
      const std::string word = random_word(random, letters, length);
      const auto want = test::plain_bpe(word, f.merges);
      ASSERT_EQ(f.encode(word), want) << word;
      ASSERT_EQ(f.encode(word), want) << "the second time: " << word;
    }
  }
}

// More distinct words than the cache has places: entries are replaced, never mixed up.
TEST(Bpe, TheCacheIsOnlyACache) {
  std::mt19937 random(11);
  Fixture f(random_merges(random, "abcd", 30));
  std::vector<std::string> words;
  for (int i = 0; i < 80'000; ++i) words.push_back(random_word(random, "abcd", 1 + random() % 24));
  std::vector<std::vector<std::string>> first;
  for (const std::string& word : words) first.push_back(f.encode(word));
  for (std::size_t i = 0; i < words.size(); ++i) ASSERT_EQ(f.encode(words[i]), first[i]);
  for (std::size_t i = 0; i < words.size(); i += 97) ASSERT_EQ(test::plain_bpe(words[i], f.merges), first[i]);
}

// A million equal letters would take hours if each merge scanned the word.
TEST(Bpe, ALongWordTakesNoQuadraticTime) {
  test::Merges merges;
  for (std::string token = "a"; token.size() <= 64; token += token) merges.emplace_back(token, token);
  Fixture f(merges);
  const std::vector<std::string> parts = f.encode(std::string(1'000'000, 'a'));
  ASSERT_EQ(parts.size(), 1'000'000u / 128 + 1);
  EXPECT_EQ(parts.front(), std::string(128, 'a'));
  EXPECT_EQ(parts.back(), std::string(64, 'a'));
  f.workspace.trim();
  EXPECT_EQ(f.encode("aaa"), (std::vector<std::string>{"aa", "a"}));
}

}  // namespace
}  // namespace pivot
