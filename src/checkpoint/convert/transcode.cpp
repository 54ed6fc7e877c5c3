#include "checkpoint/convert/transcode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "checkpoint/dequantize.h"
#include "numeric/formats.h"

namespace pivot {

namespace {

constexpr int kE8m0Bias = 127;
constexpr int kNvfp4Headroom = 8;  // weight_scale_2 = 2^(kmax - 8): the largest block scale is then 2^8
constexpr int kNvfp4Span = 17;     // 2^8 down to 2^-9, the smallest E4M3 subnormal
constexpr std::uint8_t kSmallestE4m3 = 1;  // 2^-9
constexpr std::uint8_t kZeroBlockE8m0 =
    1;                           // what the quantiser writes for a block of zeros (specification 3.1)
constexpr int kFp8Headroom = 6;  // FP4 codes reach 6, and 6 * 2^6 = 384 <= 448

std::uint8_t byte_at(const std::byte* data, std::int64_t index) {
  return std::to_integer<std::uint8_t>(data[index]);
}

// `columns` codes of one row, from `column` on, are all zero (of either sign).
bool zero_codes(const Matrix& m, std::int64_t row, std::int64_t column, std::int64_t columns) {
  const std::byte* at = m.codes + row * (m.cols / 2) + column / 2;
  return std::all_of(at, at + columns / 2,
                     [](std::byte pair) { return (pair & std::byte{0x77}) == std::byte{0}; });
}

// 2^exponent as an E4M3 code; exponent in [-9, 8].
std::uint8_t e4m3_power(int exponent) {
  if (exponent >= -6) return static_cast<std::uint8_t>((exponent + 7) << 3);
  return static_cast<std::uint8_t>(1 << (exponent + 9));
}

// log2 of a positive power of two; nullopt for anything else.
std::optional<int> exact_log2(float value) {
  if (!(value > 0) || !std::isfinite(value)) return std::nullopt;
  int exponent = 0;
  if (std::frexp(value, &exponent) != 0.5f) return std::nullopt;
  return exponent - 1;
}

// Bits of |value| of fp32 numbers, as integers: they order like the magnitudes, and loops over them
// vectorise.
constexpr std::int32_t kMagnitude = 0x7fffffff;
constexpr std::int32_t kOne = 0x3f800000;
constexpr std::int32_t kHalf = 0x3f000000;
constexpr std::int32_t kInfinity = 0x7f800000;

std::int32_t magnitude_bits(float value) { return std::bit_cast<std::int32_t>(value) & kMagnitude; }

// Codes of one 32-block of values on the FP4 grid under the scale 2^(byte - 127); false where one does not
// fit. From 1 on, an E2M1 code is the exponent and the first mantissa bit of the scaled value; below are 0.5
// and 0.
bool encode_fp4_block(const float* values, std::uint8_t byte, std::uint8_t* codes) {
  constexpr int kMantissaBits = 22;  // that a grid value leaves zero
  constexpr std::int32_t kCodeOffset = (kOne >> kMantissaBits) - 2;
  constexpr std::int32_t kLargestCode = 7;
  const float per_value = 1.0f / e8m0_to_float(byte);
  std::int32_t block[kFp4GroupCols];
  std::int32_t off_grid = 0;
  // Masks instead of branches: codes are random, so a branch on one is mispredicted every other time.
  for (std::int64_t k = 0; k < kFp4GroupCols; ++k) {
    const std::int32_t value = std::bit_cast<std::int32_t>(values[k]);
    const std::int32_t scaled = magnitude_bits(values[k] * per_value);
    const std::int32_t code = (scaled >> kMantissaBits) - kCodeOffset;
    const std::int32_t normal = -static_cast<std::int32_t>(scaled >= kOne);
    const std::int32_t half = -static_cast<std::int32_t>(scaled == kHalf);
    const std::int32_t too_large = static_cast<std::int32_t>(code > kLargestCode);
    off_grid |= normal & ((scaled & ((1 << kMantissaBits) - 1)) | too_large);
    // Of the value itself, because a tiny one may vanish in the product.
    off_grid |= ~normal & ~half & value & kMagnitude;
    block[k] = (normal & code) | (half & 1) | (value >> 28 & 8);
  }
  if (off_grid != 0) return false;
  for (std::int64_t k = 0; k < kFp4GroupCols; k += 2)
    codes[k / 2] = static_cast<std::uint8_t>(block[k] | block[k + 1] << 4);
  return true;
}

// The scale byte of a 128x128 block of an FP4 matrix: the largest group scale of the block over 64
// (specification 4.2).
std::uint8_t fp8_scale_of_fp4(const Matrix& m, std::int64_t row_begin, std::int64_t rows,
                              std::int64_t column) {
  const std::int64_t groups = m.cols / kFp4GroupCols;
  const std::int64_t last = std::min(m.cols, column + kFp8BlockCols) / kFp4GroupCols;
  int largest = -1;
  for (std::int64_t row = row_begin; row < row_begin + rows; ++row)
    for (std::int64_t group = column / kFp4GroupCols; group < last; ++group) {
      const int byte = byte_at(m.scales, row * groups + group);
      if (byte > largest && !zero_codes(m, row, group * kFp4GroupCols, kFp4GroupCols)) largest = byte;
    }
  if (largest < 0) return fp8_group_scale(0.0f);
  return static_cast<std::uint8_t>(std::max(0, largest - kFp8Headroom));
}

std::uint8_t fp8_scale_of_values(const std::vector<float>& values, std::int64_t rows, std::int64_t cols,
                                 std::int64_t column) {
  float amax = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t k = column; k < std::min(cols, column + kFp8BlockCols); ++k)
      amax = std::max(amax, std::fabs(values[static_cast<std::size_t>(row * cols + k)]));
  return fp8_group_scale(amax);
}

// Two FP4 codes times 2^shift as two E4M3 codes, for every byte, and how many of the two had to be rounded.
struct PairTable {
  std::array<std::uint16_t, 256> codes{};
  std::array<std::uint8_t, 256> rounded{};
};
constexpr int kLowestShift = -24;  // 6 * 2^-24 rounds to zero like everything below it

const PairTable& pair_table(int shift) {
  static const std::vector<PairTable> tables = [] {
    std::vector<PairTable> all(static_cast<std::size_t>(kFp8Headroom - kLowestShift + 1));
    for (std::size_t t = 0; t < all.size(); ++t)
      for (unsigned pair = 0; pair < 256; ++pair)
        for (unsigned nibble = 0; nibble < 2; ++nibble) {
          const float value = std::ldexp(e2m1_to_float(static_cast<std::uint8_t>(pair >> (4 * nibble))),
                                         static_cast<int>(t) + kLowestShift);
          const std::uint8_t code = float_to_e4m3(value);
          all[t].codes[pair] = static_cast<std::uint16_t>(all[t].codes[pair] | code << (8 * nibble));
          all[t].rounded[pair] =
              static_cast<std::uint8_t>(all[t].rounded[pair] + (e4m3_to_float(code) != value ? 1 : 0));
        }
    return all;
  }();
  return tables[static_cast<std::size_t>(std::max(shift, kLowestShift) - kLowestShift)];
}

// One row of an FP4 matrix under the block scales of its block row.
std::int64_t fp8_row_of_fp4(const Matrix& m, std::int64_t row, const std::uint8_t* block_scales,
                            std::uint8_t* out) {
  constexpr std::int64_t kPairs = kFp4GroupCols / 2;
  std::int64_t rounded = 0;
  const std::int64_t groups = m.cols / kFp4GroupCols;
  const std::byte* codes = m.codes + row * (m.cols / 2);
  for (std::int64_t group = 0; group < groups; ++group) {
    const int byte = byte_at(m.scales, row * groups + group);
    // A group above its block's scale has only zero codes: any shift gives zeros.
    const int shift = std::min(byte - block_scales[group * kFp4GroupCols / kFp8BlockCols], kFp8Headroom);
    const PairTable& table = pair_table(shift);
    for (std::int64_t p = 0; p < kPairs; ++p) {
      const std::uint8_t pair = byte_at(codes, group * kPairs + p);
      std::memcpy(out + group * kFp4GroupCols + 2 * p, &table.codes[pair], 2);
      rounded += table.rounded[pair];
    }
  }
  return rounded;
}

// One row of an FP4 matrix as BF16 bits: the code's bits with the group's exponent added; false where a value
// leaves BF16's normal range, which the general path handles.
bool bf16_row_of_fp4(const Matrix& m, std::int64_t row, std::uint16_t* out) {
  constexpr int kLowest = 4;
  constexpr int kHighest = 250;
  static const std::array<std::uint16_t, 16> bits = [] {
    std::array<std::uint16_t, 16> all{};
    for (std::uint8_t code = 0; code < 16; ++code) all[code] = to_bf16(e2m1_to_float(code)).bits;
    return all;
  }();
  const std::int64_t groups = m.cols / kFp4GroupCols;
  const std::byte* codes = m.codes + row * (m.cols / 2);
  for (std::int64_t group = 0; group < groups; ++group) {
    const int byte = byte_at(m.scales, row * groups + group);
    if (byte < kLowest || byte > kHighest) return false;
    std::array<std::uint16_t, 16> scaled = bits;
    for (std::uint8_t code = 0; code < 16; ++code)
      if ((code & 7u) != 0)
        scaled[code] = static_cast<std::uint16_t>(scaled[code] + (byte - kE8m0Bias) * 128);
    for (std::int64_t k = 0; k < kFp4GroupCols; k += 2) {
      const std::uint8_t pair = byte_at(codes, (group * kFp4GroupCols + k) / 2);
      out[group * kFp4GroupCols + k] = scaled[pair & 15u];
      out[group * kFp4GroupCols + k + 1] = scaled[pair >> 4];
    }
  }
  return true;
}

// E4M3 codes times 2^shift as E2M1 codes, sign included; kOffGrid for values between them.
constexpr std::uint8_t kOffGrid = 0x80;
constexpr int kLowestFp8Shift = -12;
constexpr int kHighestFp8Shift = 12;
using Fp8CodeTable = std::array<std::uint8_t, 256>;

const Fp8CodeTable& fp4_of_fp8_table(int shift) {
  static const std::vector<Fp8CodeTable> tables = [] {
    std::vector<Fp8CodeTable> all(static_cast<std::size_t>(kHighestFp8Shift - kLowestFp8Shift + 1));
    for (std::size_t t = 0; t < all.size(); ++t)
      for (std::size_t code = 0; code < 256; ++code) {
        const float value = std::ldexp(kE4m3Values[code], static_cast<int>(t) + kLowestFp8Shift);
        const std::uint8_t fp4 = float_to_e2m1(value);
        all[t][code] = e2m1_to_float(fp4) == value ? fp4 : kOffGrid;
      }
    return all;
  }();
  return tables[static_cast<std::size_t>(shift - kLowestFp8Shift)];
}

// One row of an FP8 matrix with E8M0 scales on the FP4 grid, from table to table; false where a block does
// not fit or lies outside the tables, which the general path then decides.
bool fp4_row_of_fp8(const Matrix& m, std::int64_t row, std::uint8_t* codes, std::uint8_t* scales) {
  const std::int64_t scale_cols = (m.cols + kFp8BlockCols - 1) / kFp8BlockCols;
  for (std::int64_t group = 0; group < m.cols / kFp4GroupCols; ++group) {
    std::uint8_t in[kFp4GroupCols];
    std::memcpy(in, m.codes + row * m.cols + group * kFp4GroupCols, sizeof(in));
    std::uint8_t largest = 0;  // E4M3 magnitudes order like their codes
    for (const std::uint8_t code : in) largest = std::max(largest, static_cast<std::uint8_t>(code & 0x7fu));
    const std::uint8_t block_scale =
        byte_at(m.scales, row / kFp8BlockRows * scale_cols + group * kFp4GroupCols / kFp8BlockCols);
    const float amax = kE4m3Values[largest] * e8m0_to_float(block_scale);
    if (!std::isfinite(amax)) return false;
    const int scale = fp4_group_scale(amax);
    const int shift = block_scale - scale;
    if (shift < kLowestFp8Shift || shift > kHighestFp8Shift) return false;
    const Fp8CodeTable& table = fp4_of_fp8_table(shift);
    std::uint8_t faults = 0;
    std::uint8_t* out = codes + group * kFp4GroupCols / 2;
    for (std::int64_t k = 0; k < kFp4GroupCols; k += 2) {
      const std::uint8_t low = table[in[k]];
      const std::uint8_t high = table[in[k + 1]];
      faults |= low | high;
      out[k / 2] = static_cast<std::uint8_t>(low | high << 4);
    }
    if ((faults & kOffGrid) != 0) return false;
    scales[group] = static_cast<std::uint8_t>(scale);
  }
  return true;
}

}  // namespace

