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

// FP8 codes decode to value * 2^-120. Inputs of FP8 weights carry 2^64 (permute() puts it there), so that
// products stay clear of the subnormal range; the weights' scales carry the rest.
constexpr float kQuadsInputFactor = 0x1p+64f;
constexpr float kQuadsScaleFactor = 0x1p+56f;

PIVOT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

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

// Each format decodes kChunk columns of a row at a time into kChunk/8 vectors:
//   bytes(cols)                  code bytes of `cols` columns
//   decode(codes, out)           code values
//   apply(w, row, col, out)      times the scales that lie inside a chunk, leaving the values the sums are
//   made of
// kVecsPerBlock: vectors whose sum is multiplied by block_scale() before it is added to the row's total; 0
// where apply() has left nothing to multiply. Scales that are powers of two, or make exact products, are
// applied to the values: then every format of the same values sums alike, and a losslessly cast checkpoint
// computes what its source does.

struct F32Format {
  static constexpr int kChunk = 8, kVecsPerBlock = 0;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols * 4; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { std::memcpy(&out[0], p, sizeof(Vec)); }
  PIVOT_INLINE void apply(const Matrix&, std::int64_t, std::int64_t, Vec*) {}
};

struct Bf16Format {
  static constexpr int kChunk = 16, kVecsPerBlock = 0;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols * 2; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_bf16(p, out); }
  PIVOT_INLINE void apply(const Matrix&, std::int64_t, std::int64_t, Vec*) {}
};

PIVOT_INLINE std::int64_t fp8_scale_index(const Matrix& w, std::int64_t row, std::int64_t col) {
  return row / 128 * ((w.cols + 127) / 128) + col / 128;
}

// E8M0 scales.
struct Fp8Format {
  static constexpr int kChunk = 32, kVecsPerBlock = 0;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_e4m3(p, out); }
  PIVOT_INLINE void apply(const Matrix& w, std::int64_t row, std::int64_t col, Vec* out) {
    const Vec scale = splat(e8m0_value(w.scales[fp8_scale_index(w, row, col)]) * kQuadsScaleFactor);
    for (int v = 0; v < 4; ++v) out[v] = out[v] * scale;
  }
};

// F32 scales: a product with a code is not exact, so they multiply the sum of a block, as the oracle has it.
struct Fp8BlockFormat {
  static constexpr int kChunk = 32, kVecsPerBlock = 16;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_e4m3(p, out); }
  PIVOT_INLINE void apply(const Matrix&, std::int64_t, std::int64_t, Vec*) {}
  PIVOT_INLINE Vec block_scale(const Matrix& w, std::int64_t row, std::int64_t col) {
    float value;
    std::memcpy(&value, w.scales + 4 * fp8_scale_index(w, row, col), 4);
    return splat(value * kQuadsScaleFactor);
  }
};

struct Fp4Format {
  static constexpr int kChunk = 64, kVecsPerBlock = 0;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols / 2; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_e2m1(p, out); }
  // Lanes 0-3 are a group of 32 columns, lanes 4-7 the next, absent at the end of an odd number of groups.
  PIVOT_INLINE void apply(const Matrix& w, std::int64_t row, std::int64_t col, Vec* out) {
    const std::int64_t groups = w.cols / 32;
    const std::byte* p = w.scales + row * groups + col / 32;
    const std::byte pair[2] = {p[0], col / 32 + 1 < groups ? p[1] : std::byte{0}};
    const Vec scale = decode_e8m0_pair(pair);
    for (int v = 0; v < 8; ++v) out[v] = out[v] * scale;
  }
};

// Code times E4M3 scale has six bits: exact.
struct Nvfp4Format {
  static constexpr int kChunk = 64, kVecsPerBlock = 0;
  static constexpr std::int64_t bytes(std::int64_t cols) { return cols / 2; }
  PIVOT_INLINE void decode(const std::byte* p, Vec* out) { decode_e2m1(p, out); }
  // Vectors 4u..4u+3: lanes 0-3 are group u of 16 columns, lanes 4-7 group 2+u.
  PIVOT_INLINE void apply(const Matrix& w, std::int64_t row, std::int64_t col, Vec* out) {
    const std::int64_t groups = w.cols / 16;
    std::byte four[4] = {};
    std::memcpy(four, w.scales + row * groups + col / 16,
                static_cast<std::size_t>(smaller(4, groups - col / 16)));
    Vec scales[2];
    decode_e4m3_scales(four, scales);
    for (int v = 0; v < 8; ++v) out[v] = out[v] * scales[v / 4];
  }
};

// Values of one chunk, zero beyond the last column.
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
  Format::apply(w, row, col, out);
}

}  // namespace
