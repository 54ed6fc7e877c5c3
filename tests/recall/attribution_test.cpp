// Every injected fault is laid at its part, and clean runs at none.
#include "recall/attribution.h"

#include <gtest/gtest.h>

#include "recall/embedded.h"

namespace pivot::recall {
namespace {

// Long enough that 64 selected entries are a choice: more than 256 tokens.
std::vector<Case> cases(std::uint64_t seed, std::int64_t samples) {
  return embedded_cases({{Task::kMultiKey}, {480}, {0.1, 0.3}, {0, 3}, 4, samples, seed});
}

Attribution attribute_fault(Fault fault) {
  AttributionSubject subject = embedded_subject();
  // A step of few tokens, so that state between steps matters; the fault of the state would cost nothing
  // otherwise.
  if (fault == Fault::kCompressorLostBetweenSteps) subject.chunk_tokens = 6;
  subject.backend = make_faulty_backend(subject.backend, subject.weights, subject.knobs, fault).value();
  return attribute(subject, cases(3, 2)).value();
}

class InjectedFault : public testing::TestWithParam<FaultInfo> {};

INSTANTIATE_TEST_SUITE_P(Faults, InjectedFault, testing::ValuesIn(fault_table().begin(), fault_table().end()),
                         [](const testing::TestParamInfo<FaultInfo>& fault) {
                           std::string name(fault.param.name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(InjectedFault, IsLaidAtItsPart) {
  const Attribution attribution = attribute_fault(GetParam().fault);
  const Verdict& verdict = attribution.verdict;
  EXPECT_TRUE(verdict.kind == VerdictKind::kPart || verdict.kind == VerdictKind::kHarmless)
      << verdict.sentence;
  EXPECT_EQ(to_string(verdict.part), to_string(GetParam().part)) << verdict.sentence;
  RecordProperty("verdict", verdict.sentence);
  std::printf("%s: %s\n", std::string(GetParam().name).c_str(), verdict.sentence.c_str());
}

TEST(Attribution, RunsWhatCannotMatterOnlyWhenAsked) {
  AttributionSubject subject = embedded_subject();
  const std::vector<Case> few = cases(3, 1);
  const Attribution lean = attribute(subject, few).value();
  ASSERT_EQ(lean.right, lean.cases);
  EXPECT_EQ(lean.variants.size(), 1u);  // after a restore
  EXPECT_GT(lean.skipped, 5);
  subject.every_variant = true;
  subject.twin = subject.weights;
  const Attribution full = attribute(subject, few).value();
  EXPECT_EQ(full.skipped, 0);
  // The twin, and half and a quarter of index_topk, besides.
  EXPECT_EQ(full.variants.size(), lean.variants.size() + static_cast<std::size_t>(lean.skipped) + 3);
  for (const VariantResult& v : full.variants) EXPECT_EQ(v.unsupported, "") << v.variant.name;
  EXPECT_EQ(full.verdict.kind, lean.verdict.kind);
}

TEST(Attribution, CleanRunsAreNotAccused) {
  for (std::uint64_t seed = 100; seed < 103; ++seed) {
    const Attribution attribution = attribute(embedded_subject(), cases(seed, 1)).value();
    EXPECT_EQ(attribution.verdict.kind, VerdictKind::kClean) << seed << ": " << attribution.verdict.sentence;
  }
}

}  // namespace
}  // namespace pivot::recall
