// Canaries on an engine with the embedded model, right and disturbed.
#include "recall/canary.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "base/file.h"
#include "engine/engine.h"
#include "recall/embedded.h"
#include "recall/fault.h"
#include "recall/step_probe.h"
#include "support/test_data.h"

namespace pivot::recall {
namespace {

std::unique_ptr<Engine> engine_on(std::shared_ptr<Backend> backend) {
  EngineOptions options;
  options.weights = embedded_weights();
  options.backend = std::move(backend);
  options.max_context = 1024;
  options.max_sequences = 2;
  auto engine = Engine::create(std::move(options));
  EXPECT_TRUE(engine) << engine.error().to_string();
  return *std::move(engine);
}

CanaryOptions canary_options() {
  CanaryOptions options;
  options.tokenizer = &embedded_tokenizer();
  options.stop_tokens = embedded_subject().stop_tokens;
  options.text = read_file(test::source_dir() / "models/texts/hebrews.txt").value();
  options.wording = Wording::kNeedle;
  options.lengths = {512, 768, 32768};  // the last does not fit and is left out
  options.max_share = 1;                // without a pause
  options.first_delay = std::chrono::milliseconds(0);
  return options;
}

// The first `count` results.
std::vector<CanaryResult> results_of(Engine& engine, CanaryOptions options, std::size_t count) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<CanaryResult> results;
  options.on_result = [&](const CanaryResult& result) {
    const std::lock_guard lock(mutex);
    results.push_back(result);
    changed.notify_all();
  };
  const auto canary = Canary::start(engine, std::move(options)).value();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return results.size() >= count; });
  std::vector<CanaryResult> first(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(count));
  lock.unlock();
  return first;
}

TEST(Canary, FindsFactsAndLeavesTheCacheAlone) {
  const auto engine = engine_on(embedded_subject().backend);
  std::set<std::int64_t> lengths;
  for (const CanaryResult& result : results_of(*engine, canary_options(), 4)) {
    EXPECT_EQ(result.outcome, CanaryOutcome::kFound) << result.id << ": " << result.answer;
    EXPECT_EQ(result.share_found, 1);
    EXPECT_GT(result.busy_seconds, 0);
    EXPECT_GT(result.distance_tokens, 0);
    EXPECT_LT(result.distance_tokens, result.prompt_tokens);
    lengths.insert(result.prompt_tokens / 256);
  }
  EXPECT_EQ(lengths.size(), 2u);  // both lengths
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prefix.entries, 0);
  EXPECT_EQ(stats.prefix.queries, 0u);
}

TEST(Canary, SaysThatAFaultyBackendLosesThem) {
  const AttributionSubject subject = embedded_subject();
  const auto engine = engine_on(
      make_faulty_backend(subject.backend, subject.weights, subject.knobs, Fault::kZeroedExperts).value());
  const std::vector<CanaryResult> results = results_of(*engine, canary_options(), 2);
  for (const CanaryResult& result : results) EXPECT_EQ(result.outcome, CanaryOutcome::kLost) << result.answer;
  EXPECT_EQ(results.back().share_found, 0);
}

TEST(Canary, FailsWhereTheEngineRefuses) {
  const auto engine = engine_on(embedded_subject().backend);
  engine->stop();
  const CanaryResult result = results_of(*engine, canary_options(), 1).front();
  EXPECT_EQ(result.outcome, CanaryOutcome::kFailed);
  EXPECT_NE(result.answer, "");
}

TEST(Canary, RefusesWhatCannotWork) {
  const auto engine = engine_on(embedded_subject().backend);
  CanaryOptions options = canary_options();
  options.max_share = 0;
  EXPECT_EQ(Canary::start(*engine, options).error().code, ErrorCode::kInvalidArgument);
  options = canary_options();
  options.lengths = {4096};
  EXPECT_NE(Canary::start(*engine, options).error().message.find("context is 1024"), std::string::npos);
  options = canary_options();
  options.text = "too short\n";
  EXPECT_FALSE(Canary::start(*engine, options));
}

TEST(Canary, SpecsMeetEveryLengthDepthAndResidue) {
  const CanaryOptions options = canary_options();
  std::set<std::tuple<std::int64_t, double, std::int64_t>> met;
  for (std::int64_t i = 0; i < 36; ++i) {
    const CaseSpec spec = canary_spec(options, i);
    met.insert({spec.length_tokens, spec.depth, spec.residue});
  }
  EXPECT_EQ(met.size(), 3u * 3u * 4u);
}

TEST(Canary, PausesSoThatItsShareHolds) {
  EXPECT_DOUBLE_EQ(pause_seconds(1, 0.005), 199);
  EXPECT_DOUBLE_EQ(pause_seconds(0, 0.005), 0);
  EXPECT_DOUBLE_EQ(pause_seconds(3, 1), 0);
  EXPECT_EQ(distance_label(1), "1k");
  EXPECT_EQ(distance_label(1024), "1k");
  EXPECT_EQ(distance_label(1025), "2k");
  EXPECT_EQ(distance_label(1 << 20), "1m");
  EXPECT_EQ(distance_label(1 << 24), "1m");
}

}  // namespace
}  // namespace pivot::recall
