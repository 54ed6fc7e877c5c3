// `pivot bench` from outside: what it refuses, and the shape of its JSON.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_program.h"
#include "support/json_schema.h"

namespace pivot::test {
namespace {

using Json = nlohmann::json;

std::string bench_failure(std::vector<std::string> arguments, int exit_code) {
  arguments.insert(arguments.begin(), "bench");
  const ProgramResult result = run_pivot(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("pivot: ", 0), 0u) << result.err;
  return result.err;
}

bool holds(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

Json bench_json(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  for (const char* word : {"--device", "cpu", "--working-set", "4", "--json"}) arguments.emplace_back(word);
  const ProgramResult result = run_pivot(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (result.exit_code != 0) return {};
  for (const std::string& fault : schema_faults(result.out, "bench.json")) ADD_FAILURE() << fault;
  return Json::parse(result.out);
}

TEST(Bench, RefusesWhatIsNotPossible) {
  EXPECT_TRUE(holds(bench_failure({}, 64), "subcommand"));
  EXPECT_TRUE(holds(bench_failure({"decode", "--device", "cpu"}, 64), "MODEL"));
  EXPECT_TRUE(holds(bench_failure({"decode", "embedded", "--synthetic", "flash"}, 64), "exclude"));
  EXPECT_TRUE(holds(bench_failure({"decode", "--synthetic", "spark", "--device", "cpu"}, 64), "spark"));
  EXPECT_TRUE(
      holds(bench_failure({"decode", "embedded", "--device", "cpu", "--batch", "0"}, 64), "--batch 0"));
  EXPECT_TRUE(holds(bench_failure({"decode", "embedded", "--device", "cpu", "--steps", "1"}, 64), "--steps"));
  EXPECT_TRUE(
      holds(bench_failure({"decode", "embedded", "--device", "cpu", "--layers", "2"}, 64), "--layers"));
  EXPECT_TRUE(
      holds(bench_failure({"prefill", "embedded", "--device", "cpu", "--tokens", "0"}, 64), "--tokens 0"));
  EXPECT_TRUE(
      holds(bench_failure({"decode", "/nonexistent/model", "--device", "cpu"}, 66), "/nonexistent/model"));
  EXPECT_TRUE(holds(bench_failure({"kernels", "--device", "cpu", "--op", "gemm"}, 64), "experts-fp4"));
  EXPECT_TRUE(holds(bench_failure({"kernels", "--device", "cpu", "--batch", "0"}, 64), "--batch 0"));
  EXPECT_TRUE(
      holds(bench_failure({"kernels", "--device", "cpu", "--working-set", "0"}, 64), "--working-set"));
  EXPECT_TRUE(holds(bench_failure({"kernels", "--device", "abacus"}, 64), "abacus"));
  const std::string cuda = run_pivot({"bench", "kernels", "--device", "cuda:99"}).err;
  EXPECT_TRUE(holds(cuda, "cuda:99")) << cuda;
}

TEST(Bench, RefusesAModelThatDoesNotFitBeforeItAllocates) {
  // All experts of 1000 layers: 3.6 TB.
  const std::string sentence =
      bench_failure({"decode", "--synthetic", "flash-layer", "--layers", "1000", "--device", "cpu"}, 71);
  EXPECT_TRUE(holds(sentence, "1000 layers")) << sentence;
  EXPECT_TRUE(holds(sentence, "available")) << sentence;
  EXPECT_TRUE(holds(sentence, "--layers")) << sentence;
}

TEST(Bench, OperatorsOnACpu) {
  const Json json = bench_json({"kernels", "--op", "router,rope", "--batch", "1,3", "--tokens", "16"});
  ASSERT_EQ(json["results"].size(), 4u);  // router: two batches and a prompt; rope: rows
  const Json& router = json["results"][1];
  EXPECT_EQ(router["operator"], "router");
  EXPECT_EQ(router["tokens"], 3);
  EXPECT_EQ(router["bytes"], 256 * 4096 * 2);
  EXPECT_EQ(router["flops"], 2.0 * 256 * 4096 * 3);
  EXPECT_EQ(json["results"][2]["prompt"], true);
  EXPECT_EQ(json["results"][3]["operator"], "rope");
  EXPECT_EQ(json["floors"]["peaks"][0]["instruction"], "fp32 fma");
  EXPECT_GT(json["floors"]["read_bytes_per_second"], 0);
}

TEST(Bench, StepsOfACheckpoint) {
  const Json json =
      bench_json({"decode", "embedded", "--context", "300", "--batch", "1,2", "--steps", "3", "--breakdown"});
  ASSERT_EQ(json["results"].size(), 2u);
  const Json& one = json["results"][0];
  EXPECT_EQ(one["logits_finite"], true);
  EXPECT_EQ(one["breakdown"]["operators"].size(), 11u);
  EXPECT_GE(one["breakdown"]["step_over_operators"], 1.0);
  EXPECT_TRUE(one.contains("session_step_ms"));
  EXPECT_FALSE(one.contains("extrapolated"));
  EXPECT_EQ(json["model"], "embedded");

  const Json prefill = bench_json({"prefill", "embedded", "--tokens", "130", "--chunk", "64"});
  EXPECT_EQ(prefill["results"][0]["tokens"], 130);
  EXPECT_EQ(prefill["results"][0]["chunk"], 64);
  EXPECT_GT(prefill["results"][0]["flops"], 1e9);
}

TEST(Bench, TablesForPeople) {
  const ProgramResult result =
      run_pivot({"bench", "kernels", "--device", "cpu", "--working-set", "2", "--op", "rms-norm,top-k"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* words : {"reading memory", "fp32 fma", "rms-norm", "top-k", "bound"})
    EXPECT_TRUE(holds(result.out, words)) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace pivot::test
