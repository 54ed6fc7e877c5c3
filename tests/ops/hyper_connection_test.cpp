// Hyper-connections of the oracle against double precision (specification 2.2, check 5).
#include "ops/cpu/reference/hyper_connection.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "base/threads.h"
#include "ops/random_layer.h"

namespace pivot::reference {
namespace {

// Step 6 in double, from its text.
std::vector<double> sinkhorn(std::vector<double> c, int n, int iters, double eps) {
  const auto at = [&](int j, int k) -> double& { return c[static_cast<std::size_t>(j * n + k)]; };
  const auto columns = [&] {
    for (int k = 0; k < n; ++k) {
      double sum = eps;
      for (int j = 0; j < n; ++j) sum += at(j, k);
      for (int j = 0; j < n; ++j) at(j, k) /= sum;
    }
  };
  for (int j = 0; j < n; ++j) {
    double sum = 0;
    for (int k = 0; k < n; ++k) sum += std::exp(at(j, k));
    for (int k = 0; k < n; ++k) at(j, k) = std::exp(at(j, k)) / sum + eps;
  }
  columns();
  for (int i = 1; i < iters; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = eps;
      for (int k = 0; k < n; ++k) sum += at(j, k);
      for (int k = 0; k < n; ++k) at(j, k) /= sum;
    }
    columns();
  }
  return c;
}

TEST(Sinkhorn, MatchesDoubleForEveryIterationCount) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (int iters = 1; iters <= 20; ++iters) {
    std::vector<float> c(16);
    for (float& value : c) value = normal(random);
    const std::vector<double> expected = sinkhorn({c.begin(), c.end()}, 4, iters, 1e-6);
    hc_sinkhorn(c.data(), 4, iters, 1e-6f);
    for (int k = 0; k < 4; ++k) {
      double column = 0;
      for (int j = 0; j < 4; ++j) {
        EXPECT_NEAR(c[static_cast<std::size_t>(j * 4 + k)], expected[static_cast<std::size_t>(j * 4 + k)],
                    1e-6);
        column += c[static_cast<std::size_t>(j * 4 + k)];
      }
      EXPECT_NEAR(column, 1.0, 1e-5) << iters;  // the last step is a column step
    }
  }
}

TEST(Sinkhorn, LargeLogitsDoNotOverflow) {
  std::vector<float> c = {1000, -1000, 0, 5, 900, 901, 902, 903, -50, -60, -70, -80, 0, 0, 0, 0};
  hc_sinkhorn(c.data(), 4, 20, 1e-6f);
  for (const float value : c) EXPECT_TRUE(std::isfinite(value));
}

TEST(HyperConnections, CoefficientsMatchDouble) {
  test::RandomMatrices make(3);
  const int streams = 4;
  const std::int64_t width = 96;
  const FloatSpan fn = make.vector(24 * streams * width, 0.0f, 0.05f), base = make.vector(24, 0.0f, 1.0f),
                  scale = make.vector(3, 1.0f, 0.3f);
  const std::vector<float> h = make.activations(5 * streams * width);
  ThreadPool pool(2);
  const std::vector<float> mixes = hc_mixes(h.data(), 5, streams * width, fn, 1e-6f, HcPrecision::kF32, pool);
  for (std::size_t t = 0; t < 5; ++t) {
    const float* u = h.data() + t * static_cast<std::size_t>(streams * width);
    double square = 0;
    for (std::int64_t i = 0; i < streams * width; ++i) square += static_cast<double>(u[i]) * u[i];
    const double g = 1.0 / std::sqrt(square / static_cast<double>(streams * width) + 1e-6);
    std::vector<double> m(24);
    for (std::size_t r = 0; r < 24; ++r) {
      double sum = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(streams * width); ++i)
        sum += static_cast<double>(fn[r * static_cast<std::size_t>(streams * width) + i]) * u[i];
      m[r] = sum * g;
      EXPECT_NEAR(mixes[t * 24 + r], m[r], 1e-5);
    }
    const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
    float pre[4], post[4], comb[16];
    hc_coefficients(&mixes[t * 24], scale, base, streams, 20, 1e-6f, pre, post, comb);
    std::vector<double> logits(16);
    for (std::size_t i = 0; i < 16; ++i) logits[i] = m[8 + i] * scale[2] + base[8 + i];
    const std::vector<double> expected = sinkhorn(logits, 4, 20, 1e-6);
    for (std::size_t j = 0; j < 4; ++j) {
      EXPECT_NEAR(pre[j], sigmoid(m[j] * scale[0] + base[j]) + 1e-6, 1e-5);
      EXPECT_NEAR(post[j], 2 * sigmoid(m[4 + j] * scale[1] + base[4 + j]), 1e-5);
      for (std::size_t k = 0; k < 4; ++k) EXPECT_NEAR(comb[j * 4 + k], expected[j * 4 + k], 1e-5);
    }
  }
}

TEST(HyperConnections, CombIsUsedTransposed) {
  // Trap D5. comb[0][1] = 1 alone sends stream 0 into stream 1, not the reverse.
  float h[4] = {1.0f, 10.0f, 100.0f, 1000.0f};
  float comb[16] = {};
  comb[0 * 4 + 1] = 1.0f;
  comb[2 * 4 + 0] = 0.5f;
  const float post[4] = {0.0f, 0.0f, 0.0f, 2.0f};
  const float o = 3.0f;
  hc_post(h, &o, post, comb, 4, 1, Rounding{});
  EXPECT_EQ(h[0], 50.0f);
  EXPECT_EQ(h[1], 1.0f);
  EXPECT_EQ(h[2], 0.0f);
  EXPECT_EQ(h[3], 6.0f);
}

TEST(HyperConnections, PreMixesStreamsAndRoundsOnce) {
  const float h[4] = {1.0f, 2.0f, 3.0f, 4.0f};  // 4 streams of width 1
  const float pre[4] = {0.5f, 0.25f, 0.125f, 1.001f};
  float y = 0;
  hc_pre(h, pre, 4, 1, Rounding(Activations::kF32), &y);
  EXPECT_FLOAT_EQ(y, 0.5f + 0.5f + 0.375f + 4.004f);
  float rounded = 0;
  hc_pre(h, pre, 4, 1, Rounding{}, &rounded);
  EXPECT_EQ(rounded, round_bf16(y));
}

TEST(HyperConnections, OperandPrecisions) {
  std::mt19937 random(9);
  for (int i = 0; i < 100000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xbfffffffu);  // finite
    const float tf32 = round_hc_operand(x, HcPrecision::kTf32);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(tf32) & 0x1fffu, 0u);
    EXPECT_LE(std::fabs(static_cast<double>(tf32) - x),
              std::fabs(static_cast<double>(x)) * 0x1p-11 + 0x1p-137);
    EXPECT_EQ(round_hc_operand(x, HcPrecision::kF32), x);
    EXPECT_EQ(round_hc_operand(round_bf16(x), HcPrecision::kTf32), round_bf16(x));  // BF16 fits in TF32
  }
  // Ties go to even: 1 + 2^-11 down, 1 + 3*2^-11 up.
  EXPECT_EQ(round_hc_operand(1.0f + 0x1p-11f, HcPrecision::kTf32), 1.0f);
  EXPECT_EQ(round_hc_operand(1.0f + 0x3p-11f, HcPrecision::kTf32), 1.0f + 0x1p-9f);
}

}  // namespace
}  // namespace pivot::reference
