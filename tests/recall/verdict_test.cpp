// The verdict on made-up evidence.
#include <gtest/gtest.h>

#include "recall/attribution.h"

namespace pivot::recall {
namespace {

VariantResult variant(const std::string& name, PairedCounts pairs, double p_holm,
                      Suspect suspect = Suspect::kRowFormat) {
  VariantResult v;
  v.variant.name = name;
  v.variant.cause = "what " + name + " shows";
  v.variant.suspect = suspect;
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
  EXPECT_NE(judge(a).sentence.find("No loss"), std::string::npos);
  EXPECT_FALSE(judge(a).ruled_out.empty());
  a.right = 37;  // three wrong answers are too few to lay at anything
  a.variants = {variant("all entries", {37, 0, 0, 3}, 0.25)};
  EXPECT_EQ(judge(a).kind, VerdictKind::kClean);
}

TEST(Verdict, ASettingIsNamedWhereEveryPartAgrees) {
  Attribution a = evidence(20);
  a.variants = {variant("kv bf16", {20, 0, 0, 20}, 1e-5),
                variant("experts", {20, 20, 0, 0}, 1, Suspect::kExpertInput)};
  const Verdict verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kSetting);
  EXPECT_EQ(verdict.component, "what kv bf16 shows");
  EXPECT_DOUBLE_EQ(verdict.points_lost, 50);
  EXPECT_EQ(verdict.evidence.size(), 1u);
  EXPECT_NE(verdict.ruled_out.front().find("what experts shows"), std::string::npos);
}

// What only more entries mend is their number; what as many entries of a finer index mend is its precision;
// what neither mends, though all entries do, is how the model ranks them.
TEST(Verdict, TellsTooFewEntriesFromTooCoarseAnIndex) {
  Attribution a = evidence(20);
  const PairedCounts nothing{20, 20, 0, 0}, much{20, 0, 0, 20};
  const auto with = [&](PairedCounts exact, PairedCounts keys, PairedCounts topk) {
    const auto p = [](const PairedCounts& pairs) { return pairs.only_second > 0 ? 1e-5 : 1.0; };
    a.variants = {variant("all", much, 1e-5, Suspect::kSelection),
                  variant("exact", exact, p(exact), Suspect::kExactIndex),
                  variant("keys", keys, p(keys), Suspect::kKeyFormat),
                  variant("topk 16", {20, 17, 0, 3}, 0.5, Suspect::kTopk),
                  variant("topk 32", topk, p(topk), Suspect::kTopk)};
    a.variants[4].variant.setting = "index_topk=32";
    a.variants[3].p = 0.03;  // alone; not among so many
    return judge(a);
  };
  const Verdict number = with(nothing, nothing, much);
  EXPECT_EQ(number.component, "what topk 32 shows");
  EXPECT_NE(number.sentence.find("an exact index over as many entries has 20 of 40 right"), std::string::npos)
      << number.sentence;
  EXPECT_NE(number.advice.find("--knob index_topk=32"), std::string::npos);
  EXPECT_EQ(number.evidence.size(), 4u);  // all, exact and both larger k; a small one is not "ruled out"
  for (const std::string& line : number.ruled_out) EXPECT_EQ(line.find("topk"), std::string::npos) << line;

  EXPECT_EQ(with(much, much, much).component, "what exact shows");
  EXPECT_EQ(with(nothing, much, nothing).component, "what keys shows");
  const Verdict ranking = with(nothing, nothing, nothing);
  EXPECT_EQ(ranking.component, "what all shows");
  EXPECT_NE(ranking.sentence.find("further behind"), std::string::npos) << ranking.sentence;
}

TEST(Verdict, WhatIsLikelyButNotProvenIsCalledOpen) {
  Attribution a = evidence(30);
  a.variants = {variant("kv", {30, 5, 0, 5}, 0.4)};
  a.variants[0].p = 0.04;
  const Verdict verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kModel);
  ASSERT_EQ(verdict.open.size(), 1u);
  EXPECT_NE(verdict.open[0].find("what kv shows"), std::string::npos);
}