std::optional<int> largest_exponent(const Matrix& m) {
  PIVOT_CHECK(m.format == MatrixFormat::kFP4, "format {}", to_string(m.format));
  int largest = -1;
  const std::int64_t groups = m.cols / kFp4GroupCols;
  for (std::int64_t row = 0; row < m.rows; ++row)
    for (std::int64_t group = 0; group < groups; ++group) {
      const int byte = byte_at(m.scales, row * groups + group);
      // Codes are looked at only for a block that would raise the maximum: that is rare.
      if (byte > largest && !zero_codes(m, row, group * kFp4GroupCols, kFp4GroupCols)) largest = byte;
    }
  if (largest < 0) return std::nullopt;
  return largest - kE8m0Bias;
}

float nvfp4_global_scale(int kmax) { return std::ldexp(1.0f, kmax - kNvfp4Headroom); }

Result<> nvfp4_scales(const Matrix& m, int kmax, std::int64_t row_begin, std::int64_t row_end,
                      std::span<std::uint8_t> scales) {
  const std::int64_t groups = m.cols / kFp4GroupCols;
  PIVOT_CHECK(scales.size() == static_cast<std::size_t>((row_end - row_begin) * groups * 2), "{} scales",
              scales.size());
  std::size_t at = 0;
  for (std::int64_t row = row_begin; row < row_end; ++row)
    for (std::int64_t group = 0; group < groups; ++group) {
      const int exponent = byte_at(m.scales, row * groups + group) - kE8m0Bias;
      const int drop = kmax - exponent;
      std::uint8_t code = kSmallestE4m3;
      if (drop >= 0 && drop <= kNvfp4Span) {
        code = e4m3_power(kNvfp4Headroom - drop);
      } else if (!zero_codes(m, row, group * kFp4GroupCols, kFp4GroupCols)) {
        return fail(ErrorCode::kUnsupported,
                    "row {}, block {} has the scale 2^{} where the expert's largest is 2^{}: more than the "
                    "{} binades that NVFP4 scales span, so no lossless cast exists",
                    row, group, exponent, kmax, kNvfp4Span);
      }
      scales[at++] = code;
      scales[at++] = code;
    }
  return {};
}

