// Linear layers for one token: codes stream from memory straight into multiply-adds. Included once per
// instruction set, after its vec_*.h.
//
// The sums are those of the tile kernel bit for bit. What is arranged differently are power-of-two scales,
// which move through a product or a sum without changing its rounding: FP8's go to the input, once per 128
// rows, and FP4's are left out of the values; instead the running sum changes its unit from one group to the
// next.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/linear_tile_body.h"

namespace {

constexpr std::int64_t kStreamCols = 16384;  // most columns of a row; longer rows go through the tile kernel

PIVOT_INLINE void write_rows(const Vec* total, int rows, float factor, bool round, float* out) {
  for (int r = 0; r < rows; r += 4) {
    float values[8] = {};
    sum4(total[r], total[r + 1], total[r + 2], total[r + 3], values);
    Vec result = load(values) * splat(factor);
    if (round) result = round_to_bf16(result);
    store(values, result);
    std::memcpy(out + r, values, 4 * sizeof(float));
  }
}

// Any format: the tile kernel's values, decoded in registers.
template <class Format, int kRows>
PIVOT_INLINE bool stream_rows(const Matrix& w, std::int64_t row, const float* x, Vec* total) {
  constexpr int kVecs = Format::kChunk / 8;
  constexpr bool kFp8 = std::is_same_v<Format, Fp8BlockFormat>;
  const std::byte* codes[kRows];
  for (int r = 0; r < kRows; ++r) {
    codes[r] = w.codes + Format::bytes((row + r) * w.cols);
    total[r] = zero();
  }
  CodeCheck check;
  const auto add_chunk = [&](std::int64_t col, int r, Vec acc) __attribute__((always_inline)) {
    Vec values[kVecs];
    if constexpr (kFp8) note_e4m3(codes[r] + Format::bytes(col), check);
    Format::decode(codes[r] + Format::bytes(col), values);
    Format::apply(w, row + r, col, values);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) acc = fma(values[v], load(x + col + 8 * v), acc);
    return acc;
  };
  constexpr std::int64_t kBlock = Format::kVecsPerBlock == 0 ? Format::kChunk : Format::kVecsPerBlock * 8;
  for (std::int64_t block = 0; block < w.cols; block += kBlock) {
    const std::int64_t end = smaller(block + kBlock, w.cols);
    Vec acc[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = Format::kVecsPerBlock == 0 ? total[r] : zero();
    for (std::int64_t col = block; col < end; col += Format::kChunk)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = add_chunk(col, r, acc[r]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if constexpr (Format::kVecsPerBlock == 0)
        total[r] = acc[r];
      else
        total[r] = fma(acc[r], Format::block_scale(w, row + r, block), total[r]);
    }
  }
  return !(kFp8 && saw_nan(check));
}

// ---- FP8 with E8M0 scales ----

// The input times the scales of a block of 128 rows. Sums come out times kFp8StreamFactor.
constexpr float kFp8StreamFactor = 0x1p-36f;  // 2^64 (input) * 2^-120 (codes) * 2^20 (here)
static void scale_input(const Matrix& w, std::int64_t row, const float* x, float* scaled) {
  for (std::int64_t col = 0; col < w.cols; col += 128) {
    const Vec scale = splat(e8m0_value(w.scales[fp8_scale_index(w, row, col)]) * 0x1p+20f);
    for (std::int64_t c = col; c < smaller(col + 128, w.cols); c += 8) store(scaled + c, load(x + c) * scale);
  }
}

template <int kRows>
PIVOT_INLINE bool stream_fp8(const Matrix& w, std::int64_t row, const float* scaled, Vec* total) {
  const std::byte* codes = w.codes + row * w.cols;
  Vec acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = zero();
  CodeCheck check;
  for (std::int64_t col = 0; col < w.cols; col += 32)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const std::byte* p = codes + r * w.cols + col;
      Vec values[4];
      note_e4m3(p, check);
      decode_e4m3(p, values);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) acc[r] = fma(values[v], load(scaled + col + 8 * v), acc[r]);
    }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) total[r] = acc[r] * splat(1.0f / kFp8StreamFactor);
  return !saw_nan(check);
}

// ---- FP4 ----

