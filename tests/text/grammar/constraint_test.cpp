// What each kind of grammar lets through, on the embedded model's tokenizer.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "grammar_walk.h"
#include "support/embedded_model.h"
#include "text/chat/completion_parser.h"

#define NEED_GRAMMARS() \
  if (!grammars_available()) GTEST_SKIP() << "NEEDS XGRAMMAR: this build was made without it"

namespace pivot {
namespace {

using test::draw;
using test::Walk;
using test::walk;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = *Tokenizer::load(test::embedded_model_dir());
  return loaded;
}

GrammarCompiler& compiler() {
  static const std::unique_ptr<GrammarCompiler> made = [] {
    const std::vector<TokenId> stops = {*tokenizer().special().eos};
    return *GrammarCompiler::create(tokenizer(), stops, tokenizer().vocab_size());
  }();
  return *made;
}

std::unique_ptr<TokenConstraint> constrain(const AnswerGrammar& grammar,
                                           const ConstrainOptions& options = {}) {
  auto constraint = compiler().constrain(grammar, options);
  if (!constraint) {
    ADD_FAILURE() << constraint.error().to_string();
    return nullptr;
  }
  return *std::move(constraint);
}

Walk follow(const AnswerGrammar& grammar, std::string_view text, const ConstrainOptions& options = {}) {
  const auto constraint = constrain(grammar, options);
  return constraint ? walk(*constraint, tokenizer(), text) : Walk();
}

void expect_answer(const AnswerGrammar& grammar, std::string_view text) {
  const Walk result = follow(grammar, text);
  EXPECT_TRUE(result.complete) << text << "\n" << result.problem;
}
void expect_no_answer(const AnswerGrammar& grammar, std::string_view text) {
  EXPECT_FALSE(follow(grammar, text).complete) << text;
}

constexpr const char* kPerson =
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]})";

TEST(Constraint, JsonObject) {
  NEED_GRAMMARS();
  const JsonObjectGrammar grammar;
  expect_answer(grammar, "{}");
  expect_answer(grammar, "{\"a\": [1, 2.5e-3, null, true, \"\\u00e9 \\n ü\"], \"b\": {\"c\": {}}}");
  expect_answer(grammar, "{\n  \"a\": 1,\n  \"b\": [\n    2\n  ]\n}");
  expect_no_answer(grammar, "[1]");
  expect_no_answer(grammar, "{\"a\": 1");
  expect_no_answer(grammar, "{\"a\": 01}");
  expect_no_answer(grammar, "{'a': 1}");
  expect_no_answer(grammar, "Sure! {}");
}

TEST(Constraint, EndsByItselfWhereNothingMayFollow) {
  NEED_GRAMMARS();
  EXPECT_TRUE(follow(JsonObjectGrammar{}, "{\"a\": 1}").finished);
  EXPECT_TRUE(follow(ChoiceGrammar{{"yes", "no"}}, "yes").finished);
  // A number may go on.
  const Walk number = follow(JsonSchemaGrammar{R"({"type": "integer"})"}, "12");
  EXPECT_TRUE(number.complete);
  EXPECT_FALSE(number.finished);
}

TEST(Constraint, StrictSchemaHasNoOtherProperties) {
  NEED_GRAMMARS();
  const JsonSchemaGrammar strict{kPerson, true};
  expect_answer(strict, R"({"name": "Ada", "age": 36})");
  expect_answer(strict, R"({"name": "Ada"})");
  expect_no_answer(strict, R"({"age": 36})");
  expect_no_answer(strict, R"({"name": "Ada", "age": "36"})");
  expect_no_answer(strict, R"({"name": "Ada", "born": 1815})");
  const JsonSchemaGrammar open{kPerson, false};
  expect_answer(open, R"({"name": "Ada", "born": 1815})");
  expect_no_answer(open, R"({"born": 1815})");
}

