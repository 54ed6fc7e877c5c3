// The probe of a running server against the probe that keeps everything.
#include "recall/step_probe.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/devices.h"
#include "recall/embedded.h"

namespace pivot::recall {
namespace {

// What a step probe saw of a case, by position and layer.
std::map<std::pair<std::int64_t, std::int32_t>, StepFidelity> watch(StepProbeOptions options,
                                                                    std::int32_t topk = 64,
                                                                    std::shared_ptr<Backend> backend = {}) {
  const std::vector<Case> cases = embedded_cases({{Task::kSingle}, {600}, {0.4}, {1}, 4, 1, 11});
  const AttributionSubject subject = embedded_subject();
  std::map<std::pair<std::int64_t, std::int32_t>, StepFidelity> seen;
  options.max_share = 1;
  options.on_measured = [&](const StepFidelity& f) { seen[{f.position, f.layer}] = f; };
  const auto probe =
      std::make_shared<StepProbe>(backend ? backend : subject.backend, subject.weights, options);
  SessionOptions session_options;
  session_options.weights = subject.weights;
  session_options.backend = probe;
  session_options.knobs.index_topk = topk;
  session_options.chunk_tokens = 256;  // the same steps on every back-end
  session_options.max_context = 1024;
  const auto session = Session::create(std::move(session_options)).value();
  const CaseRunner runner{session.get(),  subject.tokenizer, subject.stop_tokens,
                          Path::kOneShot, nullptr,           nullptr};
  EXPECT_TRUE(runner.run(cases[0]).value().score.exact);
  EXPECT_EQ(probe->measured(), seen.size());
  return seen;
}

// Runs steps as a back-end that records them does, in which nothing may be read back.
class Recording final : public ForwardingBackend {
 public:
  explicit Recording(std::shared_ptr<Backend> backend) : ForwardingBackend(std::move(backend)) {}

  std::int64_t recorded() const { return recorded_; }
  std::int64_t read_inside() const { return read_inside_; }

  bool replays_steps() const override { return true; }
  std::uint64_t replayed_steps() const override { return 7; }
  void run_step(const StepKey& key, const std::function<void()>& record) override {
    inside_ = true;
    inner().run_step(key, record);
    inside_ = false;
    ++recorded_;
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    read_inside_ += inside_ ? 1 : 0;
    inner().download(host, device, bytes);
  }

 private:
  bool inside_ = false;
  std::int64_t recorded_ = 0;
  std::int64_t read_inside_ = 0;
};

std::vector<QueryFidelity> offline() {
  const std::vector<Case> cases = embedded_cases({{Task::kSingle}, {600}, {0.4}, {1}, 4, 1, 11});
  const AttributionSubject subject = embedded_subject();
  const auto probe = std::make_shared<Probe>(subject.backend, subject.weights, ProbeOptions{});
  SessionOptions session_options;
  session_options.weights = subject.weights;
  session_options.backend = probe;
  session_options.max_context = 1024;
  const auto session = Session::create(std::move(session_options)).value();
  const CaseRunner runner{session.get(),  subject.tokenizer, subject.stop_tokens,
                          Path::kOneShot, probe.get(),       nullptr};
  EXPECT_TRUE(runner.run(cases[0]));
  return probe->fidelity();
}

TEST(StepProbe, SeesTheMassThatTheFullProbeSees) {
  const auto seen = watch({.every_steps = 1, .heads = 8});
  int compared = 0;
  for (const QueryFidelity& query : offline()) {
    const auto found = seen.find({query.position, query.layer});
    if (found == seen.end()) continue;  // the other layer's turn
    ++compared;
    EXPECT_NEAR(found->second.entry_mass, query.entry_mass, 1e-6);
    EXPECT_EQ(found->second.selected, query.selected);
    EXPECT_EQ(found->second.visible, query.visible);
    EXPECT_GT(found->second.overlap, 0);
    EXPECT_LE(found->second.overlap, 1);
  }
  EXPECT_GT(compared, 4);
}

TEST(StepProbe, NothingIsLostWhereNothingIsLeftOut) {
  for (const auto& [at, fidelity] : watch({.every_steps = 1}, kTopkAll)) {
    EXPECT_EQ(fidelity.overlap, 1);
    EXPECT_EQ(fidelity.entry_mass, 1);
    EXPECT_EQ(fidelity.selected, fidelity.visible);
  }
}

TEST(StepProbe, LooksIntoNoStepThatIsRecorded) {
  const auto recording = std::make_shared<Recording>(embedded_subject().backend);
  const auto seen = watch({.every_steps = 3}, 64, recording);
  EXPECT_GT(seen.size(), 2u);
  EXPECT_EQ(recording->read_inside(), 0);
  // Two of three steps were handed on whole.
  EXPECT_GE(recording->recorded(), static_cast<std::int64_t>(2 * seen.size()));
  EXPECT_LE(recording->recorded(), static_cast<std::int64_t>(2 * seen.size() + 2));
  EXPECT_EQ(seen, watch({.every_steps = 3}));

  const StepProbe probe(recording, embedded_weights(), {});
  EXPECT_TRUE(probe.replays_steps());
  EXPECT_EQ(probe.replayed_steps(), 7u);
}

TEST(StepProbe, SeesTheSameOnAGpu) {
  const auto gpu = make_backend("cuda", 2);
  if (!gpu) GTEST_SKIP() << gpu.error().to_string();
  const auto seen = watch({.every_steps = 2}, 64, *gpu), host = watch({.every_steps = 2});
  ASSERT_EQ(seen.size(), host.size());
  for (const auto& [at, fidelity] : seen) {
    ASSERT_TRUE(host.contains(at)) << at.first << ", layer " << at.second;
    const StepFidelity& wanted = host.at(at);
    EXPECT_EQ(fidelity.selected, wanted.selected);
    EXPECT_NEAR(fidelity.entry_mass, wanted.entry_mass, 0.04);  // BF16 activations: 0.022 measured
    EXPECT_NEAR(fidelity.overlap, wanted.overlap, 0.2);
  }
}

TEST(StepProbe, LooksAtOneStepInN) {
  const std::size_t every = watch({.every_steps = 1}).size();
  const std::size_t third = watch({.every_steps = 3}).size();
  EXPECT_EQ(third, every / 3);
}

}  // namespace
}  // namespace pivot::recall
