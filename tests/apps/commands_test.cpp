// The built program from outside: exit codes, error sentences, JSON shapes.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "run_program.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

using Json = nlohmann::json;

std::string file_with(const std::string& contents) {
  const auto path = scratch_dir() / "input.json";
  std::ofstream(path) << contents;
  return path.string();
}

// A failure is one line on standard error that begins with "pivot: " and holds `words`; standard output stays
// empty.
void expect_failure(const ProgramResult& result, int exit_code, const std::string& words) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("pivot: ", 0), 0u) << result.err;
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
}

TEST(Program, SaysItsVersion) {
  EXPECT_NE(run_pivot({"--version"}).out.find("commit"), std::string::npos);
  const ProgramResult result = run_pivot({"--version", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const Json json = Json::parse(result.out);
  for (const char* key : {"version", "commit", "build_type"}) EXPECT_TRUE(json[key].is_string()) << key;
  EXPECT_TRUE(json["backends"].is_array() && !json["backends"].empty());
  EXPECT_TRUE(json["archs"].is_array() && !json["archs"].empty());
}

TEST(Program, HelpsWithEveryCommand) {
  const ProgramResult help = run_pivot({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"generate", "chat", "logits", "knobs"}) {
    EXPECT_NE(help.out.find(command), std::string::npos);
    const ProgramResult own = run_pivot({command, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_NE(own.out.find("--json"), std::string::npos) << own.out;
  }
}

TEST(Program, RefusesBadUsage) {
  expect_failure(run_pivot({}), 64, "--help");
  expect_failure(run_pivot({"dance"}), 64, "dance");
  expect_failure(run_pivot({"knobs", "--loud"}), 64, "pivot knobs --help");
  expect_failure(run_pivot({"generate"}), 64, "MODEL");
  expect_failure(run_pivot({"generate", "embedded", "--max-tokens", "many", "--prompt", "x"}), 64,
                 "--max-tokens");
  expect_failure(run_pivot({"--log-level", "loud", "knobs"}), 64, "log level");
}

TEST(Knobs, PrintsTheTable) {
  EXPECT_NE(run_pivot({"knobs"}).out.find("index_topk"), std::string::npos);
  const ProgramResult result = run_pivot({"knobs", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const Json json = Json::parse(result.out);
  std::set<std::string> names;
  for (const Json& knob : json["knobs"]) {
    names.insert(knob["name"]);
    EXPECT_TRUE(knob["values"].is_string() && knob["default"].is_string() && knob["effect"].is_string());
    EXPECT_TRUE(knob["changes_state"].is_boolean());
  }
  for (const char* name : {"kv", "index_keys", "index_topk", "expert_act", "mhc", "wo_a_act"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  // The environment form of an option.
  EXPECT_EQ(run_pivot({"knobs"}, "", {{"PIVOT_JSON", "1"}}).out, result.out);
}

TEST(Generate, RefusesBadPrompts) {
  const auto generate = [](std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.begin(), {"generate", "embedded"});
    return run_pivot(arguments, input);
  };
  expect_failure(generate({}), 64, "one prompt is wanted");
  expect_failure(generate({"--prompt", ""}), 64, "one prompt is wanted");
  expect_failure(generate({"--prompt", "a", "--file", "b"}), 64, "found 2");
  expect_failure(generate({"--file", "-"}), 64, "empty");
  expect_failure(generate({"--file", "/nonexistent/prompt"}), 66, "/nonexistent/prompt");
  expect_failure(generate({"--ids", file_with("[1, 2, 99999]")}), 64, "entry 2 is 99999");
  expect_failure(generate({"--ids", file_with("[-1]")}), 64, "entry 0 is -1");
  expect_failure(generate({"--ids", file_with("[18446744073709551615]")}), 64, "entry 0");
  expect_failure(generate({"--ids", file_with("[]")}), 64, "empty");
  expect_failure(generate({"--ids", file_with("[1.5]")}), 65, "integer");
  expect_failure(generate({"--ids", file_with("hello")}), 65, "JSON");
  expect_failure(generate({"--messages", file_with("[{\"role\":\"robot\"}]")}), 64, "role");
  expect_failure(generate({"--prompt", "a", "--raw", "--system", "s"}), 64, "--raw");
  expect_failure(generate({"--prompt", "many more tokens than these", "--max-context", "4"}), 65,
                 "--max-context");
  expect_failure(generate({"--prompt", "a", "--max-context", "99999999"}), 64, "context");
  expect_failure(generate({"--prompt", "a", "--logprobs", "3"}), 64, "--json");
  expect_failure(generate({"--prompt", "a", "--top-p", "1.5"}), 64, "top_p");
  expect_failure(generate({"--prompt", "a", "--greedy", "--temperature", "1"}), 64, "--greedy");
  expect_failure(generate({"--prompt", "a", "--stop", ""}), 64, "stop");
  expect_failure(generate({"--prompt", "a", "--effort", "medium"}), 64, "medium");
  expect_failure(generate({"--prompt", "a", "--encoding", "0731", "--effort", "max"}), 65, "0731");
  expect_failure(generate({"--prompt", "a", "--think", "maybe"}), 64, "--think");
}

TEST(Generate, RefusesBadDevicesKnobsAndModels) {
  expect_failure(run_pivot({"generate", "embedded", "--prompt", "a", "--knob", "colour=red"}), 64, "colour");
  expect_failure(run_pivot({"generate", "embedded", "--prompt", "a", "--knob", "kv=fp3"}), 64, "fp3");
  expect_failure(run_pivot({"generate", "embedded", "--prompt", "a", "--device", "abacus"}), 64, "abacus");
  expect_failure(run_pivot({"generate", "embedded", "--prompt", "a", "--backend", "abacus"}), 64,
                 "--backend");
  expect_failure(run_pivot({"generate", "embedded", "--prompt", "a", "--threads", "-3"}), 64, "threads");
  expect_failure(run_pivot({"generate", "/nonexistent/model", "--prompt", "a"}), 66, "/nonexistent/model");
  const ProgramResult cuda = run_pivot({"generate", "embedded", "--prompt", "a", "--device", "cuda:99"});
  EXPECT_NE(cuda.exit_code, 0);
  EXPECT_NE(cuda.err.find("cuda"), std::string::npos) << cuda.err;
}

TEST(Generate, GivesOneJsonObject) {
  const ProgramResult result =
      run_pivot({"generate", "embedded", "--prompt", "What is the secret code for Bethel?", "--json",
                 "--logprobs", "2", "--max-tokens", "4", "--greedy"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  for (const char* key : {"model", "device", "knobs", "text", "content", "reasoning", "finish_reason"}) {
    EXPECT_TRUE(json[key].is_string()) << key;
  }
  EXPECT_EQ(json["knobs"], "reference");
  EXPECT_TRUE(json["tool_calls"].is_array());
  EXPECT_EQ(json["finish_reason"], "length");
  ASSERT_EQ(json["tokens"].size(), 4u);
  std::string joined;
  for (const Json& token : json["tokens"]) {
    joined += token["text"].get<std::string>();
    EXPECT_LE(token["logprob"].get<double>(), 0);
    ASSERT_EQ(token["top"].size(), 2u);
    EXPECT_EQ(token["top"][0]["id"], token["id"]);  // greedy
    EXPECT_GE(token["top"][0]["logprob"].get<double>(), token["top"][1]["logprob"].get<double>());
  }
  EXPECT_EQ(joined, json["text"].get<std::string>());
  EXPECT_EQ(json["timings"]["generated_tokens"], 4);
  EXPECT_EQ(json["timings"]["prompt_tokens"], json["prompt_tokens"]);
  EXPECT_EQ(json["sampling"]["temperature"], 0);
}

TEST(Generate, ReadsItsOptionsFromTheEnvironment) {
  const ProgramResult result = run_pivot({"generate", "embedded", "--prompt", "a", "--json"}, "",
                                         {{"PIVOT_MAX_TOKENS", "2"}, {"PIVOT_GREEDY", "1"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["tokens"].size(), 2u);
  expect_failure(run_pivot({"generate", "embedded", "--prompt", "a"}, "", {{"PIVOT_MAX_TOKENS", "two"}}), 64,
                 "two");
}

TEST(Generate, TakesOneValueForEachKnobAndStop) {
  const ProgramResult result =
      run_pivot({"generate", "--knob", "kv=bf16", "--stop", "zzz", "--knob", "index_keys=bf16,index_topk=all",
                 "embedded", "--prompt", "a", "--json", "--greedy", "--max-tokens", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["knobs"], "kv=bf16 index_keys=bf16 index_topk=all");
}

TEST(Generate, RepeatsWithASeed) {
  const auto sample = [](const char* seed) {
    const ProgramResult result =
        run_pivot({"generate", "embedded", "--prompt", "Once upon a time", "--temperature", "1",
                   "--max-tokens", "12", "--seed", seed, "-q"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  };
  EXPECT_EQ(sample("5"), sample("5"));
  EXPECT_NE(sample("5"), sample("6"));
}

TEST(Generate, StopsBeforeAStopString) {
  const ProgramResult all =
      run_pivot({"generate", "embedded", "--greedy", "--file", "-", "-q"}, "What is the secret code?");
  ASSERT_EQ(all.exit_code, 0) << all.err;
  const std::size_t at = all.out.find("code");
  ASSERT_NE(at, std::string::npos) << all.out;
  const ProgramResult cut =
      run_pivot({"generate", "embedded", "--greedy", "--file", "-", "--stop", "code", "--json"},
                "What is the secret code?");
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  const Json json = Json::parse(cut.out);
  EXPECT_EQ(json["text"].get<std::string>(), all.out.substr(0, at));
  EXPECT_EQ(json["finish_reason"], "stop");
}

TEST(Generate, FailsWhenItsOutputCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  const std::string command = std::string(PIVOT_BINARY) +
                              " generate embedded --prompt a --greedy --max-tokens 3 >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 74);
}

TEST(Generate, EndsAnAnswerOnInterrupt) {
  TerminalProgram program({"generate", "embedded", "--prompt", "Tell me", "--greedy", "--ignore-eos",
                           "--max-tokens", "0", "--max-context", "60000"});
  ASSERT_TRUE(program.wait_for("e")) << program.screen();
  program.type("\x03");
  EXPECT_EQ(program.exit_code(), 130) << program.screen();
  EXPECT_NE(program.screen().find("cancelled"), std::string::npos) << program.screen();
}

TEST(Chat, AnswersLinesOfAPipe) {
  const ProgramResult result = run_pivot({"chat", "embedded", "--greedy", "--json", "--max-tokens", "20"},
                                         "hello\n\nagain\\\nand more\n");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<Json> turns;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) turns.push_back(Json::parse(line));
  ASSERT_EQ(turns.size(), 2u) << result.out;
  EXPECT_EQ(turns[0]["timings"]["reused_tokens"], 0);
  // The state of the first turn, its answer included, is used again.
  const int first =
      turns[0]["timings"]["prompt_tokens"].get<int>() + turns[0]["timings"]["generated_tokens"].get<int>();
  EXPECT_GE(turns[1]["timings"]["reused_tokens"].get<int>(), first - 1);
  EXPECT_EQ(turns[1]["role"], "assistant");
}

TEST(Chat, PrintsOnlyAnswersIntoAPipe) {
  const ProgramResult result =
      run_pivot({"chat", "embedded", "--greedy", "--max-tokens", "5"}, "hi\n/help\n/quit\nno\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace pivot::test