TEST(Verdict, FewerEntriesAreNoSuspect) {
  Attribution a = evidence(20);
  a.variants = {variant("fewer", {20, 0, 0, 20}, 1e-9, Suspect::kFewerTopk),
                variant("kv", {20, 15, 0, 5}, 0.06)};
  a.variants[1].p = 0.03;
  correct_for_number(a.variants);
  EXPECT_DOUBLE_EQ(a.variants[1].p_holm, 0.03);  // the only test
  EXPECT_EQ(judge(a).component, "what kv shows");
}

TEST(Verdict, TheEarliestPartThatDiffersIsTheCause) {
  Attribution a = evidence(10);
  a.variants = {variant("all entries", {10, 30, 0, 0}, 1, Suspect::kSelection),
                variant("oracle", {10, 0, 0, 30}, 1e-8, Suspect::kBackend)};
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

// The oracle has right parts and the same settings: what it does not get back, the part has not lost.
TEST(Verdict, AFaultIsNotBlamedForWhatASettingCosts) {
  Attribution a = evidence(20);
  part(a, Part::kKeyScales).different = 90;
  a.variants = {variant("oracle", {20, 20, 0, 0}, 1, Suspect::kBackend),
                variant("all", {20, 0, 0, 20}, 1e-5, Suspect::kSelection)};
  Verdict verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kHarmless);
  EXPECT_EQ(verdict.part, Part::kKeyScales);
  EXPECT_NE(verdict.advice.find("what all shows costs 50 of 100 points"), std::string::npos)
      << verdict.advice;
  a.variants.erase(a.variants.begin());  // without the oracle there is nothing better to go by
  verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kPart);
  EXPECT_DOUBLE_EQ(verdict.points_lost, 50);
}

TEST(Verdict, RestoredLossesAreMeasuredAgainstTheSequenceThatNeverWentBack) {
  Attribution a = evidence(40);
  a.variants = {variant("after a restore", {8, 0, 32, 0}, 1e-8, Suspect::kRestore)};
  part(a, Part::kWindowRestore).different = 40;
  const Verdict verdict = judge(a);
  EXPECT_EQ(verdict.kind, VerdictKind::kPart);
  EXPECT_EQ(verdict.part, Part::kWindowRestore);
  EXPECT_DOUBLE_EQ(verdict.points_lost, 80);
}

TEST(Verdict, SaysWhichPartsWereNeverCompared) {
  Attribution a = evidence(40);
  part(a, Part::kCompressorCarry).checked = 0;
  part(a, Part::kKeyValues).different = 1;
  const Verdict verdict = judge(a);
  ASSERT_EQ(verdict.open.size(), 1u);
  EXPECT_NE(verdict.open[0].find(to_string(Part::kCompressorCarry)), std::string::npos);
  ASSERT_EQ(verdict.ruled_out.size(), 2u);  // ties, and all the others in one line
  EXPECT_NE(verdict.ruled_out[0].find("index keys: 1 of 100"), std::string::npos) << verdict.ruled_out[0];
  EXPECT_NE(verdict.ruled_out[1].find("1,400 comparisons"), std::string::npos) << verdict.ruled_out[1];
}

TEST(Verdict, KeysThatAgreeHaveTheirRotationScalesAndLayout) {
  Attribution a = evidence(40);
  for (const Part diagnosis : {Part::kEntryScales, Part::kKeyRotation, Part::kKeyScales, Part::kKeyLayout})
    part(a, diagnosis).checked = 0;
  Verdict verdict = judge(a);
  EXPECT_TRUE(verdict.open.empty()) << verdict.open[0];
  EXPECT_NE(verdict.ruled_out[0].find(to_string(Part::kKeyRotation)), std::string::npos);
  part(a, Part::kKeyValues).checked = 0;
  verdict = judge(a);
  ASSERT_EQ(verdict.open.size(), 1u);
  EXPECT_NE(verdict.open[0].find(to_string(Part::kKeyRotation)), std::string::npos);
}

TEST(Verdict, ALossThatNothingMendsIsTheModels) {
  Attribution a = evidence(10);
  a.variants = {variant("oracle", {10, 30, 0, 0}, 1, Suspect::kBackend)};
  EXPECT_EQ(judge(a).kind, VerdictKind::kModel);
  a.variants[0] = variant("oracle", {10, 0, 0, 30}, 1e-8, Suspect::kBackend);
  EXPECT_EQ(judge(a).kind, VerdictKind::kUnexplained);
}

}  // namespace
}  // namespace pivot::recall