Result<> fp4_scales(const Matrix& m, std::int64_t row_begin, std::int64_t row_end,
                    std::span<std::uint8_t> scales) {
  const std::int64_t halves = m.cols / kNvfp4GroupCols;
  PIVOT_CHECK(scales.size() == static_cast<std::size_t>((row_end - row_begin) * halves / 2), "{} scales",
              scales.size());
  const auto global = exact_log2(m.global_scale);
  if (!global)
    return fail(ErrorCode::kUnsupported,
                "weight_scale_2 is {}, no power of two: these weights were re-quantised, so native FP4 "
                "cannot hold their values",
                m.global_scale);
  std::size_t at = 0;
  for (std::int64_t row = row_begin; row < row_end; ++row)
    for (std::int64_t half = 0; half < halves; half += 2) {
      const std::uint8_t first = byte_at(m.scales, row * halves + half);
      const std::uint8_t second = byte_at(m.scales, row * halves + half + 1);
      // Codes are looked at only where the scales leave a question: that is rare, and they are most of the
      // bytes.
      const auto zero_half = [&](std::int64_t which) {
        return zero_codes(m, row, (half + which) * kNvfp4GroupCols, kNvfp4GroupCols);
      };
      std::uint8_t code = first;
      if (first != second) {
        const bool first_zero = zero_half(0);
        const bool second_zero = zero_half(1);
        if (!first_zero && !second_zero)
          return fail(
              ErrorCode::kUnsupported,
              "row {}, the halves of block {} have the scales {} and {}: no lossless cast of native FP4", row,
              half / 2, e4m3_to_float(first), e4m3_to_float(second));
        if (first_zero && second_zero) {
          scales[at++] = kZeroBlockE8m0;
          continue;
        }
        if (first_zero) code = second;
      }
      const auto exponent = exact_log2(e4m3_to_float(code));
      const int byte = exponent ? *exponent + *global + kE8m0Bias : -1;
      const bool odd = byte < 0 || byte >= kE8m0Nan;
      if ((odd || code == kSmallestE4m3) && zero_half(0) && zero_half(1)) {
        scales[at++] = kZeroBlockE8m0;
        continue;
      }
      if (odd)
        return fail(ErrorCode::kUnsupported,
                    "row {}, block {} has the scale {}, which is no power of two that E8M0 holds: no "
                    "lossless cast of native FP4",
                    row, half / 2,
                    static_cast<double>(e4m3_to_float(code)) * static_cast<double>(m.global_scale));
      scales[at++] = static_cast<std::uint8_t>(byte);
    }
  return {};
}