TEST(Constraint, SchemaKeywords) {
  NEED_GRAMMARS();
  const JsonSchemaGrammar grammar{
      R"({"type": "object", "properties": {"kind": {"enum": ["a", "b", 3]}, "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"},
          "list": {"type": "array", "items": {"$ref": "#/$defs/pair"}, "minItems": 1, "maxItems": 2},
          "level": {"type": "integer", "minimum": 1, "maximum": 12}},
          "required": ["kind", "code", "list", "level"], "$defs": {"pair": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}})"};
  expect_answer(grammar, R"({"kind": "b", "code": "AB12", "list": [null, true], "level": 12})");
  expect_answer(grammar, R"({"kind": 3, "code": "ZZ1", "list": [false], "level": 1})");
  expect_no_answer(grammar, R"({"kind": "c", "code": "AB12", "list": [null], "level": 1})");
  expect_no_answer(grammar, R"({"kind": "b", "code": "ab12", "list": [null], "level": 1})");
  expect_no_answer(grammar, R"({"kind": "b", "code": "AB12", "list": [], "level": 1})");
  expect_no_answer(grammar, R"({"kind": "b", "code": "AB12", "list": [null, null, null], "level": 1})");
  expect_no_answer(grammar, R"({"kind": "b", "code": "AB12", "list": [null], "level": 13})");
}

TEST(Constraint, StrictSchemaRefusesWhatItCannotGuarantee) {
  NEED_GRAMMARS();
  const std::string schema = R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})";
  const auto strict = compiler().constrain(JsonSchemaGrammar{schema, true});
  ASSERT_FALSE(strict.has_value());
  EXPECT_EQ(strict.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(strict.error().message.find("uniqueItems"), std::string::npos) << strict.error().message;
  EXPECT_TRUE(compiler().constrain(JsonSchemaGrammar{schema, false}).has_value());
  // What the library tells by itself.
  const auto number =
      compiler().constrain(JsonSchemaGrammar{R"({"type": "number", "multipleOf": 0.5})", true});
  ASSERT_FALSE(number.has_value());
  EXPECT_EQ(number.error().code, ErrorCode::kUnsupported) << number.error().message;
}

TEST(Constraint, RegexMatchesTheWholeAnswer) {
  NEED_GRAMMARS();
  const RegexGrammar grammar{"(north|south)-[0-9]{2,3}"};
  expect_answer(grammar, "north-123");
  expect_answer(grammar, "south-12");
  expect_no_answer(grammar, "south-1");
  expect_no_answer(grammar, "the north-123");
  expect_no_answer(grammar, "north-1234");
}

TEST(Constraint, Ebnf) {
  NEED_GRAMMARS();
  const EbnfGrammar grammar{
      "root ::= sum\nsum ::= term (\"+\" term)*  # a comment\nterm ::= [0-9]+ | \"(\" sum \")\""};
  expect_answer(grammar, "1+(22+3)+4");
  expect_no_answer(grammar, "1+(22+3");
  expect_no_answer(grammar, "1-2");
}

TEST(Constraint, ChoiceOfAnyTexts) {
  NEED_GRAMMARS();
  const ChoiceGrammar grammar{{"yes", "yes, but", "\"quoted\" \\ back\nline", "naïve 北"}};
  for (const std::string& choice : grammar.choices) expect_answer(grammar, choice);
  expect_no_answer(grammar, "yes,");
  expect_no_answer(grammar, "no");
}

