// The scalar formats against definitions written independently here: tables by arithmetic in double, and
// rounding by a search for the nearest value.
#include "numeric/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace pivot {
namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// The value of an E4M3fn code from its definition: sign, 4 exponent bits (bias 7), 3 mantissa bits.
double e4m3_by_definition(int code) {
  const double sign = code & 0x80 ? -1.0 : 1.0;
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 10);
}

double e2m1_by_definition(int code) {
  const double sign = code & 8 ? -1.0 : 1.0;
  const int exponent = (code >> 1) & 3;
  const int mantissa = code & 1;
  return sign * (exponent == 0 ? 0.5 * mantissa : std::ldexp(2 + mantissa, exponent - 2));
}

// The nearest magnitude among `values` (ascending codes from 0) after saturating; at equal distance the even
// code.
int nearest_code(double magnitude, const std::vector<double>& values) {
  magnitude = std::min(magnitude, values.back());
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double distance = std::fabs(values[static_cast<std::size_t>(code)] - magnitude);
    const double best_distance = std::fabs(values[static_cast<std::size_t>(best)] - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return best;
}

// Floats that matter for a grid: every value, every midpoint, their fp32 neighbours, and random ones.
std::vector<float> probes(const std::vector<double>& values) {
  std::vector<float> result;
  const auto add = [&](double x) {
    const float value = static_cast<float>(x);
    for (const float probe : {value, std::nextafter(value, -1e30f), std::nextafter(value, 1e30f)}) {
      result.push_back(probe);
      result.push_back(-probe);
    }
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    add(values[i]);
    if (i > 0) add((values[i - 1] + values[i]) / 2);
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-16.0f, 10.0f);
  for (int i = 0; i < 200000; ++i) {
    const float magnitude = std::exp2(exponent(random));
    result.push_back(random() % 2 == 0 ? magnitude : -magnitude);
  }
  for (const float x : {0.0f, -0.0f, 1e-45f, 1e38f, INFINITY, -INFINITY}) result.push_back(x);
  return result;
}

TEST(E4m3, EveryCodeHasItsDefinedValueAndRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    const double expected = e4m3_by_definition(code);
    EXPECT_EQ(bits(value), bits(kE4m3Values[static_cast<std::size_t>(code)])) << code;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(static_cast<double>(value), expected) << code;
      EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
    }
    EXPECT_EQ(float_to_e4m3(value), code) << code;
  }
}

TEST(E4m3, RoundsToTheNearestValueTiesToEven) {
  std::vector<double> values;
  for (int code = 0; code < 0x7f; ++code) values.push_back(e4m3_by_definition(code));
  for (const float x : probes(values)) {
    const int expected =
        nearest_code(std::fabs(static_cast<double>(x)), values) | (std::signbit(x) ? 0x80 : 0);
    ASSERT_EQ(float_to_e4m3(x), expected) << x;
  }
}

TEST(E4m3, SaturatesInsteadOfMakingNan) {
  EXPECT_EQ(float_to_e4m3(449.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(465.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-60000.0f), 0xfe);
  EXPECT_EQ(float_to_e4m3(std::nanf("")), 0x7f);
  EXPECT_EQ(float_to_e4m3(-0.0f), 0x80);
}

TEST(E2m1, EveryCodeRoundTrips) {
  for (int code = 0; code < 16; ++code) {
    const float value = e2m1_to_float(static_cast<std::uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), e2m1_by_definition(code));
    EXPECT_EQ(std::signbit(value), (code & 8) != 0);
    EXPECT_EQ(float_to_e2m1(value), code);
  }
}

TEST(E2m1, RoundsToTheNearestValueTiesToEven) {
  std::vector<double> values;
  for (int code = 0; code < 8; ++code) values.push_back(e2m1_by_definition(code));
  for (const float x : probes(values)) {
    const int expected = nearest_code(std::fabs(static_cast<double>(x)), values) | (std::signbit(x) ? 8 : 0);
    ASSERT_EQ(float_to_e2m1(x), expected) << x;
  }
}

TEST(E2m1, TieTableOfSpecification32) {
  const float ties[][2] = {{0.25f, 0.0f}, {0.75f, 1.0f}, {1.25f, 1.0f}, {1.75f, 2.0f},
                           {2.5f, 2.0f},  {3.5f, 4.0f},  {5.0f, 4.0f}};
  for (const auto& [x, rounded] : ties) {
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(x)), rounded) << x;
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(-x)), -rounded) << -x;
  }
}

