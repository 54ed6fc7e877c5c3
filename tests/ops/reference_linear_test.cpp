// The oracle's linears against a double-precision sum of the same quantised operands (specification check 4),
// and weight decoding (check 2).
#include "ops/cpu/reference/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/threads.h"
#include "ops/random_layer.h"
#include "support/golden_compare.h"

namespace pivot::reference {
namespace {

// One weight from its bytes, in double, written independently of the code under test.
double weight_at(const Matrix& w, std::int64_t n, std::int64_t k) {
  const auto byte = [](const std::byte* base, std::int64_t i) { return std::to_integer<int>(base[i]); };
  const auto e2m1 = [&](int code) {
    const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return (code & 8 ? -1 : 1) * magnitudes[code & 7];
  };
  const auto e4m3 = [](int code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    return (code & 128 ? -1 : 1) *
           (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  };
  const std::int64_t at = n * w.cols + k;
  float f32 = 0;
  switch (w.format) {
    case MatrixFormat::kBF16: {
      const std::uint32_t bits =
          static_cast<std::uint32_t>(byte(w.codes, 2 * at) | byte(w.codes, 2 * at + 1) << 8) << 16;
      std::memcpy(&f32, &bits, 4);
      return f32;
    }
    case MatrixFormat::kF32:
      std::memcpy(&f32, w.codes + 4 * at, 4);
      return f32;
    case MatrixFormat::kFP8: {
      const std::int64_t block = n / 128 * ((w.cols + 127) / 128) + k / 128;
      if (w.scale_format == ScaleFormat::kF32) {
        std::memcpy(&f32, w.scales + 4 * block, 4);
        return e4m3(byte(w.codes, at)) * f32;
      }
      return e4m3(byte(w.codes, at)) * std::ldexp(1.0, byte(w.scales, block) - 127);
    }
    case MatrixFormat::kFP4:
    case MatrixFormat::kNVFP4: {
      const int pair = byte(w.codes, at / 2);
      const double code = e2m1(at % 2 == 0 ? pair & 15 : pair >> 4);
      if (w.format == MatrixFormat::kFP4) return code * std::ldexp(1.0, byte(w.scales, at / 32) - 127);
      return code * e4m3(byte(w.scales, at / 16)) * w.global_scale;
    }
  }
  return 0;
}

class Linears : public testing::Test {
 protected:
  // Checks every output of `w` for inputs of `tokens` rows against the double sum.
  void check(const Matrix& w, ActQuant act, std::int64_t tokens) {
    const std::vector<float> x = make_.activations(tokens * w.cols);
    const LinearInput input = linear_input(w, act, x.data(), tokens, w.cols);
    const std::vector<float> y = linear(w, input, pool_);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t n = 0; n < w.rows; ++n) {
        double sum = 0, size = 0;
        for (std::int64_t k = 0; k < w.cols; ++k) {
          const double scale = input.scales.empty()
                                   ? 1.0
                                   : input.scales[static_cast<std::size_t>(t * input.groups() + k / 128)];
          const double product =
              input.values[static_cast<std::size_t>(t * w.cols + k)] * scale * weight_at(w, n, k);
          sum += product;
          size += std::fabs(product);
        }
        const float actual = y[static_cast<std::size_t>(t * w.rows + n)];
        // fp32 accumulation: about 140 roundings of partial sums bounded by the absolute sum.
        ASSERT_NEAR(actual, sum, 1e-5 * size)
            << to_string(w.format) << " " << w.rows << "x" << w.cols << " at " << t << "," << n;
        const float rounded = round_bf16(actual), exact = round_bf16(static_cast<float>(sum));
        if (std::fabs(sum) > 0.01 * size) test::expect_bf16_close({&rounded, 1}, {&exact, 1}, 1, "rounded");
      }
    }
  }

  test::RandomMatrices make_{7};
  ThreadPool pool_{2};
};

TEST_F(Linears, EveryFormatMatchesDoubleSums) {
  for (const std::int64_t tokens : {1, 2, 7, 128}) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{40, 96}, {130, 160}, {33, 352}}) {
      const std::int64_t used = tokens == 128 ? std::min<std::int64_t>(rows, 33) : rows;
      check(make_.bf16(used, cols), ActQuant::kFp8, tokens);
      for (const ActQuant act : {ActQuant::kFp8, ActQuant::kBf16}) {
        check(make_.fp8(used, cols), act, tokens);
        check(make_.fp8(used, cols, ScaleFormat::kF32), act, tokens);
        check(make_.fp4(used, cols), act, tokens);
        check(make_.nvfp4(used, cols), act, tokens);
      }
      check(make_.nvfp4(used, cols), ActQuant::kNvfp4, tokens);
    }
  }
}

