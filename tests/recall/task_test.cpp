// Prompts are exact to the token, and a function of their spec.
#include "recall/task.h"

#include <gtest/gtest.h>

#include <map>

#include <algorithm>

#include "base/file.h"
#include "recall/haystack.h"
#include "recall/words.h"
#include "support/embedded_model.h"
#include "support/test_data.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer instance = Tokenizer::load(test::embedded_model_dir()).value();
  return instance;
}
const std::string& excerpt() {
  static const std::string text = read_file(test::source_dir() / "models/texts/hebrews.txt").value();
  return text;
}
const Haystack& haystack() {
  static const Haystack instance = Haystack::create(excerpt(), tokenizer()).value();
  return instance;
}
CaseBuilder builder(Wording wording = Wording::kNeedle) { return {&tokenizer(), &haystack(), wording}; }

std::string text_of(const Case& test, TokenRange range) {
  const std::span<const TokenId> prompt(test.prompt);
  return tokenizer().decode(prompt.subspan(static_cast<std::size_t>(range.begin),
                                           static_cast<std::size_t>(range.end - range.begin)));
}

TEST(Task, EveryResidueOfEveryTaskIsExact) {
  for (const TaskInfo& info : task_table())
    for (const Wording wording : {Wording::kNeedle, Wording::kInstruct})
      for (const std::int64_t modulus : {4, 128})
        for (const std::int64_t residue : {std::int64_t{0}, std::int64_t{1}, modulus - 1})
          for (const double depth : {0.0, 0.5, 1.0}) {
            const CaseSpec spec{info.task, 1500, depth, residue, modulus, 2, 5};
            const Case test = builder(wording).build(spec).value();
            const auto tokens = static_cast<std::int64_t>(test.prompt.size());
            ASSERT_EQ(tokens % modulus, residue) << spec.id();
            ASSERT_LE(tokens, 1500);
            ASSERT_GT(tokens, 1500 - modulus);
            ASSERT_FALSE(test.facts.empty());
            ASSERT_FALSE(test.expected.empty());
            ASSERT_GE(test.facts[0].begin, 0);
            ASSERT_LT(test.facts[0].begin, tokens);
          }
}

TEST(Task, TheFactsResidueGoesThroughAllClasses) {
  std::vector<bool> seen(4, false);
  for (std::int64_t sample = 0; sample < 4; ++sample) {
    const Case test = builder().build({Task::kSingle, 1024, 0.5, 1, 4, sample, 3}).value();
    EXPECT_EQ(test.facts[0].begin % 4, (1 + sample) % 4);
    seen[static_cast<std::size_t>(test.facts[0].begin % 4)] = true;
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](bool s) { return s; }));
}

TEST(Task, FactsHoldTheValuesWhereTheySay) {
  for (const Task task : {Task::kSingle, Task::kSingleString, Task::kSingleWord, Task::kMultiKey,
                          Task::kVerbatim, Task::kRounds}) {
    const Case test = builder().build({task, 2048, 0.3, 3, 4, 0, 9}).value();
    ASSERT_EQ(test.facts.size(), 1u) << to_string(task);
    EXPECT_EQ(text_of(test, test.facts[0]), test.expected[0]) << to_string(task);
  }
  const Case several = builder().build({Task::kMultiValue, 2048, 0.3, 3, 4, 0, 9}).value();
  ASSERT_EQ(several.facts.size(), 3u);
}

TEST(Task, ATallyIsWonByTheValueOfMostReports) {
  const Case test = builder().build({Task::kTally, 1024, 0.3, 2, 4, 0, 9}).value();
  ASSERT_EQ(test.expected.size(), 1u);
  EXPECT_EQ(test.facts.size(), 10u);
  for (const TokenRange& fact : test.facts) EXPECT_EQ(text_of(test, fact), test.expected[0]);
  // Count the asked key's reports in the text itself.
  const std::string whole = text_of(test, {0, static_cast<std::int64_t>(test.prompt.size())});
  const std::string text = whole.substr(0, whole.find("That is the end of the text."));
  const std::string name = test.question.substr(std::string("Which secret code for ").size(),
                                                test.question.find(" is given") - 22);
  const std::string opening = "secret code for " + name + " is ";
  std::map<std::string, int> times;
  for (std::size_t at = text.find(opening); at != std::string::npos; at = text.find(opening, at + 1))
    ++times[text.substr(at + opening.size(), 3)];
  EXPECT_EQ(times.size(), 6u);
  EXPECT_EQ(times[test.expected[0]], 10);
  for (const std::string& other : test.foreign) EXPECT_GE(6, times[other]);
}

