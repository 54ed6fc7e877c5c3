#include "recall/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pivot::recall {
namespace {

TEST(Wilson, KnownValues) {
  // Wilson (1927); the values are those of R's prop.test(correct = FALSE).
  const Interval half = wilson_interval(5, 10);
  EXPECT_NEAR(half.low, 0.2366, 1e-4);
  EXPECT_NEAR(half.high, 0.7634, 1e-4);
  const Interval all = wilson_interval(20, 20);
  EXPECT_NEAR(all.low, 0.8389, 1e-4);
  EXPECT_EQ(all.high, 1);
  EXPECT_EQ(wilson_interval(0, 20).low, 0);
  EXPECT_EQ(wilson_interval(0, 0).high, 1);
}

TEST(McNemar, ExactProbabilities) {
  EXPECT_EQ(mcnemar_exact({10, 3, 0, 0}), 1);
  EXPECT_NEAR(mcnemar_exact({0, 0, 0, 6}), 2.0 / 64, 1e-9);  // all six discordant pairs on one side
  EXPECT_NEAR(mcnemar_exact({0, 0, 0, 5}), 2.0 / 32, 1e-9);  // five cannot reach 0.05
  EXPECT_NEAR(mcnemar_exact({0, 0, 2, 8}), 2 * 56.0 / 1024, 1e-9);
  EXPECT_EQ(mcnemar_exact({0, 0, 4, 4}), 1);
}

TEST(McNemar, ThousandsOfPairsStayFinite) {
  const double p = mcnemar_exact({0, 0, 4000, 6000});
  EXPECT_TRUE(std::isfinite(p));
  EXPECT_LT(p, 1e-50);
}

TEST(Paired, IntervalHoldsTheDifference) {
  for (const PairedCounts& pairs : {PairedCounts{10, 2, 0, 8}, PairedCounts{0, 0, 5, 5},
                                    PairedCounts{20, 0, 0, 0}, PairedCounts{0, 20, 0, 0}}) {
    const Interval interval = paired_interval(pairs);
    EXPECT_LE(interval.low, pairs.difference());
    EXPECT_GE(interval.high, pairs.difference());
    EXPECT_GE(interval.low, -1);
    EXPECT_LE(interval.high, 1);
  }
  EXPECT_GT(paired_interval({12, 20, 0, 28}).low, 0);
}

TEST(EditSimilarity, CountsCodePoints) {
  EXPECT_EQ(edit_similarity("", ""), 1);
  EXPECT_EQ(edit_similarity("abc", ""), 0);
  EXPECT_DOUBLE_EQ(edit_similarity("482913", "482913"), 1);
  EXPECT_DOUBLE_EQ(edit_similarity("482913", "482914"), 1 - 1.0 / 6);
  EXPECT_DOUBLE_EQ(edit_similarity("verrà", "verra"), 1 - 1.0 / 5);
}

}  // namespace
}  // namespace pivot::recall
