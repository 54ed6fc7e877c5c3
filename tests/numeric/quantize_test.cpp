#include "numeric/quantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "numeric/formats.h"

namespace pivot {
namespace {

std::vector<float> random_values(std::size_t count, unsigned seed, float spread = 4.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-spread, spread);
  std::vector<float> x(count);
  for (float& value : x) value = round_bf16(normal(random) * std::exp2(exponent(random)));
  return x;
}

TEST(Quantize, CodesAndScalesAreWhatQuantizeDequantizeKeeps) {
  const std::vector<float> x = random_values(512, 1);
  std::vector<std::uint8_t> codes(512), scales(8), nibbles(256), scales4(16);

  std::vector<float> kept = x;
  quantize_dequantize_e4m3(kept, 64);
  quantize_e4m3(x, 64, codes.data(), scales.data());
  for (std::size_t i = 0; i < 512; ++i) {
    EXPECT_EQ(kept[i], e4m3_to_float(codes[i]) * e8m0_to_float(scales[i / 64]));
    EXPECT_EQ(kept[i], round_bf16(kept[i]));
  }

  kept = x;
  quantize_dequantize_e2m1(kept, 32);
  quantize_e2m1(x, 32, nibbles.data(), scales4.data());
  for (std::size_t i = 0; i < 512; ++i) {
    const std::uint8_t code = i % 2 == 0 ? nibbles[i / 2] & 15 : nibbles[i / 2] >> 4;
    EXPECT_EQ(kept[i], e2m1_to_float(code) * e8m0_to_float(scales4[i / 32]));
    EXPECT_EQ(kept[i], round_bf16(kept[i]));
  }
}

TEST(Quantize, ErrorIsWithinHalfAStepOfTheGroup) {
  std::vector<float> x = random_values(4096, 2);
  std::vector<float> kept = x;
  quantize_dequantize_e4m3(kept, 128);
  for (std::size_t i = 0; i < x.size(); ++i) {
    float amax = 0.0f;
    for (std::size_t j = i / 128 * 128; j < i / 128 * 128 + 128; ++j) amax = std::max(amax, std::fabs(x[j]));
    // Half a step is 2^-4 of the value, or half the subnormal step 2^-9 of the scale.
    const float bound = std::max(std::fabs(x[i]) / 16, e8m0_to_float(fp8_group_scale(amax)) / 1024);
    ASSERT_LE(std::fabs(kept[i] - x[i]), bound) << i;
  }
}

TEST(Quantize, AShorterLastGroupHasItsOwnScale) {
  std::vector<float> x(100, 1.0f);
  for (std::size_t i = 64; i < 100; ++i) x[i] = 448.0f * 1024.0f;
  std::vector<std::uint8_t> codes(100), scales(2);
  quantize_e4m3(x, 64, codes.data(), scales.data());
  EXPECT_EQ(scales[0], fp8_group_scale(1.0f));
  EXPECT_EQ(scales[1], 127 + 10);
  EXPECT_EQ(codes[99], 0x7e);
}

TEST(Quantize, OutOfRangeRowsScaleInsteadOfBreaking) {
  // Fault B09: values at and beyond the FP8 limit in one dim.
  for (const float extreme : {448.0f, 500.0f, 60000.0f, -60000.0f, 3e38f}) {
    std::vector<float> x(64, 1.0f);
    x[5] = extreme;
    quantize_dequantize_e4m3(x, 64);
    for (const float value : x) EXPECT_TRUE(std::isfinite(value)) << extreme;
    EXPECT_NEAR(x[5] / extreme, 1.0f, 1.0f / 16) << extreme;
  }
}

TEST(Quantize, ZeroGroupsStayZeroAndKeepSigns) {
  std::vector<float> x(128, 0.0f);
  x[3] = -0.0f;
  quantize_dequantize_e4m3(x, 64);
  quantize_dequantize_e2m1(x, 32);
  for (const float value : x) EXPECT_EQ(value, 0.0f);
  EXPECT_TRUE(std::signbit(x[3]));
}

TEST(Quantize, NvfpBlocksOfSixteen) {
  std::vector<float> x(32, 0.0f);
  for (std::size_t i = 0; i < 16; ++i) x[i] = static_cast<float>(i) - 8.0f;
  const float input_scale = 1.0f / 64;
  quantize_dequantize_nvfp4(x, input_scale);
  // Block scale: e4m3(8/6*64) = e4m3(85.33) = 88, times 1/64 = 1.375.
  EXPECT_EQ(x[0], -6.0f * 1.375f);  // -8/1.375 = -5.8 -> -6
  EXPECT_EQ(x[15], 6.0f * 1.375f);  // 7/1.375 = 5.09 -> 6
  EXPECT_EQ(x[9], 0.5f * 1.375f);   // 1/1.375 = 0.727 -> 0.5
  for (std::size_t i = 16; i < 32; ++i) EXPECT_EQ(x[i], 0.0f);
}

TEST(Hadamard, IsItsOwnInverseAndKeepsProducts) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{64}, std::size_t{128}}) {
    const std::vector<float> q = random_values(size, 3, 1.0f), k = random_values(size, 4, 1.0f);
    std::vector<float> hq = q, hk = k;
    hadamard(hq);
    hadamard(hk);
    double product = 0, rotated = 0, norm = 0;
    for (std::size_t i = 0; i < size; ++i) {
      product += static_cast<double>(q[i]) * k[i];
      rotated += static_cast<double>(hq[i]) * hk[i];
      norm += std::fabs(static_cast<double>(q[i]) * k[i]);
    }
    EXPECT_NEAR(rotated, product, 1e-5 * norm);
    hadamard(hq);
    for (std::size_t i = 0; i < size; ++i) EXPECT_NEAR(hq[i], q[i], 1e-5) << size;
  }
}

TEST(Hadamard, IsTheNaturalOrderMatrix) {
  for (std::size_t a = 0; a < 128; ++a) {
    std::vector<float> x(128, 0.0f);
    x[a] = 1.0f;
    hadamard(x);
    for (std::size_t b = 0; b < 128; ++b) {
      const float sign = std::popcount(a & b) % 2 == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(x[b], sign * static_cast<float>(1.0 / std::sqrt(128.0)));
    }
  }
}

}  // namespace
}  // namespace pivot