TEST(Constraint, MalformedGrammarsAreRefusedWithTheirReason) {
  NEED_GRAMMARS();
  const AnswerGrammar bad[] = {JsonSchemaGrammar{R"({"$ref": "#/$defs/none"})"},
                               JsonSchemaGrammar{R"({"type": "strange"})"},
                               JsonSchemaGrammar{R"({"type": "integer", "minimum": 5, "maximum": 3})"},
                               JsonSchemaGrammar{"false"},
                               RegexGrammar{"(?=a)b"},
                               RegexGrammar{"*"},
                               EbnfGrammar{"root ::= other"},
                               EbnfGrammar{"start ::= \"a\""}};
  for (const AnswerGrammar& grammar : bad) {
    const auto constraint = compiler().constrain(grammar);
    ASSERT_FALSE(constraint.has_value());
    EXPECT_EQ(constraint.error().code, ErrorCode::kInvalidArgument) << constraint.error().message;
    EXPECT_LT(constraint.error().message.size(), 2000u);
  }
}

// ---- tool calls ----

const std::string kCall =
    "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n"
    "<｜DSML｜parameter name=\"city\" string=\"true\">Kraków \"Old Town\" <a></｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">7</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

ToolCallGrammar weather(ToolCallGrammar::Use use, bool strict) {
  return {
      {{"weather",
        R"({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]})",
        strict},
       {"now", "", false}},
      use,
      true};
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(ToolCalls, RequiredIsOneBlockOfCalls) {
  NEED_GRAMMARS();
  const ToolCallGrammar grammar = weather(ToolCallGrammar::Use::kRequired, true);
  expect_answer(grammar, "\n\n" + kCall);
  EXPECT_TRUE(follow(grammar, "\n\n" + kCall).finished);
  expect_no_answer(grammar, "It rains.");
  expect_no_answer(grammar, "\n\n" + kCall + "\n\n" + kCall);
  expect_no_answer(grammar, "\n\n" + replaced(kCall, "weather", "whether"));
  expect_no_answer(grammar, "\n\n" + replaced(kCall, ">7<", ">seven<"));
  expect_no_answer(grammar, "\n\n" + replaced(kCall, "\"false\">7<", "\"true\">7<"));
  expect_no_answer(grammar, "\n\n" + replaced(kCall, "name=\"city\"", "name=\"town\""));
}

TEST(ToolCalls, OpenToolsTakeOtherArguments) {
  NEED_GRAMMARS();
  const ToolCallGrammar open = weather(ToolCallGrammar::Use::kRequired, false);
  const std::string extra = replaced(
      kCall, "</｜DSML｜invoke>",
      "<｜DSML｜parameter name=\"note\" string=\"true\">dry?</｜DSML｜parameter>\n</｜DSML｜invoke>");
  expect_answer(open, "\n\n" + extra);
  expect_no_answer(weather(ToolCallGrammar::Use::kRequired, true), "\n\n" + extra);
  // A tool without parameters.
  expect_answer(
      open,
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
}

TEST(ToolCalls, ParallelCallsOnlyWhereAllowed) {
  NEED_GRAMMARS();
  ToolCallGrammar grammar = weather(ToolCallGrammar::Use::kRequired, true);
  const std::string one = kCall.substr(kCall.find('\n') + 1, kCall.rfind("</") - kCall.find('\n') - 1);
  const std::string two = "\n\n" + replaced(kCall, "</｜DSML｜tool_calls>", one + "</｜DSML｜tool_calls>");
  expect_answer(grammar, two);
  grammar.parallel = false;
  expect_no_answer(grammar, two);
  expect_answer(grammar, "\n\n" + kCall);
}

TEST(ToolCalls, OptionalAllowsTextBeforeAndNothingAfter) {
  NEED_GRAMMARS();
  const ToolCallGrammar grammar = weather(ToolCallGrammar::Use::kOptional, true);
  expect_answer(grammar, "It rains < all day.");
  expect_answer(grammar, "Let me look.\n\n" + kCall);
  expect_no_answer(grammar, "Let me look.\n\n" + replaced(kCall, "weather", "whether"));
  EXPECT_TRUE(follow(grammar, "Let me look.\n\n" + kCall).finished);
}

// What the grammar lets through is what the parser reads back, whatever was drawn.
TEST(ToolCalls, EveryDrawnCallParses) {
  NEED_GRAMMARS();
  const ToolCallGrammar grammar{
      {{"set",
        R"({"type": "object", "properties": {"on": {"type": "boolean"}, "level": {"type": "integer",
                                      "minimum": 0, "maximum": 99}, "tag": {"enum": ["x", "y"]}}, "required": ["on", "level", "tag"]})",
        true}},
      ToolCallGrammar::Use::kRequired,
      false};
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const auto constraint = constrain(grammar);
    ASSERT_TRUE(constraint);
    const std::string text = draw(*constraint, tokenizer(), random, 2000);
    ASSERT_TRUE(constraint->is_finished()) << text;
    CompletionParser parser(ThinkingMode::kChat);
    parser.feed(text);
    parser.finish();
    ASSERT_EQ(parser.result().tool_calls.size(), 1u) << text;
    const ParsedToolCall& call = parser.result().tool_calls[0];
    EXPECT_TRUE(call.complete) << text;
    EXPECT_EQ(call.name, "set");
    EXPECT_EQ(parser.result().content, "");
    const auto arguments = nlohmann::json::parse(call.arguments);
    EXPECT_TRUE(arguments.at("on").is_boolean());
    EXPECT_TRUE(arguments.at("level").is_number_integer());
    EXPECT_LE(arguments.at("level").get<int>(), 99);
    EXPECT_TRUE(arguments.at("tag") == "x" || arguments.at("tag") == "y");
  }
}

