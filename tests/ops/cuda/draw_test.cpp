// The decisions of the draws that the GPU makes, run on the host in the kernels' order, against the engine's
// sampler.
#include "ops/cuda/sampling/decision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <vector>

#include "engine/sampler.h"
#include "numeric/philox.h"

namespace pivot::cuda {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// What the kernels do with one row, phase by phase.
DrawResult draw(const std::vector<float>& row, const DrawParams& p) {
  std::uint64_t best = 0;
  std::int32_t faults = 0, candidates = 0;
  std::vector<std::uint64_t> ranks;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] < std::numeric_limits<float>::infinity())) {
      ++faults;
    } else if (row[i] > kNone) {
      ++candidates;
      ranks.push_back(draw_rank(std::bit_cast<std::uint32_t>(row[i]), static_cast<std::int32_t>(i)));
      best = std::max(best, ranks.back());
    }
  }
  if (faults > 0 || candidates == 0) return {-1, DrawStatus::kFault};
  if (p.temperature == 0.0f) return {draw_id(best), DrawStatus::kDrawn};
  const float maximum = std::bit_cast<float>(draw_logit_bits(best));
  const double random = philox_uniform(p.seed, p.counter);
  const auto weight = [&](float logit) { return draw_weight(logit, maximum, p.temperature); };
  std::vector<double> segments;
  double all = 0;
  const auto kept = [&](std::size_t id) {
    const double w = id < row.size() && row[id] > kNone ? weight(row[id]) : 0.0;
    return w >= static_cast<double>(p.min_p) ? w : 0.0;
  };
  for (std::size_t first = 0; first < row.size(); first += kDrawSegment) {
    double sum = 0;
    for (std::size_t i = first; i < std::min<std::size_t>(row.size(), first + kDrawSegment); ++i) {
      sum += kept(i);
      if (row[i] > kNone) all += weight(row[i]);
    }
    segments.push_back(sum);
  }
  if (draw_is_sorted(p, candidates)) {
    std::sort(ranks.rbegin(), ranks.rend());
    if (ranks.size() > kMaxSortedDraw) ranks.resize(kMaxSortedDraw);
    std::vector<double> weights;
    for (const std::uint64_t rank : ranks)
      weights.push_back(weight(std::bit_cast<float>(draw_logit_bits(rank))));
    const int chosen =
        draw_sorted(weights.data(), static_cast<int>(weights.size()), candidates, all, p, random);
    if (chosen < 0) return {-1, DrawStatus::kNeedsHost};
    return {draw_id(ranks[static_cast<std::size_t>(chosen)]), DrawStatus::kDrawn};
  }
  double total = 0;
  for (const double sum : segments) total += sum;
  double target = random * total;
  std::size_t first =
      static_cast<std::size_t>(draw_child(segments.data(), static_cast<int>(segments.size()), target));
  first *= kDrawSegment;
  std::vector<double> chunks(kDrawSegment / kDrawChunk, 0.0), ids(kDrawChunk);
  for (std::size_t c = 0; c < chunks.size(); ++c)
    for (std::size_t i = 0; i < kDrawChunk; ++i) chunks[c] += kept(first + c * kDrawChunk + i);
  first += static_cast<std::size_t>(draw_child(chunks.data(), static_cast<int>(chunks.size()), target)) *
           kDrawChunk;
  for (std::size_t i = 0; i < kDrawChunk; ++i) ids[i] = kept(first + i);
  return {static_cast<std::int32_t>(first) + draw_child(ids.data(), kDrawChunk, target), DrawStatus::kDrawn};
}

SamplingParams host(const DrawParams& p) {
  SamplingParams params;
  params.temperature = p.temperature;
  params.top_p = p.top_p;
  params.min_p = p.min_p;
  params.top_k = p.top_k;
  params.seed = p.seed;
  return params;
}

std::vector<float> random_row(std::size_t vocab, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 1.0f + static_cast<float>(random() % 5));
  std::vector<float> row(vocab);
  const unsigned kind = random() % 4;
  for (float& x : row) {
    x = normal(random);
    if (kind == 1) x = std::round(x);               // ties
    if (kind == 2 && random() % 3 == 0) x = kNone;  // a mask
    if (kind == 3 && random() % 2 == 0) x = x < 0 ? -0.0f : 0.0f;
  }
  if (kind == 2) row[random() % vocab] = 1.0f;
  return row;
}

