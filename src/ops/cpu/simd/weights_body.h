// The weight formats on 8 lanes: how a row's codes become vectors of values. Included once per instruction
// set, after its vec_*.h.
#pragma once

#include <type_traits>

#include "ops/cpu/simd/kernels.h"

namespace {

using pivot::Matrix;
using pivot::MatrixFormat;
using pivot::ScaleFormat;
using pivot::simd::ColumnOrder;

// FP8 codes decode to value * 2^-120. Inputs for FP8 weights carry 2^64, so that products stay clear of the
// subnormal range, and the scales carry the remaining 2^56.
constexpr float kQuadsInputFactor = 0x1p+64f;
constexpr float kQuadsScaleFactor = 0x1p+56f;

PIVOT_INLINE Vec round_to_bf16(Vec v) {
  const Bits u = bits(v);
  const Bits odd = bit_and(shift_right<16>(u), splat_bits(1));
  const Bits rounded = bit_and(add_bits(u, add_bits(splat_bits(0x7fffu), odd)), splat_bits(0xffff0000u));
  const Bits quiet = bit_and(bit_or(u, splat_bits(0x00400000u)), splat_bits(0xffff0000u));
  return select(is_nan(v), from_bits(quiet), from_bits(rounded));
}
PIVOT_INLINE float round_to_bf16(float x) {
  float out[8];
  store(out, round_to_bf16(splat(x)));
  return out[0];
}

constexpr float kE2m1Table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                  -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

PIVOT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// 2^(byte-127); NaN for 0xff.
PIVOT_INLINE float e8m0_value(std::byte byte) {
  const auto code = static_cast<std::uint32_t>(byte);
  std::uint32_t u = code << 23;
  if (code == 0) u = 0x00400000u;
  if (code == 0xff) u = 0x7fc00000u;
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}
// ---- formats ----
//
// kChunk columns are decoded at a time into kChunk/8 vectors, and take kChunkBytes of codes. kVecsPerScale
// vectors share a scale vector (0: the format has none). kScaleBlock: columns per scale vector.

struct F32Format {
  static constexpr int kChunk = 8, kVecsPerScale = 0;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols * 4; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { std::memcpy(&out[0], p, sizeof(Vec)); }
};

struct Bf16Format {
  static constexpr int kChunk = 16, kVecsPerScale = 0;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols * 2; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_bf16(p, out); }
};

struct Fp8Format {
  static constexpr int kChunk = 32, kVecsPerScale = 16;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_e4m3(p, out); }
  // Scale of columns [128*block, +128) of a row.
  PIVOT_INLINE Vec scale(const Matrix& w, std::int64_t row, std::int64_t block) {
    const std::int64_t index = row / 128 * ((w.cols + 127) / 128) + block;
    float value;
    if (w.scale_format == ScaleFormat::kF32)
      std::memcpy(&value, w.scales + 4 * index, 4);
    else
      value = e8m0_value(w.scales[index]);
    return splat(value * kQuadsScaleFactor);
  }
};

struct Fp4Format {
  static constexpr int kChunk = 64, kVecsPerScale = 8;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols / 2; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_e2m1(p, out); }
  // Lanes 0-3: columns [64*block, +32); lanes 4-7: the next 32, absent at the end of an odd number of groups.
  PIVOT_INLINE Vec scale(const Matrix& w, std::int64_t row, std::int64_t block) {
    const std::int64_t groups = w.cols / 32;
    const std::byte* p = w.scales + row * groups + 2 * block;
    if (2 * block + 1 < groups) return decode_e8m0_pair(p);
    const std::byte pair[2] = {*p, std::byte{0}};
    return decode_e8m0_pair(pair);
  }
};

// The 16-column scales multiply the codes (an exact product), so that with power-of-two scales the sums are
// those of FP4 bit for bit: a losslessly cast checkpoint computes what its source does.
struct Nvfp4Format {
  static constexpr int kChunk = 64, kVecsPerScale = 8;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols / 2; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_e2m1(p, out); }
  PIVOT_INLINE Vec scale(const Matrix&, std::int64_t, std::int64_t) { return splat(1.0f); }
  // Vectors 4u..4u+3: lanes 0-3 are group u of 16 columns, lanes 4-7 group 2+u.
  PIVOT_INLINE void apply_scales(const Matrix& w, std::int64_t row, std::int64_t col, Vec* values) {
    const std::int64_t groups = w.cols / 16;
    const std::byte* p = w.scales + row * groups + col / 16;
    std::byte four[4] = {};
    std::memcpy(four, p, static_cast<std::size_t>(smaller(4, groups - col / 16)));
    Vec scales[2];
    decode_e4m3_scales(four, scales);
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) values[v] = values[v] * scales[v / 4];
  }
};

// One chunk of a row, with zero codes beyond the last column.
template <class Format>
PIVOT_INLINE void decode_chunk(const Matrix& w, const std::byte* codes, std::int64_t row, std::int64_t col,
                               Vec* out) {
  if (col + Format::kChunk <= w.cols) {
    Format::decode(codes + Format::bytes(col), out);
  } else {
    std::byte padded[64] = {};
    std::memcpy(padded, codes + Format::bytes(col), static_cast<std::size_t>(Format::bytes(w.cols - col)));
    Format::decode(padded, out);
  }
  if constexpr (std::is_same_v<Format, Nvfp4Format>) Format::apply_scales(w, row, col, out);
}

}  // namespace
