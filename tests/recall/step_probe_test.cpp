// The probe of a running server against the probe that keeps everything.
#include "recall/step_probe.h"

#include <gtest/gtest.h>

#include <map>

#include "recall/embedded.h"

namespace pivot::recall {
namespace {

// What a step probe saw of a case, by position and layer.
std::map<std::pair<std::int64_t, std::int32_t>, StepFidelity> watch(StepProbeOptions options,
                                                                    std::int32_t topk = 64) {
  const std::vector<Case> cases = embedded_cases({{Task::kSingle}, {600}, {0.4}, {1}, 4, 1, 11});
  const AttributionSubject subject = embedded_subject();
  std::map<std::pair<std::int64_t, std::int32_t>, StepFidelity> seen;
  options.max_share = 1;
  options.on_measured = [&](const StepFidelity& f) { seen[{f.position, f.layer}] = f; };
  const auto probe = std::make_shared<StepProbe>(subject.backend, subject.weights, options);
  SessionOptions session_options;
  session_options.weights = subject.weights;
  session_options.backend = probe;
  session_options.knobs.index_topk = topk;
  session_options.max_context = 1024;
  const auto session = Session::create(std::move(session_options)).value();
  const CaseRunner runner{session.get(),  subject.tokenizer, subject.stop_tokens,
                          Path::kOneShot, nullptr,           nullptr};
  EXPECT_TRUE(runner.run(cases[0]).value().score.exact);
  EXPECT_EQ(probe->measured(), seen.size());
  return seen;
}

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

TEST(StepProbe, LooksAtOneStepInN) {
  const std::size_t every = watch({.every_steps = 1}).size();
  const std::size_t third = watch({.every_steps = 3}).size();
  EXPECT_EQ(third, every / 3);
}

}  // namespace
}  // namespace pivot::recall