Result<> fp4_exact(const Matrix& m, std::int64_t row_begin, std::int64_t row_end,
                   std::span<std::uint8_t> codes, std::span<std::uint8_t> scales) {
  constexpr int kCodeRange = 4;  // scales under which the largest code is 4..6, 2..3, 1..1.5 or 0.5
  std::vector<float> values(static_cast<std::size_t>(m.cols));
  std::uint8_t* code = codes.data();
  std::uint8_t* scale = scales.data();
  const bool fp8 = m.format == MatrixFormat::kFP8 && m.scale_format == ScaleFormat::kE8M0;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    if (fp8 && fp4_row_of_fp8(m, row, code, scale)) {
      code += m.cols / 2;
      scale += m.cols / kFp4GroupCols;
      continue;
    }
    dequantize_rows(m, row, row + 1, std::span<float>(values));
    for (std::int64_t k = 0; k < m.cols; k += kFp4GroupCols, code += kFp4GroupCols / 2, ++scale) {
      std::int32_t largest = 0;
      for (std::int64_t i = 0; i < kFp4GroupCols; ++i)
        largest = std::max(largest, magnitude_bits(values[static_cast<std::size_t>(k + i)]));
      const int first = largest < kInfinity ? fp4_group_scale(std::bit_cast<float>(largest)) : int{kE8m0Nan};
      bool fits = false;
      for (int byte = first; byte < first + kCodeRange && byte < kE8m0Nan && !fits; ++byte) {
        fits = encode_fp4_block(values.data() + k, static_cast<std::uint8_t>(byte), code);
        *scale = static_cast<std::uint8_t>(byte);
      }
      if (!fits)
        return fail(ErrorCode::kUnsupported,
                    "row {}, columns {} to {} hold values that no power-of-two scale puts on the FP4 grid: "
                    "these weights are not native FP4 in another coat",
                    row, k, k + kFp4GroupCols - 1);
    }
  }
  return {};
}

