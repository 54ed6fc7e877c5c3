// Structured output on DeepSeek-V4's own vocabulary of 129,280 tokens.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "grammar_walk.h"
#include "support/test_data.h"

namespace pivot {
namespace {

TEST(GrammarOnV4, SchemasAndToolCalls) {
  PIVOT_NEED_DATA(file, "real/tokenizer/v4/tokenizer.json");
  if (!grammars_available()) GTEST_SKIP() << "NEEDS XGRAMMAR: this build was made without it";
  const Tokenizer tokenizer = *Tokenizer::load(file);
  ASSERT_EQ(tokenizer.vocab_size(), 129280);
  const std::vector<TokenId> stops = {*tokenizer.special().eos};
  const auto compiler = *GrammarCompiler::create(tokenizer, stops, tokenizer.vocab_size());

  const JsonSchemaGrammar schema{
      R"({"type": "object", "properties": {"answer": {"type": "string", "maxLength": 40}, "sure": {"type": "boolean"}}, "required": ["answer", "sure"]})"};
  auto constraint = *compiler->constrain(schema, {true});
  EXPECT_TRUE(
      test::walk(*constraint, tokenizer, "Hm. 北京?</think>{\"answer\": \"北京, 3 < 4 😀\", \"sure\": true}")
          .finished);

  std::mt19937 random(11);
  for (int round = 0; round < 5; ++round) {
    constraint = *compiler->constrain(schema);
    const std::string text = test::draw(*constraint, tokenizer, random, 500);
    ASSERT_TRUE(constraint->is_finished()) << text;
    const auto json = nlohmann::json::parse(text, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    EXPECT_TRUE(json.at("answer").is_string());
    EXPECT_TRUE(json.at("sure").is_boolean());
  }

  // The marker of tool calls is one token here, and the mask must let it through.
  const ToolCallGrammar calls{{{"get_time", R"({"properties": {"zone": {"type": "string"}}})", false}},
                              ToolCallGrammar::Use::kOptional,
                              true};
  constraint = *compiler->constrain(calls);
  const test::Walk result =
      test::walk(*constraint, tokenizer,
                 "I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_time\">\n"
                 "<｜DSML｜parameter name=\"zone\" string=\"true\">UTC</｜DSML｜parameter>\n"
                 "</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
  EXPECT_TRUE(result.finished) << result.problem;
}

}  // namespace
}  // namespace pivot
