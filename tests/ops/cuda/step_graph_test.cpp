// A replayed step must equal an eager one, bit for bit, whatever the lengths were when it was captured
// (faults B12, B13): selection (index_topk 16: from 68 tokens on), the window of 128, pages of 256 tokens.
#include <gtest/gtest.h>

#include "engine/cuda_devices.h"
#include "model/runner.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot::test {
namespace {

class NoTaps : public TapSink {  // a sink keeps the step off the replayed path
 public:
  bool wants(std::string_view, std::int32_t) const override { return false; }
  void take(const Tap&) override {}
};

TEST(StepGraph, ReplayEqualsEagerAcrossEveryThreshold) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const auto backend = make_cuda_device(0);
  ASSERT_TRUE(backend) << backend.error().to_string();
  const std::filesystem::path folder = scratch_dir() / "tiny_graph";
  write_tiny_checkpoint(folder);
  const auto weights = load_or_die(folder);
  RunnerOptions options;
  options.max_context = 1100;
  options.sequences = 3;
  NoTaps no_taps;
  Runner replayed(weights, *backend, options), eager(weights, *backend, options);
  eager.set_taps(&no_taps);
  const std::vector<std::int32_t> ids = pseudo_random_ids(700, 5, 512);
  // From the first token on, so that the graph is captured at length 1 and replayed at every other.
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::span<const std::int32_t> one(&ids[i], 1);
    ASSERT_EQ(replayed.feed(0, one), eager.feed(0, one)) << "position " << i;
  }
  // Three sequences of different lengths in one step, captured while two of them are short.
  const std::vector<std::int32_t> prompt = pseudo_random_ids(60, 7, 512);
  for (Runner* runner : {&replayed, &eager}) (void)runner->feed(1, prompt);
  for (std::size_t i = 0; i < 220; ++i) {
    const std::vector<Runner::Share> shares = {{0, {ids[i]}}, {1, {ids[i + 1]}}, {2, {ids[i + 2]}}};
    ASSERT_EQ(replayed.step(shares), eager.step(shares)) << "step " << i;
  }
}

}  // namespace
}  // namespace pivot::test