void fp8_scales(const Matrix& m, std::int64_t row_begin, std::int64_t row_end,
                std::span<std::uint8_t> scales) {
  PIVOT_CHECK(row_begin % kFp8BlockRows == 0, "row {}", row_begin);
  std::vector<float> values;
  std::size_t at = 0;
  for (std::int64_t begin = row_begin; begin < row_end; begin += kFp8BlockRows) {
    const std::int64_t rows = std::min(kFp8BlockRows, row_end - begin);
    if (m.format != MatrixFormat::kFP4) {
      values.resize(static_cast<std::size_t>(rows * m.cols));
      dequantize_rows(m, begin, begin + rows, std::span<float>(values));
    }
    for (std::int64_t column = 0; column < m.cols; column += kFp8BlockCols)
      scales[at++] = m.format == MatrixFormat::kFP4 ? fp8_scale_of_fp4(m, begin, rows, column)
                                                    : fp8_scale_of_values(values, rows, m.cols, column);
  }
}

std::int64_t fp8_blocks(const Matrix& m, std::int64_t row_begin, std::int64_t row_end,
                        std::span<std::uint8_t> codes, std::span<std::uint8_t> scales) {
  const std::int64_t blocks = (m.cols + kFp8BlockCols - 1) / kFp8BlockCols;
  fp8_scales(m, row_begin, row_end, scales);
  std::int64_t rounded = 0;
  std::vector<float> values(static_cast<std::size_t>(m.cols));
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const std::uint8_t* block_scales = scales.data() + (row - row_begin) / kFp8BlockRows * blocks;
    std::uint8_t* out = codes.data() + (row - row_begin) * m.cols;
    if (m.format == MatrixFormat::kFP4) {
      rounded += fp8_row_of_fp4(m, row, block_scales, out);
      continue;
    }
    dequantize_rows(m, row, row + 1, std::span<float>(values));
    for (std::int64_t k = 0; k < m.cols; ++k) {
      const float scale = e8m0_to_float(block_scales[k / kFp8BlockCols]);
      const float value = values[static_cast<std::size_t>(k)];
      out[k] = float_to_e4m3(value / scale);
      rounded += e4m3_to_float(out[k]) * scale != value ? 1 : 0;
    }
  }
  return rounded;
}

std::int64_t bf16_values(const Matrix& m, std::int64_t row_begin, std::int64_t row_end,
                         std::span<std::uint16_t> out) {
  std::vector<float> values(static_cast<std::size_t>(m.cols));
  std::int64_t rounded = 0;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    std::uint16_t* target = out.data() + (row - row_begin) * m.cols;
    if (m.format == MatrixFormat::kFP4 && bf16_row_of_fp4(m, row, target)) continue;
    dequantize_rows(m, row, row + 1, std::span<float>(values));
    for (std::int64_t k = 0; k < m.cols; ++k) {
      const float value = values[static_cast<std::size_t>(k)];
      const BF16 narrow = to_bf16(value);
      rounded += to_float(narrow) != value ? 1 : 0;
      target[k] = narrow.bits;
    }
  }
  return rounded;
}

}  // namespace pivot
