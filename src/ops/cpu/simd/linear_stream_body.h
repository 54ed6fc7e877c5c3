// Linear layers for one token: codes stream from memory straight into multiply-adds. Included once per
// instruction set, after its pack_*.h. The sums are those of the tile kernel bit for bit.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/linear_digits_body.h"
#include "ops/cpu/simd/linear_tile_body.h"

namespace {

// FP8 rows are asked for a group of rows ahead, into the L2 cache, once a cache line: the hardware's own
// prefetcher starts anew in every row (lab/cpu/gemv.cpp, idea 7). BF16 runs at the rate of memory without.
PIVOT_INLINE void prefetch_group(const std::byte* p, std::int64_t col, std::int64_t ahead) {
  if (col % 64 == 0) __builtin_prefetch(p + ahead, 0, 2);
}

// kRows rows side by side keep enough independent sums in flight to hide the latency of the multiply-add.
// False: a NaN code was met and the totals do not count. REQUIRES: w.cols a multiple of the chunk.
template <class Format, int kRows>
PIVOT_INLINE bool stream_rows(const Matrix& w, std::int64_t row, const float* x, Vec total[kRows]) {
  constexpr int kVecs = Format::kChunk / 8;
  constexpr bool kFp8 = std::is_same_v<Format, Fp8Format>;
  const std::byte* codes[kRows];
  for (int r = 0; r < kRows; ++r) {
    codes[r] = w.codes + Format::bytes((row + r) * w.cols);
    total[r] = zero();
  }
  CodeCheck check;
  const auto chunk = [&](std::int64_t col, int r, Vec acc) __attribute__((always_inline)) {
    Vec values[kVecs];
    const std::byte* p = codes[r] + Format::bytes(col);
    if constexpr (kFp8) {
      prefetch_group(p, col, kRows * w.cols);
      note_e4m3(p, check);
    }
    Format::decode(p, values);
    if constexpr (std::is_same_v<Format, Nvfp4Format>) Format::apply_scales(w, row + r, col, values);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) acc = fma(values[v], load(x + col + 8 * v), acc);
    return acc;
  };
  if constexpr (Format::kVecsPerScale == 0) {
    for (std::int64_t col = 0; col < w.cols; col += Format::kChunk)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) total[r] = chunk(col, r, total[r]);
  } else {
    constexpr std::int64_t kBlock = Format::kVecsPerScale * 8;
    for (std::int64_t block = 0; block < w.cols; block += kBlock) {
      const std::int64_t end = smaller(block + kBlock, w.cols);
      Vec acc[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = zero();
      for (std::int64_t col = block; col < end; col += Format::kChunk)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r] = chunk(col, r, acc[r]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        total[r] = fma(acc[r], Format::scale(w, row + r, block / kBlock), total[r]);
    }
  }
  return !(kFp8 && saw_nan(check));
}

// ---- FP8 with E8M0 scales ----
//
// Powers of two move through products and sums without changing their rounding. So the scales of a block of
// 128 rows multiply the input, once, and a block of columns ends with an addition: fma(sum, scale, total) in
// another unit.

constexpr std::int64_t kStreamCols = 16384;  // most columns of such an input
constexpr float kStreamUnit = 0x1p+36f;      // the input's 2^64, the codes' 2^-120 and 2^20 here make 2^-36

// x times the scales of `row`'s block. False where a scale is so far from one (or NaN) that a product could
// leave the range of fp32; those rows take the other way.
static bool scale_input(const Matrix& w, std::int64_t row, const float* x, float* scaled) {
  const std::byte* scales = w.scales + row / 128 * ((w.cols + 127) / 128);
  for (std::int64_t col = 0; col < w.cols; col += 128) {
    const std::byte code = scales[col / 128];
    if (static_cast<unsigned>(code) < 127 - 50 || static_cast<unsigned>(code) > 127 + 30) return false;
    const Vec scale = splat(e8m0_value(code) * 0x1p+20f);
    for (std::int64_t c = col; c < smaller(col + 128, w.cols); c += 8) store(scaled + c, load(x + c) * scale);
  }
  return true;
}

