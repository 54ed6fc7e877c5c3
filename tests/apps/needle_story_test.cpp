#include "needle_story.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "support/test_data.h"

namespace pivot::cli {
namespace {

std::int64_t count_words(std::string_view text) {
  return static_cast<std::int64_t>(std::count(text.begin(), text.end(), ' '));
}

std::string book_of(int verses) {
  std::string book;
  for (int i = 0; i < verses; ++i) book += fmt::format("Verse number {} says so.\n", i);
  return book;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(NeedleStory, HidesTheFactOnceAndAsksForIt) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto story = tell_story(book_of(100), {.seed = seed, .prompt_tokens = 10'000}, count_words);
    ASSERT_TRUE(story) << story.error().to_string();
    EXPECT_EQ(occurrences(story->prompt, " " + story->needle), 1u);
    EXPECT_EQ(occurrences(story->prompt, story->value), 1u);
    EXPECT_EQ(occurrences(story->prompt, "the secret code for " + story->key),
              2u);  // the fact and the question
    EXPECT_EQ(occurrences(story->prompt, "It is written that the secret code for "),
              1u + static_cast<std::size_t>(story->num_decoys));
    EXPECT_TRUE(story->prompt.ends_with("That is the end of the text.\n\n" + story->question));
    EXPECT_EQ(story->num_verses, 100);
    EXPECT_GE(story->depth, 0.09);
    EXPECT_LE(story->depth, 0.91);
    for (int verse = 0; verse < 100; ++verse) {
      EXPECT_EQ(occurrences(story->prompt, fmt::format(" Verse number {} says so.", verse)), 1u);
    }
  }
}

TEST(NeedleStory, IsAFunctionOfTheSeed) {
  const auto tell = [](std::uint64_t seed) {
    return tell_story(book_of(40), {.seed = seed, .prompt_tokens = 10'000}, count_words)->prompt;
  };
  EXPECT_EQ(tell(3), tell(3));
  EXPECT_NE(tell(3), tell(4));
}

TEST(NeedleStory, PutsTheFactWhereItIsTold) {
  const auto at = [](double depth) {
    return *tell_story(book_of(40), {.seed = 1, .prompt_tokens = 10'000, .depth = depth}, count_words);
  };
  EXPECT_EQ(at(0).prompt.find(at(0).needle), 1u);
  EXPECT_LT(at(0.5).prompt.find(at(0.5).needle), at(0.5).prompt.find("Verse number 20"));
  EXPECT_GT(at(0.5).prompt.find(at(0.5).needle), at(0.5).prompt.find("Verse number 19"));
  EXPECT_GT(at(1).prompt.find(at(1).needle), at(1).prompt.find("Verse number 39"));
}

TEST(NeedleStory, StaysWithinItsTokens) {
  const auto story = tell_story(book_of(1000), {.seed = 1, .prompt_tokens = 1000}, count_words);
  ASSERT_TRUE(story);
  EXPECT_LT(story->num_verses, 1000);
  EXPECT_GT(story->num_verses, 100);
  EXPECT_LE(count_words(story->prompt), 1000);
}

TEST(NeedleStory, RefusesWhatCannotBeTold) {
  EXPECT_EQ(tell_story("", {.prompt_tokens = 1000}, count_words).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell_story(book_of(100), {.prompt_tokens = 170}, count_words).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell_story(book_of(100), {.prompt_tokens = 9999, .depth = 1.5}, count_words).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(NeedleStory, TheShippedBookHasNoDigitsAndNoKeys) {
  const auto book = read_file(test::source_dir() / "models/texts/hebrews.txt");
  ASSERT_TRUE(book) << book.error().to_string();
  EXPECT_EQ(book->find_first_of("0123456789"), std::string::npos);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto story = tell_story(*book, {.seed = seed, .prompt_tokens = 10'000}, count_words);
    ASSERT_TRUE(story);
    EXPECT_EQ(occurrences(*book, story->key), 0u) << story->key;
  }
}

TEST(ValueInAnswer, ReadsSixDigitsAfterTheOpening) {
  EXPECT_EQ(value_in_answer("The secret code for Omar is 012345.", "for Omar is "), "012345");
  EXPECT_EQ(value_in_answer("for Omar is 012345", "for Omar is "), "012345");
  EXPECT_EQ(value_in_answer("for Omar is 0123456", "for Omar is "), "");
  EXPECT_EQ(value_in_answer("for Omar is 12345.", "for Omar is "), "");
  EXPECT_EQ(value_in_answer("for Obed is 012345.", "for Omar is "), "");
}

}  // namespace
}  // namespace pivot::cli
