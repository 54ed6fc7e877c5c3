// Re-encoding of single matrices at the corners of the formats: extreme spans, zero blocks, values that do
// not fit.
#include "checkpoint/convert/transcode.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "checkpoint/dequantize.h"
#include "numeric/formats.h"

namespace pivot {
namespace {

struct Owned {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  Matrix view;
  void rebind() {
    view.codes = reinterpret_cast<const std::byte*>(codes.data());
    view.scales = reinterpret_cast<const std::byte*>(scales.data());
  }
};

Owned fp4(std::int64_t rows, std::int64_t cols, std::uint32_t seed, int low, int high) {
  std::mt19937 random(seed);
  Owned m;
  m.codes.resize(static_cast<std::size_t>(rows * cols / 2));
  m.scales.resize(static_cast<std::size_t>(rows * cols / 32));
  for (auto& code : m.codes) code = static_cast<std::uint8_t>(random());
  for (auto& scale : m.scales)
    scale = static_cast<std::uint8_t>(
        low + static_cast<int>(random() % static_cast<std::uint32_t>(high - low + 1)));
  m.view.format = MatrixFormat::kFP4;
  m.view.scale_format = ScaleFormat::kE8M0;
  m.view.rows = rows;
  m.view.cols = cols;
  m.rebind();
  return m;
}

std::vector<float> values(const Matrix& m) {
  std::vector<float> out(static_cast<std::size_t>(m.rows * m.cols));
  dequantize_rows(m, 0, m.rows, std::span<float>(out));
  return out;
}

Owned as_nvfp4(const Owned& source) {
  Owned m;
  m.codes = source.codes;
  m.scales.resize(source.scales.size() * 2);
  const int kmax = largest_exponent(source.view).value_or(0);
  const auto result = nvfp4_scales(source.view, kmax, 0, source.view.rows, m.scales);
  EXPECT_TRUE(result) << result.error().message;
  m.view = source.view;
  m.view.format = MatrixFormat::kNVFP4;
  m.view.scale_format = ScaleFormat::kE4M3;
  m.view.global_scale = nvfp4_global_scale(kmax);
  m.rebind();
  return m;
}

TEST(Transcode, Nvfp4HoldsSeventeenBinadesExactly) {
  Owned source = fp4(8, 256, 1, 100, 117);
  source.scales[0] = 117;
  source.scales[1] = 100;
  const Owned cast = as_nvfp4(source);
  EXPECT_EQ(values(cast.view), values(source.view));
  std::vector<std::uint8_t> back(source.scales.size());
  ASSERT_TRUE(fp4_scales(cast.view, 0, 8, back));
  EXPECT_EQ(back, source.scales);
}

TEST(Transcode, AnEighteenthBinadeIsRefusedUnlessItsCodesAreZero) {
  Owned source = fp4(2, 64, 2, 117, 117);
  source.scales[1] = 99;
  source.rebind();
  std::vector<std::uint8_t> scales(source.scales.size() * 2);
  const auto refused = nvfp4_scales(source.view, 117 - 127, 0, 2, scales);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  std::fill(source.codes.begin() + 16, source.codes.begin() + 32, std::uint8_t{0});
  source.rebind();
  EXPECT_TRUE(nvfp4_scales(source.view, 117 - 127, 0, 2, scales));
}

TEST(Transcode, ZeroBlocksComeBackAsTheQuantiserWritesThem) {
  Owned source = fp4(2, 128, 3, 110, 115);
  std::fill(source.codes.begin(), source.codes.begin() + 16, std::uint8_t{0});
  source.scales[0] = 1;  // E8M0 of an all-zero block (specification 3.1)
  source.rebind();
  const Owned cast = as_nvfp4(source);
  EXPECT_EQ(cast.scales[0], 1);  // 2^-9, as ModelOpt writes it
  EXPECT_EQ(cast.scales[1], 1);
  std::vector<std::uint8_t> back(source.scales.size());
  ASSERT_TRUE(fp4_scales(cast.view, 0, 2, back));
  EXPECT_EQ(back, source.scales);
}

TEST(Transcode, AllZeroMatrixHasNoExponent) {
  Owned source = fp4(2, 64, 4, 1, 1);
  std::fill(source.codes.begin(), source.codes.end(), std::uint8_t{0x80});
  source.rebind();
  EXPECT_FALSE(largest_exponent(source.view));
  EXPECT_EQ(values(as_nvfp4(source).view), values(source.view));
}

TEST(Transcode, OnlyLosslessNvfp4GoesBack) {
  const Owned source = fp4(4, 64, 5, 110, 114);
  Owned cast = as_nvfp4(source);
  std::vector<std::uint8_t> back(source.scales.size());
  Owned uneven = cast;
  uneven.scales[3] = static_cast<std::uint8_t>(uneven.scales[3] + 8);
  uneven.rebind();
  EXPECT_FALSE(fp4_scales(uneven.view, 0, 4, back));
  Owned mantissa = cast;
  mantissa.scales[2] = mantissa.scales[3] = static_cast<std::uint8_t>(mantissa.scales[3] | 3);
  mantissa.rebind();
  EXPECT_FALSE(fp4_scales(mantissa.view, 0, 4, back));
  cast.view.global_scale = 0.3f;
  const auto refused = fp4_scales(cast.view, 0, 4, back);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("weight_scale_2"), std::string::npos);
}

TEST(Transcode, Fp8IsExactWithinFourteenBinades) {
  const Owned source = fp4(200, 192, 6, 106, 120);  // partial blocks in both directions
  std::vector<std::uint8_t> codes(200 * 192);
  std::vector<std::uint8_t> scales(2 * 2);
  EXPECT_EQ(fp8_blocks(source.view, 0, 200, codes, scales), 0);
  Matrix fp8;
  fp8.format = MatrixFormat::kFP8;
  fp8.scale_format = ScaleFormat::kE8M0;
  fp8.rows = 200;
  fp8.cols = 192;
  fp8.codes = reinterpret_cast<const std::byte*>(codes.data());
  fp8.scales = reinterpret_cast<const std::byte*>(scales.data());
  EXPECT_EQ(values(fp8), values(source.view));
  // Twenty binades inside one block cannot be.
  const Owned wide = fp4(128, 128, 7, 100, 120);
  codes.resize(128 * 128);
  scales.resize(1);
  EXPECT_GT(fp8_blocks(wide.view, 0, 128, codes, scales), 0);
}

TEST(Transcode, Bf16HoldsFp4AndFp8Exactly) {
  const Owned source = fp4(16, 96, 8, 90, 140);
  std::vector<std::uint16_t> bits(16 * 96);
  EXPECT_EQ(bf16_values(source.view, 0, 16, bits), 0);
  const std::vector<float> wanted = values(source.view);
  for (std::size_t i = 0; i < bits.size(); ++i) EXPECT_EQ(to_float(BF16{bits[i]}), wanted[i]);
}

TEST(Transcode, TableDrivenPathsEqualTheDefinition) {
  // Every scale byte up to 2^125 (beyond it 6 times the scale leaves fp32), so that shifts below the table
  // and values outside BF16's normal range occur.
  Owned source = fp4(128, 256, 11, 0, 252);
  for (int byte = 0; byte <= 252; ++byte)
    source.scales[static_cast<std::size_t>(byte)] = static_cast<std::uint8_t>(byte);
  const std::vector<float> wanted = values(source.view);
  std::vector<std::uint8_t> codes(128 * 256);
  std::vector<std::uint8_t> scales(2);
  const std::int64_t rounded = fp8_blocks(source.view, 0, 128, codes, scales);
  std::int64_t expected_rounded = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    // In fp64, because the smallest values over the largest scale leave fp32.
    const double scale = std::ldexp(1.0, scales[i % 256 / 128] - 127);
    const double quotient = static_cast<double>(wanted[i]) / scale;
    ASSERT_EQ(e4m3_to_float(codes[i]), e4m3_to_float(float_to_e4m3(static_cast<float>(quotient)))) << i;
    expected_rounded += static_cast<double>(e4m3_to_float(codes[i])) != quotient ? 1 : 0;
  }
  EXPECT_EQ(rounded, expected_rounded);
  std::vector<std::uint16_t> bits(128 * 256);
  const std::int64_t narrowed = bf16_values(source.view, 0, 128, bits);
  std::int64_t expected_narrowed = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(bits[i], to_bf16(wanted[i]).bits) << i;
    expected_narrowed += to_float(BF16{bits[i]}) != wanted[i] ? 1 : 0;
  }
  EXPECT_EQ(narrowed, expected_narrowed);
}