TEST(Bf16, EveryPatternRoundTrips) {
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const BF16 value{static_cast<std::uint16_t>(pattern)};
    const float wide = to_float(value);
    EXPECT_EQ(bits(wide), pattern << 16);
    const BF16 back = to_bf16(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(back)));
      EXPECT_EQ(back.bits & 0x8000u, pattern & 0x8000u);
    } else {
      EXPECT_EQ(back.bits, pattern);
    }
  }
}

TEST(Bf16, RoundsToTheNearestTiesToEven) {
  std::mt19937 random(2);
  for (int i = 0; i < 500000; ++i) {
    // Every third probe is an exact tie: low half 0x8000.
    const std::uint32_t pattern = i % 3 == 0 ? (random() & 0xffff0000u) | 0x8000u : random();
    const float x = std::bit_cast<float>(pattern);
    if (!std::isfinite(x)) continue;
    const float down = std::bit_cast<float>(pattern & 0xffff0000u);
    const float up = std::bit_cast<float>((pattern & 0xffff0000u) + 0x10000u);
    const double below = std::fabs(static_cast<double>(x) - down);
    // Beyond the largest finite BF16 the neighbour is 2^128.
    const double above = std::isfinite(up) ? std::fabs(static_cast<double>(up) - x)
                                           : std::ldexp(1.0, 128) - std::fabs(static_cast<double>(x));
    const bool even_down = ((pattern >> 16) & 1u) == 0;
    const float expected = below < above || (below == above && even_down) ? down : up;
    ASSERT_EQ(bits(round_bf16(x)), bits(expected)) << x;
  }
}

TEST(Bf16, KeepsInfinitiesAndNans) {
  EXPECT_EQ(to_bf16(INFINITY).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-INFINITY).bits, 0xff80);
  EXPECT_EQ(to_bf16(3.4028235e38f).bits, 0x7f80);  // the largest float is nearer to 2^128
  // A NaN whose payload lies in the low half only must not round to infinity.
  EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0xffffffffu))));
}

TEST(E8m0, EveryByte) {
  for (int byte = 0; byte < 255; ++byte)
    EXPECT_EQ(static_cast<double>(e8m0_to_float(static_cast<std::uint8_t>(byte))),
              std::ldexp(1.0, byte - 127))
        << byte;
  EXPECT_TRUE(std::isnan(e8m0_to_float(0xff)));
}

TEST(GroupScale, PowersOfTwoTimesTheMaximumAreExact) {
  // Specification check 3. Exponents keep v a normal float and stay above the floors.
  for (int k = -20; k <= 100; ++k) {
    const float fp8 = std::ldexp(448.0f, k);
    EXPECT_EQ(fp8_group_scale(fp8), k + 127) << k;
    EXPECT_EQ(fp8_group_scale(to_float({static_cast<std::uint16_t>(to_bf16(fp8).bits + 1)})), k + 128) << k;
  }
  for (int k = -125; k <= 120; ++k) {
    const float fp4 = std::ldexp(6.0f, k);
    EXPECT_EQ(fp4_group_scale(fp4), k + 127) << k;
    EXPECT_EQ(fp4_group_scale(to_float({static_cast<std::uint16_t>(to_bf16(fp4).bits + 1)})), k + 128) << k;
  }
}

TEST(GroupScale, FloorsOfEmptyGroups) {
  EXPECT_EQ(fp8_group_scale(0.0f), 105);
  EXPECT_EQ(fp8_group_scale(1e-5f), 105);
  EXPECT_EQ(fp4_group_scale(0.0f), 1);
  EXPECT_EQ(fp4_group_scale(std::ldexp(1.0f, -130)), 1);
}

TEST(GroupScale, SmallestPowerOfTwoThatFits) {
  // For BF16-valued maxima the rule equals "the smallest power of two with amax/scale <= F", in exact
  // arithmetic.
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i) {
    const float amax = std::fabs(to_float({static_cast<std::uint16_t>(random() % 0x7f00u)}));
    if (amax > kFp8ScaleFloor) {
      const double scale = static_cast<double>(e8m0_to_float(fp8_group_scale(amax)));
      ASSERT_LE(amax / scale, 448.0) << amax;
      ASSERT_GT(amax / (scale / 2), 448.0) << amax;
    }
    if (amax > kFp4ScaleFloor) {
      const double scale = static_cast<double>(e8m0_to_float(fp4_group_scale(amax)));
      ASSERT_LE(amax / scale, 6.0) << amax;
      ASSERT_GT(amax / (scale / 2), 6.0) << amax;
    }
  }
}

}  // namespace
}  // namespace pivot