TEST(Task, DepthPlacesTheFact) {
  double last = -1;
  for (const double depth : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const Case test = builder().build({Task::kSingle, 4096, depth, 0, 4, 0, 1}).value();
    const double place = static_cast<double>(test.facts[0].begin) / static_cast<double>(test.prompt.size());
    EXPECT_NEAR(place, depth, 0.03);
    EXPECT_GT(place, last);
    last = place;
  }
}

TEST(Task, IsAFunctionOfItsSpec) {
  const CaseSpec spec{Task::kMultiKey, 1024, 0.5, 2, 4, 0, 1};
  EXPECT_EQ(builder().build(spec).value().prompt, builder().build(spec).value().prompt);
  CaseSpec other = spec;
  other.sample = 1;
  EXPECT_NE(builder().build(spec).value().prompt, builder().build(other).value().prompt);
  other = spec;
  other.seed = 2;
  EXPECT_NE(builder().build(spec).value().expected, builder().build(other).value().expected);
}

TEST(Task, RefusesWhatIsNotPossible) {
  const auto message = [](const CaseSpec& spec) { return builder().build(spec).error().message; };
  EXPECT_NE(message({Task::kSingle, 64, 0.5, 0, 4, 0, 1}).find("no room"), std::string::npos);
  EXPECT_NE(message({Task::kSingle, 512, 1.5, 0, 4, 0, 1}).find("depth"), std::string::npos);
  EXPECT_NE(message({Task::kSingle, 512, 0.5, 4, 4, 0, 1}).find("residue"), std::string::npos);
  EXPECT_FALSE(parse_task("nothing"));
  EXPECT_FALSE(parse_wording("nothing"));
}

TEST(Haystack, RefusesWhatIsNotText) {
  const auto error = Haystack::create("one line\n", tokenizer()).error();
  EXPECT_NE(error.message.find("512"), std::string::npos) << error.message;
  const auto invalid = Haystack::create(excerpt() + "\xff\n", tokenizer()).error();
  EXPECT_EQ(invalid.code, ErrorCode::kInvalidData);
  EXPECT_NE(invalid.message.find(std::to_string(excerpt().size())), std::string::npos) << invalid.message;
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\x80"})
    EXPECT_EQ(find_invalid_utf8(bad), 0u);
  EXPECT_EQ(find_invalid_utf8("verr\xc3\xa0 \xe2\x82\xac \xf0\x9f\x99\x82"), std::string_view::npos);
}

TEST(Haystack, RunsMeetAtTheUnit) {
  const Haystack& text = haystack();
  const std::int64_t unit = text.units() - 1;
  const std::vector<TokenId> before = text.ending_before(unit, 3 * text.tokens());
  EXPECT_EQ(static_cast<std::int64_t>(before.size()), 3 * text.tokens());
  const std::vector<TokenId> after = text.starting_at(unit, text.tokens() + 5);
  EXPECT_TRUE(std::equal(after.begin(), after.begin() + 5, after.end() - 5));
}

TEST(Words, DoNotOccurInTheExcerpt) {
  for (const std::string& name : key_names()) EXPECT_EQ(excerpt().find(name), std::string::npos) << name;
}

TEST(Score, WantsTheValueAndNoOther) {
  Case test;
  test.expected = {"482913"};
  test.foreign = {"111111"};
  EXPECT_TRUE(score_answer(test, "The secret code for Bethel is 482913.").exact);
  EXPECT_FALSE(score_answer(test, "It is 4829134.").exact);
  EXPECT_FALSE(score_answer(test, "482913 or 111111").exact);
  EXPECT_FALSE(score_answer(test, "").exact);
  EXPECT_NEAR(score_answer(test, "The secret code for Bethel is 482914.").similarity, 5.0 / 6, 1e-9);
  EXPECT_DOUBLE_EQ(score_answer(test, "The secret code for Bethel is 482913.").similarity, 1);
  test.expected = {"482913", "222222"};
  EXPECT_DOUBLE_EQ(score_answer(test, "482913").found, 0.5);
  EXPECT_FALSE(score_answer(test, "482913").exact);
}

}  // namespace
}  // namespace pivot::recall