TEST(Draw, EqualsTheEnginesSampler) {
  std::mt19937 random(1);
  int sorted = 0, in_order = 0, on_host = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::size_t vocab = round % 16 == 0 ? 9000 : 1 + random() % 700;
    const std::vector<float> row = random_row(vocab, random);
    DrawParams p;
    p.temperature = std::vector<float>{0.0f, 0.3f, 1.0f, 1.0f, 2.5f}[random() % 5];
    p.top_p = random() % 2 == 0 ? 1.0f : std::uniform_real_distribution<float>(0.01f, 1.0f)(random);
    p.top_k = random() % 2 == 0 ? 0 : static_cast<std::int32_t>(1 + random() % kMaxSortedDraw);
    p.min_p = random() % 2 == 0 ? 0.0f : std::uniform_real_distribution<float>(0.0f, 1.0f)(random);
    p.seed = random();
    p.counter = random() % 5000;
    const DrawResult got = draw(row, p);
    if (got.status == DrawStatus::kNeedsHost) {
      ++on_host;
      EXPECT_GT(vocab, static_cast<std::size_t>(kMaxSortedDraw));
      continue;
    }
    ASSERT_EQ(got.status, DrawStatus::kDrawn);
    const Result<SampledToken> wanted = sample(row, host(p), p.counter);
    ASSERT_TRUE(wanted) << wanted.error().to_string();
    ASSERT_EQ(got.id, raw(wanted->id)) << "round " << round << ", temperature " << p.temperature << ", top_p "
                                       << p.top_p << ", top_k " << p.top_k << ", min_p " << p.min_p;
    ++(p.top_p < 1.0f || p.top_k > 0 ? sorted : in_order);
  }
  EXPECT_GT(sorted, 1000);
  EXPECT_GT(in_order, 500);
  EXPECT_LT(on_host, 200);
}

TEST(Draw, AWideNucleusIsLeftToTheHost) {
  const std::vector<float> row(5000, 1.0f);
  DrawParams p;
  p.top_p = 0.9f;  // 4,500 equal tokens
  EXPECT_EQ(draw(row, p).status, DrawStatus::kNeedsHost);
  p.top_k = 1000;
  EXPECT_EQ(draw(row, p).status, DrawStatus::kDrawn) << "top-k closes it";
  p.top_k = 0;
  p.top_p = 0.1f;  // 500
  EXPECT_EQ(draw(row, p).status, DrawStatus::kDrawn);
}

TEST(Draw, GreedyTakesTheLowestOfEquals) {
  DrawParams greedy;
  greedy.temperature = 0.0f;
  EXPECT_EQ(draw({-1.0f, 2.0f, 2.0f, 0.0f}, greedy).id, 1);
  EXPECT_EQ(draw({-0.0f, 0.0f, -0.0f}, greedy).id, 0) << "the zeros are one logit";
  EXPECT_EQ(draw({kNone, -5.0f, kNone}, greedy).id, 1);
}

TEST(Draw, FaultsAreNeverAToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const float temperature : {0.0f, 1.0f}) {
    DrawParams p;
    p.temperature = temperature;
    EXPECT_EQ(draw({1.0f, nan, 2.0f}, p).status, DrawStatus::kFault);
    EXPECT_EQ(draw({1.0f, infinity}, p).status, DrawStatus::kFault);
    EXPECT_EQ(draw({kNone, kNone}, p).status, DrawStatus::kFault);
  }
}

TEST(Draw, RanksOrderAndKeepLogitAndId) {
  std::mt19937 random(2);
  for (int i = 0; i < 10'000; ++i) {
    const auto logit = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const auto other = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (logit != logit || other != other) continue;
    const auto id = static_cast<std::int32_t>(random() % 300'000);
    const std::uint64_t rank = draw_rank(std::bit_cast<std::uint32_t>(logit), id);
    ASSERT_EQ(draw_id(rank), id);
    ASSERT_EQ(std::bit_cast<float>(draw_logit_bits(rank)), logit);
    const std::uint64_t behind = draw_rank(std::bit_cast<std::uint32_t>(other), id + 1);
    ASSERT_EQ(rank > behind, logit >= other);
  }
}

TEST(Draw, RoundingNeverLeavesADrawWithoutAToken) {
  const double sums[4] = {0.0, 0.25, 0.5, 0.0};
  double target = 0.75;  // what rounding may make of a number below the total
  EXPECT_EQ(draw_child(sums, 4, target), 2);
  EXPECT_EQ(target, 0.5);
  target = 0.0;
  EXPECT_EQ(draw_child(sums, 4, target), 1) << "an id without weight is never drawn";
}

TEST(Draw, RandomNumbersAreTheEngines) {
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (std::uint64_t counter = 0; counter < 50; ++counter)
      ASSERT_EQ(philox_uniform(seed << 40 | seed, counter), uniform(seed << 40 | seed, counter));
}

}  // namespace
}  // namespace pivot::cuda