// ---- properties ----

TEST(ConstraintProperty, EveryDrawnAnswerFollowsTheSchema) {
  NEED_GRAMMARS();
  const JsonSchemaGrammar grammar{
      R"({"type": "object", "properties": {"id": {"type": "string", "pattern": "^[a-f0-9]{4}$"},
          "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
          "size": {"type": "object", "properties": {"w": {"type": "integer", "minimum": 1, "maximum": 500}}, "required": ["w"]}},
          "required": ["id", "flags", "size"]})"};
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const auto constraint = constrain(grammar);
    ASSERT_TRUE(constraint);
    const std::string text = draw(*constraint, tokenizer(), random, 3000);
    ASSERT_TRUE(constraint->is_finished()) << text;
    const auto json = nlohmann::json::parse(text, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    EXPECT_EQ(json.size(), 3u);
    EXPECT_TRUE(std::regex_match(json.at("id").get<std::string>(), std::regex("[a-f0-9]{4}"))) << text;
    EXPECT_LE(json.at("flags").size(), 4u);
    EXPECT_GE(json.at("size").at("w").get<int>(), 1);
    EXPECT_LE(json.at("size").at("w").get<int>(), 500);
  }
}

TEST(ConstraintProperty, MaskAndAcceptAgree) {
  NEED_GRAMMARS();
  const RegexGrammar grammar{"[a-z]{1,3}(,[a-z]{1,3}){0,2}"};
  const auto constraint = constrain(grammar);
  ASSERT_TRUE(constraint);
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(mask_words(tokenizer().vocab_size())));
  ASSERT_TRUE(constraint->fill_mask(mask).has_value());
  int allowed = 0;
  for (std::int64_t id = 0; id < tokenizer().vocab_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const bool fits = mask_allows(mask, token);
    allowed += fits;
    EXPECT_EQ(constraint->clone()->accept(token).has_value(), fits) << tokenizer().token_bytes(token);
    if (!tokenizer().is_added(token)) {
      EXPECT_EQ(fits, std::regex_match(std::string(tokenizer().token_bytes(token)),
                                       std::regex("[a-z]{1,3}(,[a-z]{1,3}){0,2},?")))
          << tokenizer().token_bytes(token);
    }
  }
  EXPECT_GT(allowed, 26);
}

TEST(Constraint, CloneGoesItsOwnWay) {
  NEED_GRAMMARS();
  const auto first = constrain(ChoiceGrammar{{"north", "south"}});
  ASSERT_TRUE(first);
  const auto second = first->clone();
  EXPECT_TRUE(walk(*first, tokenizer(), "north").finished);
  EXPECT_FALSE(second->is_finished());
  EXPECT_TRUE(walk(*second, tokenizer(), "south").finished);
}

