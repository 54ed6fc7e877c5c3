// The verdict on made-up evidence.
#include <gtest/gtest.h>

#include "recall/attribution.h"

namespace pivot::recall {
namespace {

VariantResult variant(const std::string& name, PairedCounts pairs, double p_holm) {
  VariantResult v;
  v.variant.name = name;
  v.variant.rules = "what " + name + " shows";
  v.pairs = pairs;
  v.cases = pairs.total();
  v.right = pairs.both_right + pairs.only_second;
  v.p = v.p_holm = p_holm;
  v.gain = paired_interval(pairs);
  return v;
}
AuditCount& part(Attribution& a, Part p) { return a.audit[static_cast<std::size_t>(p)]; }

Attribution evidence(std::int64_t right) {
  Attribution a;
  a.cases = 40;
  a.right = right;
  for (AuditCount& count : a.audit) count.checked = 100;
  return a;
}

TEST(Verdict, CleanRunsAreNotAccused) {
  Attribution a = evidence(40);
  a.variants = {variant("all entries", {40, 0, 0, 0}, 1)};
  EXPECT_EQ(judge(a).kind, VerdictKind::kClean);
  EXPECT_NE(judge(a).sentence.find("no loss attributable"), std::string::npos);
  EXPECT_FALSE(judge(a).ruled_out.empty());
  a.right = 37;  // three wrong answers are too few to lay at anything
  a.variants = {variant("all entries", {37, 0, 0, 3}, 0.25)};
  EXPECT_EQ(judge(a).kind, VerdictKind::kClean);
}

TEST(Verdict, ASettingIsNamedWhereEveryPartAgrees) {
  Attribution a = evidence(20);
  a.variants = {variant("all entries", {20, 0, 0, 20}, 1e-5), variant("kv", {20, 20, 0, 0}, 1)};
  const Verdict verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kSetting);
  EXPECT_EQ(verdict.component, "what all entries shows");
  EXPECT_DOUBLE_EQ(verdict.points_lost, 50);
}

TEST(Verdict, TheEarliestPartThatDiffersIsTheCause) {
  Attribution a = evidence(10);
  VariantResult oracle = variant("oracle", {10, 0, 0, 30}, 1e-8);
  oracle.variant.oracle = true;
  a.variants = {variant("all entries", {10, 30, 0, 0}, 1), oracle};
  part(a, Part::kKeyValues).different = 90;
  part(a, Part::kRope).different = 100;
  const Verdict verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kPart);
  EXPECT_EQ(verdict.part, Part::kRope);
  EXPECT_DOUBLE_EQ(verdict.points_lost, 75);
}

TEST(Verdict, AFaultThatCostsNothingIsSaidToCostNothing) {
  Attribution a = evidence(40);
  part(a, Part::kKeyScales).different = 50;
  EXPECT_EQ(judge(a).kind, VerdictKind::kHarmless);
  part(a, Part::kKeyScales).different = 1;  // one flip in a hundred at a tie is rounding
  EXPECT_EQ(judge(a).kind, VerdictKind::kClean);
}

TEST(Verdict, RestoredLossesAreMeasuredAgainstTheSequenceThatNeverWentBack) {
  Attribution a = evidence(40);
  VariantResult restored = variant("after a restore", {8, 0, 32, 0}, 1e-8);
  restored.variant.path = Path::kRestored;
  a.variants = {restored};
  part(a, Part::kWindowRestore).different = 40;
  const Verdict verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kPart);
  EXPECT_EQ(verdict.part, Part::kWindowRestore);
  EXPECT_DOUBLE_EQ(verdict.points_lost, 80);
}

TEST(Verdict, ALossThatNothingMendsIsTheModels) {
  Attribution a = evidence(10);
  VariantResult oracle = variant("oracle", {10, 30, 0, 0}, 1);
  oracle.variant.oracle = true;
  a.variants = {oracle};
  EXPECT_EQ(judge(a).kind, VerdictKind::kModel);
  a.variants[0] = variant("oracle", {10, 0, 0, 30}, 1e-8);
  a.variants[0].variant.oracle = true;
  EXPECT_EQ(judge(a).kind, VerdictKind::kUnexplained);
}

}  // namespace
}  // namespace pivot::recall