TEST(Transcode, Fp4IsFoundAgainInBf16) {
  const Owned source = fp4(8, 128, 9, 110, 120);
  std::vector<std::uint16_t> bits(8 * 128);
  bf16_values(source.view, 0, 8, bits);
  Matrix wide;
  wide.format = MatrixFormat::kBF16;
  wide.rows = 8;
  wide.cols = 128;
  wide.codes = reinterpret_cast<const std::byte*>(bits.data());
  Owned found = fp4(8, 128, 10, 1, 1);
  ASSERT_TRUE(fp4_exact(wide, 0, 8, found.codes, found.scales));
  found.rebind();
  EXPECT_EQ(values(found.view), values(source.view));
  for (const float odd : {1.2345f, std::nanf(""), -std::numeric_limits<float>::infinity(), 3.3e38f, 1e-38f}) {
    std::vector<std::uint16_t> spoilt = bits;
    spoilt[5] = to_bf16(odd).bits;
    wide.codes = reinterpret_cast<const std::byte*>(spoilt.data());
    EXPECT_FALSE(fp4_exact(wide, 0, 8, found.codes, found.scales)) << odd;
  }
}

TEST(Transcode, Fp4IsFoundInFp8AsInItsValues) {
  // Scales from one end of E8M0 to near the other, so that blocks inside and outside the tables occur.
  for (const int low : {1, 5, 60, 110, 235}) {
    const Owned source = fp4(256, 256, static_cast<std::uint32_t>(low), low, low + 12);
    Owned fp8;
    fp8.codes.resize(256 * 256);
    fp8.scales.resize(2 * 2);
    if (fp8_blocks(source.view, 0, 256, fp8.codes, fp8.scales) != 0) continue;  // rounded: no FP4 in it
    fp8.view = source.view;
    fp8.view.format = MatrixFormat::kFP8;
    fp8.rebind();
    const std::vector<float> wanted = values(fp8.view);
    Matrix wide;
    wide.format = MatrixFormat::kF32;
    wide.rows = wide.cols = 256;
    wide.codes = reinterpret_cast<const std::byte*>(wanted.data());
    Owned by_table = fp4(256, 256, 1, 1, 1);
    Owned by_value = fp4(256, 256, 2, 1, 1);
    ASSERT_TRUE(fp4_exact(fp8.view, 0, 256, by_table.codes, by_table.scales)) << low;
    ASSERT_TRUE(fp4_exact(wide, 0, 256, by_value.codes, by_value.scales)) << low;
    EXPECT_EQ(by_table.codes, by_value.codes) << low;
    EXPECT_EQ(by_table.scales, by_value.scales) << low;
    fp8.codes[77] = 0x7f;  // NaN
    EXPECT_FALSE(fp4_exact(fp8.view, 0, 256, by_table.codes, by_table.scales)) << low;
    fp8.codes[77] = 0x39;  // 1.125
    EXPECT_FALSE(fp4_exact(fp8.view, 0, 256, by_table.codes, by_table.scales)) << low;
  }
}

TEST(Transcode, EveryCodeUnderEveryScaleIsFoundAgain) {
  // One block a scale byte: all 16 codes twice. 2^125 is the last scale whose 6 fits fp32.
  constexpr int kScales = 252;
  std::vector<float> all(kScales * 32);
  for (int s = 0; s < kScales; ++s)
    for (int k = 0; k < 32; ++k)
      all[static_cast<std::size_t>(s * 32 + k)] =
          e2m1_to_float(static_cast<std::uint8_t>(k % 16)) * e8m0_to_float(static_cast<std::uint8_t>(s + 1));
  Matrix wide;
  wide.format = MatrixFormat::kF32;
  wide.rows = kScales;
  wide.cols = 32;
  wide.codes = reinterpret_cast<const std::byte*>(all.data());
  Owned found = fp4(kScales, 32, 12, 1, 1);
  ASSERT_TRUE(fp4_exact(wide, 0, kScales, found.codes, found.scales));
  found.rebind();
  const std::vector<float> got = values(found.view);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(all[i])) << i;
}

}  // namespace
}  // namespace pivot