template <int kRows>
PIVOT_INLINE bool stream_fp8(const Matrix& w, std::int64_t row, const float* scaled, Vec* total) {
  const std::byte* codes = w.codes + row * w.cols;
  CodeCheck check;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) total[r] = zero();
  for (std::int64_t block = 0; block < w.cols; block += 128) {
    Vec acc[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = zero();
    for (std::int64_t col = block; col < smaller(block + 128, w.cols); col += 32)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const std::byte* p = codes + r * w.cols + col;
        prefetch_group(p, col, kRows * w.cols);
        note_e4m3(p, check);
        Vec values[4];
        decode_e4m3(p, values);
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) acc[r] = fma(values[v], load(scaled + col + 8 * v), acc[r]);
      }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) total[r] = total[r] + acc[r];
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) total[r] = total[r] * splat(kStreamUnit);
  return !saw_nan(check);
}

template <class Format>
static void linear_one(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* x,
                       float* out, bool round) {
  constexpr int kRows = Format::kChunk >= 64 ? 8 : 4;
  constexpr bool kFp8 = std::is_same_v<Format, Fp8Format>;
  alignas(64) float scaled[kFp8 ? kStreamCols : 8];
  const bool can_scale = kFp8 && w.scale_format == ScaleFormat::kE8M0 && w.cols <= kStreamCols;
  bool is_scaled = false;
  std::int64_t scaled_block = -1;
  std::int64_t row = row_begin;
  // A row whose length is no multiple of the chunk, and NaN codes, go through the tile kernel, which handles
  // both.
  if (w.cols % Format::kChunk == 0) {
    for (; row + kRows <= row_end; row += kRows) {
      Vec total[kRows];
      float values[kRows < 8 ? 8 : kRows] = {};
      bool done = false;
      if constexpr (kFp8) {
        if (can_scale && row / 128 == (row + kRows - 1) / 128) {
          if (row / 128 != scaled_block) is_scaled = scale_input(w, row, x, scaled);
          scaled_block = row / 128;
          if (is_scaled) done = stream_fp8<kRows>(w, row, scaled, total);
        }
      }
      if (!done) done = stream_rows<Format, kRows>(w, row, x, total);
      if (!done) {
        linear_tiles<Format>(w, row, row + kRows, &x, 1, out + (row - row_begin), 0, round);
        continue;
      }
      for (int r = 0; r < kRows; r += 4) sum4(total[r], total[r + 1], total[r + 2], total[r + 3], values + r);
      Vec result = load(values) * splat(w.global_scale);
      if (round) result = round_to_bf16(result);
      store(values, result);
      std::memcpy(out + (row - row_begin), values, sizeof(float) * kRows);
    }
  }
  if (row < row_end) linear_tiles<Format>(w, row, row_end, &x, 1, out + (row - row_begin), 0, round);
}

// ---- dispatch ----

template <class Format>
static void linear_format(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                          const float* const* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
                          bool round) {
  if (num_tokens == 1)
    linear_one<Format>(w, row_begin, row_end, x[0], out, round);
  else if (num_tokens > 1)
    linear_tiles<Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
}

static void linear(const Matrix& w, ColumnOrder order, std::int64_t row_begin, std::int64_t row_end,
                   const float* const* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
                   bool round) {
  const bool digits = order == ColumnOrder::kDigits;
  switch (w.format) {
    case MatrixFormat::kF32:
      return linear_format<F32Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kBF16:
      return linear_format<Bf16Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kFP8:
      return linear_format<Fp8Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kFP4:
      if (digits)
        return linear_digits<Fp4Scales>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
      return linear_format<Fp4Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kNVFP4:
      if (digits)
        return linear_digits<Nvfp4Scales>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
      return linear_format<Nvfp4Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
  }
}

}  // namespace
