#include "engine/step_plan.h"

#include <gtest/gtest.h>

#include <numeric>

namespace pivot {
namespace {

// A machine whose decode step of n streams takes base + n * per_stream, and a prompt token per_token.
struct Machine {
  double base = 10e-3, per_stream = 0.1e-3, per_token = 0.2e-3;
  double seconds(std::int32_t decode, std::int32_t prefill) const {
    return base + per_stream * decode + per_token * prefill;
  }
};

TEST(StepTimes, ChunksKeepStepsWithinTheStretch) {
  for (const Machine machine :
       {Machine{}, Machine{0.5e-3, 0.4e-3, 0.4e-3}, Machine{30e-3, 0.01e-3, 0.05e-3}}) {
    StepTimes times;
    times.observe(0, 512, machine.seconds(0, 512));
    for (int i = 0; i < 10; ++i) times.observe(8, 0, machine.seconds(8, 0));
    double worst = 0;
    for (int i = 0; i < 500; ++i) {
      const std::int32_t chunk = times.needs_probe(8) ? 0 : times.prefill_budget(8, 2.0, 1024);
      const double seconds = machine.seconds(8, chunk);
      if (i > 20) worst = std::max(worst, seconds / machine.seconds(8, 0));
      times.observe(8, chunk, seconds);
    }
    EXPECT_LE(worst, 2.0 + 1e-6);
    // And prefill gets about half of the time, not crumbs.
    EXPECT_GE(worst, machine.per_token * StepTimes::kMinChunk > machine.seconds(8, 0) ? 1.0 : 1.6);
  }
}

TEST(StepTimes, FollowsAGrowingContext) {
  StepTimes times;
  Machine machine;
  times.observe(4, 0, machine.seconds(4, 0));
  for (int i = 0; i < 3000; ++i) {
    machine.base *= 1.0005;
    machine.per_token *= 1.0005;
    const std::int32_t chunk = times.needs_probe(4) ? 0 : times.prefill_budget(4, 2.0, 4096);
    const double seconds = machine.seconds(4, chunk);
    if (i > 100) {
      EXPECT_LE(seconds, 2.1 * machine.seconds(4, 0));
    }
    times.observe(4, chunk, seconds);
  }
}

TEST(StepTimes, UnknownsAreCautiousAndPrefillAloneTakesAll) {
  const StepTimes times;
  EXPECT_EQ(times.prefill_budget(3, 2.0, 1024), StepTimes::kFirstChunk);
  EXPECT_EQ(times.prefill_budget(0, 2.0, 1024), 1024);
  EXPECT_EQ(times.prefill_budget(3, 2.0, 0), 0);
  EXPECT_TRUE(times.needs_probe(3));
  EXPECT_FALSE(times.needs_probe(0));
}

TEST(StepTimes, APromptAloneIsCutSoThatNobodyWaitsLong) {
  StepTimes fast, slow, crawling;
  fast.observe(0, 1000, 0.02);
  EXPECT_EQ(fast.prefill_budget(0, 2.0, 1024), 1024);
  slow.observe(0, 1000, 1.0);
  EXPECT_EQ(slow.prefill_budget(0, 2.0, 1024), 250);
  crawling.observe(0, 1000, 100.0);
  EXPECT_EQ(crawling.prefill_budget(0, 2.0, 1024), StepTimes::kMinAloneChunk);
  EXPECT_EQ(crawling.prefill_budget(0, 2.0, 20), 20);
}

TEST(SharePrefill, TheMostUrgentGetsHalfAndTheShortestTheRest) {
  const PrefillJob jobs[] = {{0, 100000, 100000}, {0, 5000, 5000}, {0, 40, 40}};
  const auto tokens = share_prefill(jobs, {400, 8, false, 256});
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{200, 160, 40}));
}

TEST(SharePrefill, WhatOthersDoNotNeedGoesBackToTheFirst) {
  const PrefillJob jobs[] = {{0, 1000, 1000}, {0, 10, 10}};
  EXPECT_EQ(share_prefill(jobs, {400, 8, false, 256}), (std::vector<std::int32_t>{390, 10}));
}

TEST(SharePrefill, NeverCrossesAStopNorTheBudgetNorTheSequences) {
  const PrefillJob jobs[] = {{200, 1000, 256}, {0, 90, 90}, {0, 90, 90}};
  EXPECT_EQ(share_prefill(jobs, {1000, 8, false, 256}), (std::vector<std::int32_t>{56, 90, 90}));
  EXPECT_EQ(share_prefill(jobs, {1000, 2, false, 256}), (std::vector<std::int32_t>{56, 90, 0}));
  const auto small = share_prefill(jobs, {7, 8, false, 256});
  EXPECT_EQ(std::accumulate(small.begin(), small.end(), 0), 7);
  EXPECT_EQ(share_prefill(jobs, {0, 8, false, 256}), (std::vector<std::int32_t>{0, 0, 0}));
  EXPECT_TRUE(share_prefill({}, {100, 8, false, 256}).empty());
}

TEST(SharePrefill, FixedChunksAreWholeOrNothing) {
  const PrefillJob jobs[] = {{256, 1000, 1256}, {0, 300, 300}, {10, 30, 40}};
  EXPECT_EQ(share_prefill(jobs, {300, 8, true, 256}), (std::vector<std::int32_t>{256, 0, 30}));
  EXPECT_EQ(share_prefill(jobs, {100, 8, true, 256}), (std::vector<std::int32_t>{0, 0, 30}));
}

TEST(CacheStops, GrowWithThePositionAndHoldTheLastBlock) {
  EXPECT_EQ(cache_stops(0, 1000, 0, 256), (std::vector<std::int64_t>{256, 512, 768}));
  EXPECT_EQ(cache_stops(512, 1025, 0, 256), (std::vector<std::int64_t>{768, 1024}));
  EXPECT_TRUE(cache_stops(0, 256, 0, 256).empty());
  EXPECT_TRUE(cache_stops(0, 100, 0, 256).empty());
  const auto stops = cache_stops(0, 131072, 100000, 256);
  EXPECT_LE(stops.size(), 80u);
  EXPECT_EQ(stops.back(), 131072 - 256);
  EXPECT_TRUE(std::binary_search(stops.begin(), stops.end(), 100000 / 256 * 256));
  for (std::size_t i = 1; i < stops.size(); ++i) {
    EXPECT_EQ(stops[i] % 256, 0);
    EXPECT_LE(stops[i] - stops[i - 1], std::max<std::int64_t>(256, stops[i - 1] / 8 + 256));
  }
}

TEST(Admits, WorstCaseCountsEverythingAndOvercommitWhatIsNeededSoon) {
  const PoolRoom room{100, 30, 10, 90};
  EXPECT_TRUE(admits(room, 20, 80, false));
  EXPECT_FALSE(admits(room, 21, 80, false));
  EXPECT_TRUE(admits(room, 5, 10, true));
  EXPECT_FALSE(admits(room, 5, 11, true));
  EXPECT_FALSE(admits({100, 100, 0, 0}, 5, 101, false));
  EXPECT_TRUE(admits({0, 0, 0, 0}, 0, 0, false));  // a pool that no layer uses
}

}  // namespace
}  // namespace pivot