TEST_F(Linears, DequantizedRowsAreExact) {
  for (const Matrix& w : {make_.bf16(5, 96), make_.fp8(140, 300), make_.fp8(140, 300, ScaleFormat::kF32),
                          make_.fp4(5, 96), make_.nvfp4(5, 96)}) {
    std::vector<float> row(static_cast<std::size_t>(w.cols));
    for (std::int64_t n = 0; n < w.rows; ++n) {
      dequantize_row(w, n, row.data());
      for (std::int64_t k = 0; k < w.cols; ++k) {
        // F32 block scales and NVFP4 round once to fp32; everything else is exact.
        const double expected = weight_at(w, n, k);
        const bool exact = w.scale_format != ScaleFormat::kF32 && w.format != MatrixFormat::kNVFP4;
        ASSERT_NEAR(row[static_cast<std::size_t>(k)], expected, exact ? 0.0 : std::fabs(expected) * 0x1p-23)
            << to_string(w.format);
      }
    }
  }
}

TEST_F(Linears, HandMadeFp4Byte) {
  // Specification check 2: low nibble is the even column; 0x92 = codes 2 (1.0) and 9 (-0.5); scale 2^3.
  std::vector<std::byte> codes(16, std::byte{0}), scales = {std::byte{130}};
  codes[0] = std::byte{0x92};
  const Matrix w{MatrixFormat::kFP4, ScaleFormat::kE8M0, 1, 32, codes.data(), scales.data(), 1.0f, 0.0f};
  std::vector<float> row(32);
  dequantize_row(w, 0, row.data());
  EXPECT_EQ(row[0], 8.0f);
  EXPECT_EQ(row[1], -4.0f);
  EXPECT_EQ(row[2], 0.0f);
}

TEST_F(Linears, Nvfp4GlobalScaleMultiplies) {
  // Fault B08: all codes 1.0, block scale 2^((r+c) mod 3), input 6.0, global scale 0.25.
  std::vector<std::byte> codes(192 * 32, std::byte{0x22}), scales(192 * 4);
  for (std::size_t r = 0; r < 192; ++r)
    for (std::size_t c = 0; c < 4; ++c) scales[r * 4 + c] = static_cast<std::byte>(0x38 + 8 * ((r + c) % 3));
  const Matrix w{MatrixFormat::kNVFP4, ScaleFormat::kE4M3, 192, 64, codes.data(), scales.data(), 0.25f, 1.0f};
  const std::vector<float> x(64, 6.0f);
  for (const ActQuant act : {ActQuant::kNvfp4, ActQuant::kFp8, ActQuant::kBf16}) {
    const std::vector<float> y = linear(w, linear_input(w, act, x.data(), 1, 64), pool_);
    for (std::size_t r = 0; r < 192; ++r)
      EXPECT_EQ(y[r], r % 3 == 0 ? 192.0f : r % 3 == 1 ? 216.0f : 264.0f) << r;
  }
}

TEST_F(Linears, RowRangesAreRowsOfTheWhole) {
  const Matrix w = make_.fp8(200, 160);
  const std::vector<float> x = make_.activations(3 * 160);
  const LinearInput input = fp8_input(x.data(), 3, 160);
  const std::vector<float> whole = linear(w, input, pool_);
  for (const auto& [begin, end] :
       {std::pair<std::int64_t, std::int64_t>{0, 1}, {100, 170}, {127, 129}, {199, 200}}) {
    std::vector<float> part(static_cast<std::size_t>(3 * (end - begin)));
    linear(w, begin, end, input, part.data(), end - begin, pool_);
    for (std::int64_t t = 0; t < 3; ++t)
      for (std::int64_t n = begin; n < end; ++n)
        ASSERT_EQ(part[static_cast<std::size_t>(t * (end - begin) + n - begin)],
                  whole[static_cast<std::size_t>(t * 200 + n)]);
  }
}

TEST_F(Linears, UnalignedWeightsAreRead) {
  const Matrix w = make_.bf16(8, 96);
  std::vector<std::byte> shifted(static_cast<std::size_t>(w.code_bytes()) + 1);
  std::memcpy(shifted.data() + 1, w.codes, static_cast<std::size_t>(w.code_bytes()));
  Matrix moved = w;
  moved.codes = shifted.data() + 1;
  const std::vector<float> x = make_.activations(96);
  EXPECT_EQ(linear(w, plain_input(x.data(), 1, 96), pool_),
            linear(moved, plain_input(x.data(), 1, 96), pool_));
}

TEST_F(Linears, UnusableMatricesAreNamed) {
  Matrix w = make_.fp4(4, 96);
  EXPECT_TRUE(check_matrix(w, "w").has_value());
  w.cols = 80;
  EXPECT_NE(check_matrix(w, "layers.3.w1").error().message.find("layers.3.w1"), std::string::npos);
  Matrix bare = make_.fp8(4, 96);
  bare.scale_format = ScaleFormat::kNone;
  EXPECT_FALSE(check_matrix(bare, "w").has_value());
  EXPECT_FALSE(check_matrix({}, "w").has_value());
}

}  // namespace
}  // namespace pivot::reference