TEST(Constraint, MarkupTokensNeverComeInAnAnswer) {
  NEED_GRAMMARS();
  const auto constraint = constrain(RegexGrammar{"(.|\n)*"});
  ASSERT_TRUE(constraint);
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(mask_words(tokenizer().vocab_size())));
  const Result<bool> restricted = constraint->fill_mask(mask);
  ASSERT_TRUE(restricted.has_value());
  ASSERT_TRUE(*restricted);
  const SpecialTokens& special = tokenizer().special();
  for (const auto& token :
       {special.bos, special.user, special.assistant, special.think_open, special.think_close})
    EXPECT_FALSE(mask_allows(mask, *token)) << tokenizer().token_bytes(*token);
  EXPECT_TRUE(mask_allows(mask, *special.eos));
}

// ---- reasoning ----

TEST(Reasoning, GrammarStartsAfterIt) {
  NEED_GRAMMARS();
  const ConstrainOptions options{true};
  const JsonObjectGrammar grammar;
  EXPECT_TRUE(follow(grammar, "Let me see: {] is no JSON.</think>{\"a\": 1}", options).finished);
  EXPECT_FALSE(follow(grammar, "Let me see.</think>Well, {}", options).allowed);
  EXPECT_FALSE(follow(grammar, "still thinking", options).complete);
  // Without a grammar that demands an answer the reasoning may be all.
  EXPECT_TRUE(follow(weather(ToolCallGrammar::Use::kOptional, false), "still thinking", options).complete);
}

// ---- the compiler ----

TEST(Compiler, KeepsWhatItCompiled) {
  NEED_GRAMMARS();
  const std::vector<TokenId> stops = {*tokenizer().special().eos};
  const auto own = *GrammarCompiler::create(tokenizer(), stops, tokenizer().vocab_size());
  ASSERT_TRUE(own->constrain(JsonSchemaGrammar{kPerson, true}).has_value());
  ASSERT_TRUE(own->constrain(JsonSchemaGrammar{kPerson, true}).has_value());
  ASSERT_TRUE(own->constrain(JsonSchemaGrammar{kPerson, false}).has_value());
  ASSERT_FALSE(own->constrain(RegexGrammar{"("}).has_value());
  const GrammarStats stats = own->stats();
  EXPECT_EQ(stats.compiled, 2u);
  EXPECT_EQ(stats.cached, 1u);
  EXPECT_EQ(stats.refused, 1u);
  EXPECT_GT(stats.cache_bytes, 0u);
}

TEST(Compiler, CacheStaysWithinItsLimit) {
  NEED_GRAMMARS();
  GrammarLimits limits;
  limits.cache_bytes = 200'000;
  const std::vector<TokenId> stops = {*tokenizer().special().eos};
  const auto own = *GrammarCompiler::create(tokenizer(), stops, tokenizer().vocab_size(), limits);
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(own->constrain(RegexGrammar{"[a-z]+" + std::to_string(i)}).has_value());
  EXPECT_LE(own->stats().cache_bytes, limits.cache_bytes);
  EXPECT_EQ(own->stats().compiled, 40u);
}

TEST(Compiler, ManyThreadsAskAtOnce) {
  NEED_GRAMMARS();
  const std::vector<TokenId> stops = {*tokenizer().special().eos};
  const auto own = *GrammarCompiler::create(tokenizer(), stops, tokenizer().vocab_size());
  std::vector<std::thread> threads;
  std::atomic<int> finished{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto constraint = own->constrain(ChoiceGrammar{{"north", "south" + std::to_string(i % 2)}});
      if (constraint && walk(**constraint, tokenizer(), "north").finished) ++finished;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished, 8);
  EXPECT_EQ(own->stats().compiled, 2u);  // whoever came second waited for the first
}

// Texts that differ late: takes a while.
AnswerGrammar slow_grammar(int number) {
  std::string values;
  for (int i = 0; i < 400; ++i)
    values += fmt::format("{}\"value {} of many, number {}\"", i == 0 ? "" : ",", number, i * 7919);
  return JsonSchemaGrammar{"{\"enum\":[" + values + "]}", true};
}

