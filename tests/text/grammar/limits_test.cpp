// What is refused before the library sees it, and the reasoning gate by itself: needs no grammar library.
#include <gtest/gtest.h>

#include "text/grammar/grammar.h"
#include "text/grammar/reasoning_gate.h"

namespace pivot {
namespace {

std::string problem(const AnswerGrammar& grammar, const GrammarLimits& limits = {}) {
  const Result<> checked = check_grammar(grammar, limits);
  if (checked) return "";
  EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
  EXPECT_LT(checked.error().message.size(), 1000u);
  return checked.error().to_string();
}

void expect_problem(const AnswerGrammar& grammar, std::string_view part) {
  const std::string found = problem(grammar);
  EXPECT_NE(found.find(part), std::string::npos) << "found: " << found;
}

std::string nested(std::string_view open, std::string_view inner, std::string_view close, int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += inner;
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(GrammarLimits, SchemaThatIsNone) {
  expect_problem(JsonSchemaGrammar{""}, "");
  EXPECT_NE(problem(JsonSchemaGrammar{""}), "");
  expect_problem(JsonSchemaGrammar{"[1]"}, "a list");
  expect_problem(JsonSchemaGrammar{"{\"type\": }"}, "reading the JSON Schema");
  EXPECT_EQ(problem(JsonSchemaGrammar{"{}"}), "");
  EXPECT_EQ(problem(JsonSchemaGrammar{"true"}), "");
}

TEST(GrammarLimits, DeepAndWideSchemas) {
  expect_problem(JsonSchemaGrammar{nested(R"({"properties":{"a":)", "{}", "}}", 40)}, "levels deep");
  expect_problem(JsonSchemaGrammar{nested(R"({"items":)", "{}", "}", 500)}, "levels deep");
  EXPECT_NE(problem(JsonSchemaGrammar{nested("[", "1", "]", 100'000)}), "");
  std::string wide = R"({"properties":{)";
  for (int i = 0; i < 9000; ++i) wide += fmt::format("{}\"p{}\":{{}}", i == 0 ? "" : ",", i);
  expect_problem(JsonSchemaGrammar{wide + "}}"}, "values");
  std::string values = R"({"enum":[0)";
  for (int i = 1; i < 2500; ++i) values += fmt::format(",{}", i);
  expect_problem(JsonSchemaGrammar{values + "]}"}, "enum");
  expect_problem(JsonSchemaGrammar{"\"" + std::string(200'000, 'x') + "\""}, "bytes");
}

TEST(GrammarLimits, CountsInASchema) {
  expect_problem(JsonSchemaGrammar{R"({"properties": {"a": {"maxLength": 100001}}})"},
                 "/properties/a/maxLength");
  expect_problem(JsonSchemaGrammar{R"({"minItems": -1})"}, "whole number");
  expect_problem(JsonSchemaGrammar{R"({"minItems": 1.5})"}, "whole number");
  expect_problem(JsonSchemaGrammar{R"({"maxItems": 99999999999999999999})"}, "whole number");
  EXPECT_EQ(problem(JsonSchemaGrammar{R"({"properties": {"maxItems": {"type": "string"}}, "maxItems": 3})"}),
            "");
}

// Compiling takes as long as all that a request asks for takes together.
TEST(GrammarLimits, WhatIsSlowToCompileCountsTogether) {
  const auto properties = [](int count, std::string_view schema, bool open = false) {
    std::string text = R"({"properties":{)";
    for (int i = 0; i < count; ++i) text += fmt::format(R"({}"p{:03}":{})", i == 0 ? "" : ",", i, schema);
    return text + (open ? R"(},"additionalProperties":{"type":"string"}})" : "}}");
  };
  constexpr std::string_view kPattern = R"({"pattern": "[a-z]{100}"})";
  EXPECT_EQ(problem(JsonSchemaGrammar{properties(100, kPattern)}), "");
  expect_problem(JsonSchemaGrammar{properties(101, kPattern)}, "would cost 10100 up to");
  expect_problem(JsonSchemaGrammar{properties(101, kPattern)}, "/properties/p100/pattern");
  constexpr std::string_view kRange = R"({"type": "integer", "minimum": 0, "maximum": 9})";
  EXPECT_EQ(problem(JsonSchemaGrammar{properties(800, kRange)}), "");
  expect_problem(JsonSchemaGrammar{properties(840, kRange)}, "at most 10000");
  EXPECT_EQ(problem(JsonSchemaGrammar{properties(240, R"({"format": "email"})")}), "");
  expect_problem(JsonSchemaGrammar{properties(260, R"({"format": "email"})")}, "format");
  EXPECT_EQ(problem(JsonSchemaGrammar{properties(1000, R"({"type": "string"})")}), "");
  EXPECT_EQ(problem(JsonSchemaGrammar{properties(90, R"({"type": "string"})", true)}), "");
  expect_problem(JsonSchemaGrammar{properties(110, R"({"type": "string"})", true)}, "allow others");
  // A tool's own parameters cost little, whatever else it takes; objects inside them are like others.
  const std::string nested = R"({"properties":{"a":)" + properties(110, R"({"type": "string"})") + "}}";
  EXPECT_EQ(problem(ToolCallGrammar{{{"f", properties(110, R"({"type": "string"})"), false}}}), "");
  EXPECT_EQ(problem(ToolCallGrammar{{{"f", nested, true}}}), "");
  expect_problem(ToolCallGrammar{{{"f", nested, false}}}, "tool 'f'");
  std::vector<GrammarTool> tools;
  for (int i = 0; i < 4; ++i) tools.push_back({fmt::format("tool{}", i), properties(30, kPattern), false});
  expect_problem(ToolCallGrammar{tools}, "tool3");
}

TEST(GrammarLimits, StrictSchemasHaveNoKeywordThatWouldBeIgnored) {
  for (const char* schema : {R"({"not": {}})", R"({"items": {"if": {}, "then": {}}})",
                             R"({"uniqueItems": true})", R"({"properties": {"a": {"contains": {}}}})"}) {
    const Result<> strict = check_grammar(JsonSchemaGrammar{schema, true}, {});
    ASSERT_FALSE(strict.has_value()) << schema;
    EXPECT_EQ(strict.error().code, ErrorCode::kUnsupported);
    EXPECT_TRUE(check_grammar(JsonSchemaGrammar{schema, false}, {}).has_value()) << schema;
    EXPECT_FALSE(check_grammar(ToolCallGrammar{{{"f", schema, true}}}, {}).has_value()) << schema;
    EXPECT_TRUE(check_grammar(ToolCallGrammar{{{"f", schema, false}}}, {}).has_value()) << schema;
  }
  // A property of that name is no keyword.
  EXPECT_TRUE(
      check_grammar(JsonSchemaGrammar{R"({"properties": {"not": {}}, "uniqueItems": false})", true}, {})
          .has_value());
}

TEST(GrammarLimits, RepeatsOfExpressions) {
  EXPECT_EQ(problem(RegexGrammar{"[a-z]{1,40}(x|y){3}"}), "");
  EXPECT_EQ(problem(RegexGrammar{"a{x} {} {,} {"}), "");
  expect_problem(RegexGrammar{""}, "empty");
  expect_problem(RegexGrammar{std::string(3000, 'a')}, "3000 bytes");
  expect_problem(RegexGrammar{"a{9999}"}, "repeats");
  expect_problem(RegexGrammar{"((a{1,100}){1,100}){1,100}"}, "repeats");
  expect_problem(RegexGrammar{"a{99999999999999999999999999}"}, "repeats");
  expect_problem(RegexGrammar{"(((a{1000}){1000}){1000}){1000}"}, "repeats");
  expect_problem(RegexGrammar{nested("(", "a", ")", 100)}, "nest");
  expect_problem(RegexGrammar{"(a"}, "not closed");
  expect_problem(RegexGrammar{"a)"}, "did not open");
  expect_problem(RegexGrammar{"[a"}, "not closed");
  expect_problem(RegexGrammar{"a\\"}, "backslash");
  expect_problem(RegexGrammar{std::string("a\0b", 3)}, "NUL");
  expect_problem(RegexGrammar{"\xff"}, "UTF-8");
  expect_problem(JsonSchemaGrammar{R"({"properties": {"a": {"pattern": "b{9999}"}}})"},
                 "/properties/a/pattern");
  expect_problem(JsonSchemaGrammar{R"({"patternProperties": {"b{9999}": {}}})"}, "patternProperties");
}

TEST(GrammarLimits, Ebnf) {
  EXPECT_EQ(problem(EbnfGrammar{"root ::= \"a{9999}\" other{3} # b{9999}\nother ::= [)]\n"}), "");
  expect_problem(EbnfGrammar{""}, "empty");
  expect_problem(EbnfGrammar{"root ::= \"a\"{9999}"}, "repeats");
  expect_problem(EbnfGrammar{"root ::= (\"abc\"{ 100 , 200 }){100}"}, "repeats");
  expect_problem(EbnfGrammar{"root ::= \"a"}, "not closed");
  expect_problem(EbnfGrammar{"root ::= (\"a\""}, "not closed");
  expect_problem(EbnfGrammar{std::string(40'000, 'a')}, "bytes");
}

TEST(GrammarLimits, Choices) {
  expect_problem(ChoiceGrammar{}, "empty");
  expect_problem(ChoiceGrammar{{"a", ""}}, "empty");
  expect_problem(ChoiceGrammar{std::vector<std::string>(3000, "a")}, "3000");
  EXPECT_EQ(problem(ChoiceGrammar{{"a", "b"}}), "");
}

TEST(GrammarLimits, Tools) {
  expect_problem(ToolCallGrammar{}, "no tool");
  expect_problem(ToolCallGrammar{{{"a", "", false}, {"a", "", false}}}, "two tools");
  expect_problem(ToolCallGrammar{{{"a\"b", "", false}}}, "name");
  expect_problem(ToolCallGrammar{{{"", "", false}}}, "name");
  expect_problem(ToolCallGrammar{{{"a", "[]", false}}}, "tool 'a'");
  expect_problem(ToolCallGrammar{{{"a", R"({"properties": {"x>y": {}}})", false}}}, "tool 'a'");
  EXPECT_EQ(problem(ToolCallGrammar{{{"get weather", R"({"properties": {"x y": {}}})", true}}}), "");
}

// ---- the end of the reasoning ----

TEST(ThinkClose, IsFoundHoweverItIsCut) {
  const std::string text = "a < b </thin </think>rest";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    ThinkCloseMatcher matcher;
    std::size_t taken = matcher.take(text.substr(0, cut));
    if (!matcher.complete()) taken += matcher.take(text.substr(cut));
    EXPECT_TRUE(matcher.complete());
    EXPECT_EQ(taken, text.size() - 4) << cut;
  }
}

class Recorder final : public TokenConstraint {
 public:
  Result<bool> fill_mask(std::span<std::uint32_t>) override { return false; }
  Result<> accept(TokenId token) override {
    seen.push_back(raw(token));
    return {};
  }
  bool is_finished() const override { return false; }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Recorder>(*this); }
  std::vector<int> seen;
};

TEST(ReasoningGate, HandsOnWhatComesAfterTheMarker) {
  auto tokens = std::make_shared<ReasoningTokens>();
  // 0 stop, 1 "x", 2 "</thi", 3 "nk>", 4 "nk>y", 5 "</think>", 6 a hole
  tokens->bytes = {"<eos>", "x", "</thi", "nk>", "nk>y", "</think>", ""};
  tokens->stop_tokens = {TokenId{0}};
  fill_reasoning_masks(*tokens);
  auto inner = std::make_unique<Recorder>();
  const Recorder* recorder = inner.get();
  const auto gate = make_reasoning_gate(tokens, std::move(inner), true);

  std::vector<std::uint32_t> mask(1);
  ASSERT_TRUE(*gate->fill_mask(mask));
  EXPECT_EQ(mask[0], 0b0111110u);  // no stop, no hole
  ASSERT_TRUE(gate->accept(TokenId{1}).has_value());
  ASSERT_TRUE(gate->accept(TokenId{2}).has_value());
  ASSERT_TRUE(*gate->fill_mask(mask));
  EXPECT_EQ(mask[0], 0b0101110u);  // "nk>y" would run past the end
  ASSERT_TRUE(gate->accept(TokenId{3}).has_value());
  EXPECT_TRUE(recorder->seen.empty());
  EXPECT_FALSE(*gate->fill_mask(mask));  // the inner constraint's word
  ASSERT_TRUE(gate->accept(TokenId{1}).has_value());
  EXPECT_EQ(recorder->seen, std::vector<int>{1});
}

TEST(ReasoningGate, MayEndWhereNoAnswerIsDemanded) {
  auto tokens = std::make_shared<ReasoningTokens>();
  tokens->bytes = {"<eos>", "x"};
  tokens->stop_tokens = {TokenId{0}};
  fill_reasoning_masks(*tokens);
  const auto gate = make_reasoning_gate(tokens, std::make_unique<Recorder>(), false);
  std::vector<std::uint32_t> mask(1);
  ASSERT_TRUE(*gate->fill_mask(mask));
  EXPECT_EQ(mask[0], 0b11u);
  ASSERT_TRUE(gate->accept(TokenId{0}).has_value());
  EXPECT_TRUE(gate->is_finished());
}

}  // namespace
}  // namespace pivot
