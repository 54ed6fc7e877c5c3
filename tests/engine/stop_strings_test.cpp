#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace pivot::test {
namespace {

struct Outcome {
  std::string text;
  std::string match;  // empty: none

  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings matcher = StopStrings::create(stops).value();
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.feed(piece);
  if (matcher.matched()) outcome.match = matcher.match();
  outcome.text += matcher.finish();
  return outcome;
}

// The cases of B31.
TEST(StopStrings, AcrossTokens) {
  EXPECT_EQ(run({"bravo charlie"}, {"al", "pha br", "avo cha", "rlie delta"}),
            (Outcome{"alpha ", "bravo charlie"}));
  EXPECT_EQ(run({"abab"}, {"ab", "a", "bx"}), (Outcome{"", "abab"}));
  EXPECT_EQ(run({"abac"}, {"ab", "a", "bx"}), (Outcome{"ababx", ""}));
  EXPECT_EQ(run({"\n\n", "END"}, {"E", "N", "D"}), (Outcome{"", "END"}));
  EXPECT_EQ(run({"aa", "aaa"}, {"a", "a", "a"}), (Outcome{"", "aa"}));
  EXPECT_EQ(run({"first"}, {"first", " more"}), (Outcome{"", "first"}));
  EXPECT_EQ(run({"w", "x", "y", "z"}, {"abc", "dzy"}), (Outcome{"abcd", "z"}));
  const std::string longest(300, 'q');
  EXPECT_EQ(run({longest}, {std::string(299, 'q'), "qq"}), (Outcome{"", longest}));
  EXPECT_EQ(run({longest}, {std::string(299, 'q'), "r"}), (Outcome{std::string(299, 'q') + "r", ""}));
}

TEST(StopStrings, HeldTextIsReleasedWhenRuledOut) {
  StopStrings matcher = StopStrings::create({"stop"}).value();
  EXPECT_EQ(matcher.feed("a st"), "a ");
  EXPECT_EQ(matcher.feed("ay"), "stay");
  EXPECT_EQ(matcher.feed("sto"), "");
  EXPECT_EQ(matcher.finish(), "sto");
}

TEST(StopStrings, TheLongestOfThoseThatEndTogetherWins) {
  EXPECT_EQ(run({"lo", "hello"}, {"say hello"}), (Outcome{"say ", "hello"}));
  EXPECT_EQ(run({"hello", "lo"}, {"say hel", "lo"}), (Outcome{"say ", "hello"}));
}

TEST(StopStrings, NothingIsReleasedAfterAMatch) {
  StopStrings matcher = StopStrings::create({"x"}).value();
  EXPECT_EQ(matcher.feed("axb"), "a");
  EXPECT_EQ(matcher.feed("c"), "");
  EXPECT_EQ(matcher.finish(), "");
  matcher.reset();
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(matcher.feed("bc"), "bc");
}

TEST(StopStrings, BadOnesAreRefused) {
  EXPECT_FALSE(StopStrings::create({""}));
  EXPECT_FALSE(StopStrings::create({std::string(StopStrings::kMaxBytes + 1, 'a')}));
  EXPECT_FALSE(StopStrings::create(std::vector<std::string>(StopStrings::kMaxCount + 1, "a")));
  EXPECT_TRUE(StopStrings::create({}));
  EXPECT_EQ(run({}, {"any", "thing"}), (Outcome{"anything", ""}));
}

// A plain definition: the match that ends first, the longest of those; over random texts, stops and cuts.
Outcome by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops)
      if (stop.size() > best.size() && stop.size() <= end &&
          text.compare(end - stop.size(), stop.size(), stop) == 0)
        best = stop;
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopStrings, TheCutsDoNotMatter) {
  std::mt19937 random(31);
  const auto word = [&](std::size_t most) {
    std::string text;
    for (std::size_t i = 0; i <= random() % most; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t i = 0; i <= random() % 4; ++i) stops.push_back(word(6));
    const std::string text = word(40);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t count = 1 + random() % 5;
      pieces.push_back(text.substr(at, count));
      at += count;
    }
    EXPECT_EQ(run(stops, pieces), by_definition(stops, text)) << text;
  }
}

}  // namespace
}  // namespace pivot::test
