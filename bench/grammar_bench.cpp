// Structured output on a tokenizer: time to prepare it, to compile a grammar, and to compute a token mask.
//   grammar_bench TOKENIZER.json [NAME=FILE...]
// A FILE holds a JSON Schema, or "regex:" and an expression; its answer is drawn at random from what the
// masks allow.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace pivot;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Case {
  std::string name;
  AnswerGrammar grammar;
  std::string answer;  // a text that the grammar accepts
};

constexpr const char* kPerson =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},)"
    R"("email":{"type":"string","pattern":"^[a-z]+@[a-z]+\\.(com|org)$"},)"
    R"("tags":{"type":"array","items":{"enum":["red","green","blue"]}},)"
    R"("home":{"type":"object","properties":{"street":{"type":"string"},)"
    R"("number":{"type":["integer","null"]}},"required":["street","number"]}},)"
    R"("required":["name","age","email","tags","home"]})";
constexpr const char* kPersonAnswer = R"({"name": "Ada Lovelace, first of programmers", "age": 36, )"
                                      R"("email": "ada@engine.org", "tags": ["red", "blue"], )"
                                      R"("home": {"street": "St James's Square", "number": 12}})";
constexpr const char* kWeather = R"({"type":"object","properties":{"city":{"type":"string"},)"
                                 R"("days":{"type":"integer","minimum":1,"maximum":14},)"
                                 R"("units":{"enum":["metric","imperial"]}},"required":["city"]})";

std::vector<Case> cases() {
  const std::string call =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
      "string=\"true\">Kraków"
      "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">7</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  ToolCallGrammar required{{{"weather", kWeather, true}}, ToolCallGrammar::Use::kRequired, true};
  ToolCallGrammar optional = required;
  optional.use = ToolCallGrammar::Use::kOptional;
  std::string numbers;
  for (int i = 0; i < 1000; ++i) numbers += fmt::format("{}\"value number {}\"", i == 0 ? "" : ",", i * 7919);
  return {
      {"json_object", JsonObjectGrammar{}, kPersonAnswer},
      {"schema", JsonSchemaGrammar{kPerson, true}, kPersonAnswer},
      {"regex", RegexGrammar{"[A-Z]{3}-[0-9]{4}-(north|south)"}, "ABC-2048-north"},
      {"choice", ChoiceGrammar{{"positive", "negative", "neutral"}}, "neutral"},
      {"enum of 1000", JsonSchemaGrammar{"{\"enum\":[" + numbers + "]}", true}, "\"value number 7919\""},
      {"tool required", required, "\n\n" + call},
      {"tool optional", optional,
       "The weather there is best asked for, so I will look it up now.\n\n" + call},
  };
}

// Where no answer is given: some token that the mask allows, longer texts first (a stop token only if nothing
// else is left).
TokenId pick(const Tokenizer& tokenizer, std::span<const std::uint32_t> mask, bool restricted,
             std::mt19937& random) {
  std::vector<TokenId> allowed;
  for (std::int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if ((!restricted || mask_allows(mask, token)) && token != tokenizer.special().eos)
      allowed.push_back(token);
  }
  return allowed.empty() ? *tokenizer.special().eos : allowed[random() % allowed.size()];
}

void measure(GrammarCompiler& compiler, const Tokenizer& tokenizer, std::int64_t vocab_size,
             const Case& one) {
  Clock::time_point start = Clock::now();
  auto constraint = compiler.constrain(one.grammar);
  const double compile_seconds = seconds_since(start);
  if (!constraint) {
    fmt::print("{:<16} {:9.2f} ms  refused: {}\n", one.name, compile_seconds * 1e3,
               constraint.error().to_string());
    return;
  }
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(mask_words(vocab_size)));
  const std::vector<TokenId> answer = tokenizer.encode(one.answer);
  const std::size_t count = answer.empty() ? 200 : answer.size();
  std::mt19937 random(1);
  std::vector<double> microseconds;
  while (microseconds.size() < count && !(*constraint)->is_finished()) {
    start = Clock::now();
    const auto restricted = (*constraint)->fill_mask(mask);
    double seconds = seconds_since(start);
    if (!restricted) {
      fmt::print("{:<16} {}\n", one.name, restricted.error().to_string());
      return;
    }
    const TokenId token =
        answer.empty() ? pick(tokenizer, mask, *restricted, random) : answer[microseconds.size()];
    if (*restricted && !mask_allows(mask, token)) {
      fmt::print("{:<16} the mask before token {} forbids it: '{}'\n", one.name, raw(token),
                 tokenizer.token_bytes(token));
      return;
    }
    start = Clock::now();
    const auto accepted = (*constraint)->accept(token);
    seconds += seconds_since(start);
    microseconds.push_back(seconds * 1e6);
    if (!accepted) {
      fmt::print("{:<16} {}\n", one.name, accepted.error().to_string());
      return;
    }
  }
  std::sort(microseconds.begin(), microseconds.end());
  const auto quantile = [&](double q) {
    return microseconds[static_cast<std::size_t>(q * static_cast<double>(microseconds.size() - 1))];
  };
  fmt::print("{:<16} {:9.2f} ms  {:6} tokens  mask {:8.1f} us median  {:8.1f} us p90  {:9.1f} us max{}\n",
             one.name, compile_seconds * 1e3, microseconds.size(), quantile(0.5), quantile(0.9),
             quantile(1.0), (*constraint)->is_finished() ? "" : "  (not finished)");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: grammar_bench TOKENIZER.json [NAME=FILE...]\n");
    return 64;
  }
  auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer || !tokenizer->special().eos) {
    fmt::print(stderr, "grammar_bench: {}\n",
               tokenizer ? "no end-of-sentence token" : tokenizer.error().to_string());
    return 65;
  }
  const std::vector<TokenId> stops = {*tokenizer->special().eos};
  const Clock::time_point start = Clock::now();
  auto compiler = GrammarCompiler::create(*tokenizer, stops, tokenizer->vocab_size());
  if (!compiler) {
    fmt::print(stderr, "grammar_bench: {}\n", compiler.error().to_string());
    return 69;
  }
  fmt::print("{} tokens, prepared in {:.0f} ms\n", tokenizer->vocab_size(), seconds_since(start) * 1e3);
  std::vector<Case> list = argc > 2 ? std::vector<Case>() : cases();
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t split = argument.find('=');
    auto text = read_file(argument.substr(split + 1));
    if (!text) {
      fmt::print(stderr, "grammar_bench: {}\n", text.error().to_string());
      return 66;
    }
    if (text->starts_with("regex:"))
      list.push_back({argument.substr(0, split), RegexGrammar{text->substr(6)}, ""});
    else
      list.push_back({argument.substr(0, split), JsonSchemaGrammar{*text, false}, ""});
  }
  for (const Case& one : list) measure(**compiler, *tokenizer, tokenizer->vocab_size(), one);
  fmt::print("cache: {} bytes\n", (*compiler)->stats().cache_bytes);
  return 0;
}