// steps[g] = E8M0 byte of the ratio of the scales of groups g-2 and g, the same lanes of neighbouring chunks.
// False where the scales of the row lie too far apart for the ratios to stay clear of overflow.
PIVOT_INLINE bool scale_steps(const std::byte* scales, std::int64_t groups, std::byte* steps) {
  constexpr int kMostSpread = 60;
  int least = 255, most = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const int scale = static_cast<int>(scales[g]);
    least = scale < least ? scale : least;
    most = scale > most ? scale : most;
  }
  if (least == 0 || most == 255 || most - least > kMostSpread) return false;
  steps[0] = steps[1] = std::byte{127};
  for (std::int64_t g = 2; g < groups; ++g)
    steps[g] = static_cast<std::byte>(static_cast<int>(scales[g - 2]) - static_cast<int>(scales[g]) + 127);
  return true;
}

template <int kRows>
PIVOT_INLINE bool stream_fp4(const Matrix& w, std::int64_t row, const float* x, Vec* total) {
  const std::int64_t groups = w.cols / 32, row_bytes = w.cols / 2;
  std::byte steps[kRows][kStreamCols / 32];
  for (int r = 0; r < kRows; ++r)
    if (!scale_steps(w.scales + (row + r) * groups, groups, steps[r])) return false;
  const std::byte* codes = w.codes + row * row_bytes;
  Vec acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = zero();
  for (std::int64_t col = 0; col < w.cols; col += 64)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Vec values[8];
      decode_e2m1(codes + r * row_bytes + col / 2, values);
      Vec sum = acc[r] * decode_e8m0_pair(steps[r] + col / 32);
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) sum = fma(values[v], load(x + col + 8 * v), sum);
      acc[r] = sum;
    }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) total[r] = acc[r] * decode_e8m0_pair(w.scales + (row + r + 1) * groups - 2);
  return true;
}

// ---- dispatch ----

template <class Format>
static void linear_one(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* x,
                       float* out, bool round) {
  constexpr bool kFp8 = std::is_same_v<Format, Fp8Format>;
  constexpr bool kFp4 = std::is_same_v<Format, Fp4Format>;
  constexpr int kRows = kFp4 ? 8 : 4;  // enough sums in flight to hide the latency of the multiply-add
  std::int64_t row = row_begin;
  // A row that is no multiple of the chunk, NaN codes and far-apart scales go through the tile kernel.
  if (w.cols % Format::kChunk == 0 && w.cols <= kStreamCols) {
    alignas(64) float scaled[kFp8 ? kStreamCols : 8];
    std::int64_t scaled_block = -1;
    for (; row + kRows <= row_end; row += kRows) {
      Vec total[kRows];
      bool done;
      if constexpr (kFp8) {
        if (row / 128 != (row + kRows - 1) / 128) {
          done = false;  // rows of two scale blocks
        } else {
          if (row / 128 != scaled_block) scale_input(w, row, x, scaled);
          scaled_block = row / 128;
          done = stream_fp8<kRows>(w, row, scaled, total);
        }
      } else if constexpr (kFp4) {
        done = stream_fp4<kRows>(w, row, x, total);
      } else {
        done = stream_rows<Format, kRows>(w, row, x, total);
      }
      if (done)
        write_rows(total, kRows, w.global_scale, round, out + (row - row_begin));
      else
        linear_tiles<Format>(w, row, row + kRows, &x, 1, out + (row - row_begin), 0, round);
    }
  }
  if (row < row_end) linear_tiles<Format>(w, row, row_end, &x, 1, out + (row - row_begin), 0, round);
}

template <class Format>
static void linear_format(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                          const float* const* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
                          bool round) {
  if (num_tokens == 1)
    linear_one<Format>(w, row_begin, row_end, x[0], out, round);
  else if (num_tokens > 1)
    linear_tiles<Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
}

static void linear(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* const* x,
                   std::int64_t num_tokens, float* out, std::int64_t out_stride, bool round) {
  switch (w.format) {
    case MatrixFormat::kF32:
      return linear_format<F32Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kBF16:
      return linear_format<Bf16Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kFP8:
      if (w.scale_format == ScaleFormat::kF32)
        return linear_format<Fp8BlockFormat>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
      return linear_format<Fp8Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kFP4:
      return linear_format<Fp4Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kNVFP4:
      return linear_format<Nvfp4Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
  }
}

}  // namespace