TEST(Compiler, TellsThatTheTimeIsUpAndKeepsWhatComesLate) {
  NEED_GRAMMARS();
  GrammarLimits limits;
  limits.compile_timeout = std::chrono::milliseconds(1);
  const std::vector<TokenId> stops = {*tokenizer().special().eos};
  const auto own = *GrammarCompiler::create(tokenizer(), stops, tokenizer().vocab_size(), limits);
  // On a busy machine the time may be up before a thread takes the grammar: then the answer is another one,
  // and nothing is compiled.
  unsigned tries = 0;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string message;
  while (code == ErrorCode::kUnavailable) {
    const auto late = own->constrain(slow_grammar(static_cast<int>(++tries)));
    ASSERT_FALSE(late.has_value());
    code = late.error().code;
    message = late.error().message;
  }
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("longer than 1 ms"), std::string::npos) << message;
  EXPECT_EQ(own->stats().timed_out, tries);
  EXPECT_EQ(own->stats().refused, tries);
  while (own->stats().waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(own->stats().compiled, 1u);
  EXPECT_TRUE(own->constrain(slow_grammar(static_cast<int>(tries))).has_value());
}

TEST(Compiler, TakesNoMoreThanItsQueueHolds) {
  NEED_GRAMMARS();
  GrammarLimits limits;
  limits.threads = 1;
  limits.max_waiting = 2;
  const std::vector<TokenId> stops = {*tokenizer().special().eos};
  const auto own = *GrammarCompiler::create(tokenizer(), stops, tokenizer().vocab_size(), limits);
  std::atomic<int> compiled{0}, refused{0};
  for (int i = 0; i < 8; ++i) {
    own->constrain_later(slow_grammar(i), {}, [&](Result<std::unique_ptr<TokenConstraint>> constraint) {
      if (!constraint) {
        EXPECT_EQ(constraint.error().code, ErrorCode::kUnavailable);
      }
      ++(constraint ? compiled : refused);
    });
  }
  EXPECT_GT(refused, 0);
  while (compiled + refused < 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(compiled, 2);
  EXPECT_EQ(own->stats().refused, static_cast<std::uint64_t>(refused));
}

TEST(Compiler, StoppingTellsEverybodyOnce) {
  NEED_GRAMMARS();
  GrammarLimits limits;
  limits.threads = 1;
  const std::vector<TokenId> stops = {*tokenizer().special().eos};
  const auto own = *GrammarCompiler::create(tokenizer(), stops, tokenizer().vocab_size(), limits);
  std::atomic<int> told{0}, unavailable{0};
  for (int i = 0; i < 5; ++i) {
    own->constrain_later(slow_grammar(i / 2), {}, [&](Result<std::unique_ptr<TokenConstraint>> constraint) {
      ++told;
      if (!constraint && constraint.error().code == ErrorCode::kUnavailable) ++unavailable;
    });
  }
  own->stop();
  EXPECT_EQ(told, 5);
  EXPECT_GT(unavailable, 0);
  const auto later = own->constrain(RegexGrammar{"[a-z]+"});
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().code, ErrorCode::kUnavailable);
}

TEST(Compiler, RefusesStopTokensThatDoNotExist) {
  const std::vector<TokenId> none;
  EXPECT_FALSE(GrammarCompiler::create(tokenizer(), none, tokenizer().vocab_size()).has_value());
  const std::vector<TokenId> beyond = {static_cast<TokenId>(tokenizer().vocab_size())};
  EXPECT_FALSE(GrammarCompiler::create(tokenizer(), beyond, tokenizer().vocab_size()).has_value());
}

TEST(Compiler, WithoutTheLibraryItSaysSo) {
  if (grammars_available()) GTEST_SKIP() << "this build has the library";
  const auto constraint = compiler().constrain(JsonObjectGrammar{});
  ASSERT_FALSE(constraint.has_value());
  EXPECT_EQ(constraint.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace pivot
