// Router and expert of the oracle (specification 2.7, checks 11 and 12).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/threads.h"
#include "ops/cpu/reference/expert.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/router.h"
#include "ops/random_layer.h"
#include "support/golden_compare.h"

namespace pivot::reference {
namespace {

TEST(Router, SqrtSoftplus) {
  for (double z = -80; z <= 80; z += 0.37) {
    const double expected = std::sqrt(std::log1p(std::exp(z)));
    EXPECT_NEAR(sqrt_softplus(static_cast<float>(z)), expected, 1e-6 * std::max(1.0, expected)) << z;
  }
}

TEST(Router, BiasSelectsButNeverWeighs) {
  const std::vector<float> z = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
  const std::vector<float> bias = {5.0f, 0.0f, 5.0f, 0.0f, 5.0f, 0.0f};
  std::int32_t ids[3];
  float weights[3];
  route_token(z, bias, {}, {3, true, 1.5f}, ids, weights);
  EXPECT_EQ(std::vector<std::int32_t>(ids, ids + 3), (std::vector<std::int32_t>{0, 2, 4}));
  double sum = 0;
  for (const int e : {0, 2, 4}) sum += sqrt_softplus(z[static_cast<std::size_t>(e)]);
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(weights[i], 1.5 * sqrt_softplus(z[static_cast<std::size_t>(ids[i])]) / sum, 1e-6);
  EXPECT_NEAR(weights[0] + weights[1] + weights[2], 1.5, 1e-6);
  route_token(z, bias, {}, {3, false, 2.0f}, ids, weights);
  EXPECT_NEAR(weights[0], 2.0 * sqrt_softplus(0.1f), 1e-6);
}

TEST(Router, TiesGoToTheLowerIdAndMarginIsZero) {
  const std::vector<float> z(8, 0.7f), bias(8, 0.0f);
  std::int32_t ids[3];
  float weights[3];
  EXPECT_EQ(route_token(z, bias, {}, {3, true, 1.5f}, ids, weights), 0.0f);
  EXPECT_EQ(std::vector<std::int32_t>(ids, ids + 3), (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(Router, MarginIsTheGapToTheFirstLeftOut) {
  const std::vector<float> z(4, 0.0f), bias = {3.0f, 1.0f, 2.0f, 0.25f};
  std::int32_t ids[4];
  float weights[4];
  EXPECT_NEAR(route_token(z, bias, {}, {2, true, 1.0f}, ids, weights), 1.0, 1e-6);
  EXPECT_TRUE(std::isinf(route_token(z, bias, {}, {4, true, 1.0f}, ids, weights)));
}

TEST(Router, HashTableDecidesExpertsScoresDecideWeights) {
  const std::vector<float> z = {9.0f, -3.0f, 8.0f, 1.0f};
  const std::vector<std::int32_t> table = {3, 1};
  std::int32_t ids[2];
  float weights[2];
  EXPECT_TRUE(std::isinf(route_token(z, {}, table, {2, true, 1.5f}, ids, weights)));
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 3);
  const double low = sqrt_softplus(-3.0f), high = sqrt_softplus(1.0f);
  EXPECT_NEAR(weights[0], 1.5 * low / (low + high), 1e-6);
  EXPECT_NEAR(weights[1], 1.5 * high / (low + high), 1e-6);
}

TEST(Router, NanScoresRankLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> z = {nan, 1.0f, nan, 2.0f}, bias(4, 0.0f);
  std::int32_t ids[2];
  float weights[2];
  route_token(z, bias, {}, {2, true, 1.5f}, ids, weights);
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 3);
}

TEST(Expert, ClampIsAsymmetric) {
  const auto silu = [](double g) { return g / (1 + std::exp(-g)); };
  EXPECT_NEAR(swiglu(-50.0f, 1.0f, 10.0f, 1.0f), silu(-50.0), 1e-25);  // g has no lower clamp
  EXPECT_FLOAT_EQ(swiglu(50.0f, 1.0f, 10.0f, 1.0f), static_cast<float>(silu(10.0)));
  EXPECT_FLOAT_EQ(swiglu(2.0f, -50.0f, 10.0f, 1.0f), static_cast<float>(silu(2.0) * -10));
  EXPECT_FLOAT_EQ(swiglu(2.0f, 50.0f, 10.0f, 0.25f), static_cast<float>(silu(2.0) * 10 * 0.25));
  EXPECT_FLOAT_EQ(swiglu(2.0f, 50.0f, 0.0f, 1.0f),
                  static_cast<float>(silu(2.0) * 50));  // no limit configured
}

TEST(Expert, IsTheStepsInOrder) {
  test::RandomMatrices make(8);
  ThreadPool pool(2);
  const ExpertWeights expert{make.fp4(64, 96), make.fp4(64, 96), make.fp4(96, 64)};
  const std::vector<float> x = make.activations(5 * 96), route = {0.3f, 0.7f, 1.1f, 0.05f, 0.5f};
  const Rounding round;
  const std::vector<float> g = linear(expert.w1, fp8_input(x.data(), 5, 96), round, pool);
  const std::vector<float> u = linear(expert.w3, fp8_input(x.data(), 5, 96), round, pool);
  std::vector<float> v(g.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = round_bf16(swiglu(g[i], u[i], 4.0f, route[i / 64]));
  const std::vector<float> expected = linear(expert.w2, fp8_input(v.data(), 5, 64), round, pool);
  EXPECT_EQ(expert_forward(expert, ActQuant::kFp8, x.data(), 5, route.data(), 4.0f, round, pool), expected);

  // The weight must act before w2: afterwards the FP8 rounding of v is another one.
  std::vector<float> after = expert_forward(expert, ActQuant::kFp8, x.data(), 5, nullptr, 4.0f, round, pool);
  for (std::size_t i = 0; i < after.size(); ++i) after[i] = round_bf16(after[i] * route[i / 96]);
  EXPECT_NE(after, expected);
  EXPECT_LT(test::relative_l2(after, expected), 0.1);
}

TEST(Expert, InputPrecisionsDiffer) {
  test::RandomMatrices make(9);
  ThreadPool pool(1);
  const ExpertWeights expert{make.nvfp4(64, 96), make.nvfp4(64, 96), make.nvfp4(96, 64)};
  const std::vector<float> x = make.activations(3 * 96);
  const auto run = [&](ActQuant act) {
    return expert_forward(expert, act, x.data(), 3, nullptr, 0.0f, Rounding{}, pool);
  };
  const std::vector<float> exact = run(ActQuant::kBf16), fp8 = run(ActQuant::kFp8),
                           nvfp4 = run(ActQuant::kNvfp4);
  const double fp8_error = test::relative_l2(fp8, exact), nvfp4_error = test::relative_l2(nvfp4, exact);
  EXPECT_GT(fp8_error, 0.0);
  EXPECT_LT(fp8_error, 0.06);
  EXPECT_GT(nvfp4_error, fp8_error);  // coarser by construction (specification 4.3)
  EXPECT_LT(nvfp4_error, 0.5);
}

}  // namespace
}  // namespace pivot::reference
