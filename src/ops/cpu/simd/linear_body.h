// Linear layers y = W x on 8 lanes: input preparation, the one-token kernel that streams codes, and the tile
// kernel that decodes a block of W once for many tokens. Included once per instruction set, after its
// vec_*.h.
//
// Order of sums of one output, the same in both kernels: lane l adds the products of its columns in decoder
// order, one fused multiply-add each; formats with scales start a new sum per scale block and add it as
// fma(sum, scale, total); the lanes are added by sum(). NVFP4's global scale multiplies the end result.
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

// ---- tile kernel ----

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileCols = 256;   // 16 KiB of decoded weights: half of the L1 cache
constexpr std::int64_t kTileTokens = 96;  // 48 KiB of running totals
constexpr std::int64_t kTileVecs = kTileCols / 8;

struct Tile {
  alignas(64) float weights[kTileRows * kTileCols];
  alignas(64) float scales[kTileRows * kTileVecs / 4 * 8];  // [row][scale block][8]
  alignas(64) float totals[kTileTokens * kTileRows * 8];    // [token][row][8]
};

template <class Format>
static void decode_tile(const Matrix& w, std::int64_t row_begin, std::int64_t rows, std::int64_t col_begin,
                        std::int64_t padded, Tile& tile) {
  constexpr int kVecs = Format::kChunk / 8;
  constexpr bool kFp8 = std::is_same_v<Format, Fp8Format>;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* row = w.codes + Format::bytes((row_begin + r) * w.cols);
    float* out = tile.weights + r * kTileCols;
    CodeCheck check;
    for (std::int64_t c = 0; c < padded; c += Format::kChunk) {
      Vec values[kVecs];
      if (col_begin + c < w.cols) {
        decode_chunk<Format>(w, row, row_begin + r, col_begin + c, values);
        if constexpr (kFp8)
          if (col_begin + c + Format::kChunk <= w.cols) note_e4m3(row + col_begin + c, check);
      } else {
        for (int v = 0; v < kVecs; ++v) values[v] = zero();
      }
      for (int v = 0; v < kVecs; ++v) store(out + c + 8 * v, values[v]);
    }
    if constexpr (kFp8) {
      // NaN codes decode to 480 * 2^-120: give them back their meaning. The codes of a part of a chunk were
      // not noted and are looked at one by one.
      const std::int64_t codes = smaller(padded, w.cols - col_begin);
      const std::int64_t first = saw_nan(check) ? 0 : codes / Format::kChunk * Format::kChunk;
      for (std::int64_t c = first; c < codes; ++c)
        if ((static_cast<unsigned>(row[col_begin + c]) & 0x7fu) == 0x7fu)
          out[c / 32 * 32 + c % 4 * 8 + c % 32 / 4] = __builtin_nanf("");
    }
    if constexpr (Format::kVecsPerScale > 0) {
      constexpr std::int64_t kBlock = Format::kVecsPerScale * 8;
      float* scales = tile.scales + r * (kTileVecs / 4 * 8);
      for (std::int64_t c = 0; c < padded; c += kBlock) {
        const bool inside = col_begin + c / Format::kChunk * Format::kChunk < w.cols;
        store(scales + c / kBlock * 8,
              inside ? Format::scale(w, row_begin + r, (col_begin + c) / kBlock) : zero());
      }
    }
  }
}

// acc += W x over vectors [begin, end) of a tile's columns: the innermost loop of both products below.
template <int kRows, int kTokens>
[[gnu::always_inline]] static inline void accumulate(const float* weights, const float* const* x,
                                                     std::int64_t begin, std::int64_t end,
                                                     Vec (&acc)[kRows][kTokens]) {
  for (std::int64_t v = begin; v < end; ++v) {
    Vec input[kTokens];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) input[t] = load(x[t] + 8 * v);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = load(weights + r * kTileCols + 8 * v);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) acc[r][t] = fma(weight, input[t], acc[r][t]);
    }
  }
}

// totals += W x for kRows rows and kTokens tokens over one tile of columns.
template <int kVecsPerScale, int kRows, int kTokens>
static void multiply(const float* weights, const float* scales, const float* const* x, std::int64_t col,
                     std::int64_t vecs, float* totals) {
  const float* inputs[kTokens];
  for (int t = 0; t < kTokens; ++t) inputs[t] = x[t] + col;
  const auto total = [&](int r, int t) { return totals + (t * kTileRows + r) * 8; };
  const std::int64_t step = kVecsPerScale == 0 ? vecs : kVecsPerScale;
  for (std::int64_t begin = 0; begin < vecs; begin += step) {
    const std::int64_t end = smaller(begin + step, vecs);
    Vec acc[kRows][kTokens];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) acc[r][t] = kVecsPerScale == 0 ? load(total(r, t)) : zero();
    accumulate(weights, inputs, begin, end, acc);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        if constexpr (kVecsPerScale == 0) {
          store(total(r, t), acc[r][t]);
        } else {
          const Vec scale = load(scales + r * (kTileVecs / 4 * 8) + begin / kVecsPerScale * 8);
          store(total(r, t), fma(acc[r][t], scale, load(total(r, t))));
        }
      }
  }
}

template <int kVecsPerScale, int kTokens>
static void multiply_rows(const Tile& tile, std::int64_t rows, const float* const* x, std::int64_t col,
                          std::int64_t vecs, float* totals) {
  std::int64_t r = 0;
  const auto weights = [&] { return tile.weights + r * kTileCols; };
  const auto scales = [&] { return tile.scales + r * (kTileVecs / 4 * 8); };
  for (; r + 4 <= rows; r += 4)
    multiply<kVecsPerScale, 4, kTokens>(weights(), scales(), x, col, vecs, totals + r * 8);
  for (; r < rows; ++r)
    multiply<kVecsPerScale, 1, kTokens>(weights(), scales(), x, col, vecs, totals + r * 8);
}

// All columns of kRows rows and kTokens tokens in one go, for matrices that fit one tile of columns: totals
// stay in registers or beside them, and outputs are written at once. The order of sums is that of multiply().
template <int kVecsPerScale, int kRows, int kTokens>
static void multiply_whole(const Tile& tile, std::int64_t first, const float* const* x, std::int64_t vecs,
                           float global_scale, float* out, std::int64_t out_stride, bool round) {
  const float *weights = tile.weights + first * kTileCols,
              *scales = tile.scales + first * (kTileVecs / 4 * 8);
  Vec total[kRows][kTokens] = {};
  const std::int64_t step = kVecsPerScale == 0 ? vecs : kVecsPerScale;
  for (std::int64_t begin = 0; begin < vecs; begin += step) {
    const std::int64_t end = smaller(begin + step, vecs);
    Vec acc[kRows][kTokens];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) acc[r][t] = zero();
    accumulate(weights, x, begin, end, acc);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        if constexpr (kVecsPerScale == 0) {
          total[r][t] = acc[r][t];
        } else {
          const Vec scale = load(scales + r * (kTileVecs / 4 * 8) + begin / kVecsPerScale * 8);
          total[r][t] = fma(acc[r][t], scale, total[r][t]);
        }
      }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) {
    alignas(32) float values[8] = {};
    if constexpr (kRows == 4)
      sum4(total[0][t], total[1][t], total[2][t], total[3][t], values);
    else
      sum4(total[0][t], total[0][t], total[0][t], total[0][t], values);
    Vec result = load(values) * splat(global_scale);
    if (round) result = round_to_bf16(result);
    store(values, result);
    std::memcpy(out + t * out_stride, values, kRows * sizeof(float));
  }
}

template <int kVecsPerScale, int kTokens>
static void multiply_whole_rows(const Tile& tile, std::int64_t rows, const float* const* x, std::int64_t vecs,
                                float global_scale, float* out, std::int64_t out_stride, bool round) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    multiply_whole<kVecsPerScale, 4, kTokens>(tile, r, x, vecs, global_scale, out + r, out_stride, round);
  for (; r < rows; ++r)
    multiply_whole<kVecsPerScale, 1, kTokens>(tile, r, x, vecs, global_scale, out + r, out_stride, round);
}

template <class Format>
static void linear_one_tile(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                            const float* const* x, std::int64_t num_tokens, float* out,
                            std::int64_t out_stride, bool round) {
  constexpr int kScale = Format::kVecsPerScale;
  Tile tile;
  const std::int64_t padded = pivot::simd::padded_columns(w.cols);
  for (std::int64_t row = row_begin; row < row_end; row += kTileRows) {
    const std::int64_t rows = smaller(kTileRows, row_end - row);
    decode_tile<Format>(w, row, rows, 0, padded, tile);
    float* to = out + (row - row_begin);
    std::int64_t t = 0;
    for (; t + 3 <= num_tokens; t += 3)
      multiply_whole_rows<kScale, 3>(tile, rows, x + t, padded / 8, w.global_scale, to + t * out_stride,
                                     out_stride, round);
    if (t + 2 == num_tokens)
      multiply_whole_rows<kScale, 2>(tile, rows, x + t, padded / 8, w.global_scale, to + t * out_stride,
                                     out_stride, round);
    else if (t < num_tokens)
      multiply_whole_rows<kScale, 1>(tile, rows, x + t, padded / 8, w.global_scale, to + t * out_stride,
                                     out_stride, round);
  }
}

template <class Format>
static void linear_tiles(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* const* x,
                         std::int64_t num_tokens, float* out, std::int64_t out_stride, bool round) {
  const std::int64_t padded = pivot::simd::padded_columns(w.cols);
  if (padded <= kTileCols)
    return linear_one_tile<Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
  Tile tile;
  for (std::int64_t token = 0; token < num_tokens; token += kTileTokens) {
    const std::int64_t tokens = smaller(kTileTokens, num_tokens - token);
    for (std::int64_t row = row_begin; row < row_end; row += kTileRows) {
      const std::int64_t rows = smaller(kTileRows, row_end - row);
      std::memset(tile.totals, 0, static_cast<std::size_t>(tokens * kTileRows * 8) * sizeof(float));
      for (std::int64_t col = 0; col < padded; col += kTileCols) {
        const std::int64_t cols = smaller(kTileCols, padded - col);
        decode_tile<Format>(w, row, rows, col, cols, tile);
        std::int64_t t = 0;
        for (; t + 3 <= tokens; t += 3)
          multiply_rows<Format::kVecsPerScale, 3>(tile, rows, x + token + t, col, cols / 8,
                                                  tile.totals + t * kTileRows * 8);
        if (t + 2 == tokens)
          multiply_rows<Format::kVecsPerScale, 2>(tile, rows, x + token + t, col, cols / 8,
                                                  tile.totals + t * kTileRows * 8);
        else if (t < tokens)
          multiply_rows<Format::kVecsPerScale, 1>(tile, rows, x + token + t, col, cols / 8,
                                                  tile.totals + t * kTileRows * 8);
      }
      for (std::int64_t t = 0; t < tokens; ++t) {
        float* to = out + (token + t) * out_stride + (row - row_begin);
        for (std::int64_t r = 0; r < rows; r += 4) {
          const float* from = tile.totals + (t * kTileRows + r) * 8;
          float four[8];
          sum4(load(from), load(from + 8), load(from + 16), load(from + 24), four);
          for (int i = 0; i < 4; ++i) four[i] *= w.global_scale;
          if (round) {
            for (int i = 4; i < 8; ++i) four[i] = 0.0f;
            store(four, round_to_bf16(load(four)));
          }
          std::memcpy(to + r, four, static_cast<std::size_t>(smaller(4, rows - r)) * sizeof(float));
        }
      }
    }
  }
}

// ---- one token ----

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
  const auto chunk = [&](std::int64_t col, int r, Vec acc) {
    Vec values[kVecs];
    if constexpr (kFp8) note_e4m3(codes[r] + Format::bytes(col), check);
    Format::decode(codes[r] + Format::bytes(col), values);
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

template <class Format>
static void linear_one(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* x,
                       float* out, bool round) {
  constexpr int kRows = Format::kChunk >= 64 ? 8 : 4;
  std::int64_t row = row_begin;
  // A row whose length is no multiple of the chunk, and NaN codes, go through the tile kernel, which handles
  // both.
  if (w.cols % Format::kChunk == 0) {
    for (; row + kRows <= row_end; row += kRows) {
      Vec total[kRows];
      float values[kRows < 8 ? 8 : kRows] = {};
      if (!stream_rows<Format, kRows>(w, row, x, total)) {
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
      return linear_format<Fp8Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kFP4:
      return linear_format<Fp4Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
    case MatrixFormat::kNVFP4:
      return linear_format<Nvfp4Format>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
  }
}

// ---- inputs ----

// The column that lane l of vector v of a chunk holds.
PIVOT_INLINE int column_of(ColumnOrder order, int v, int l) {
  switch (order) {
    case ColumnOrder::kPlain:
      return l;
    case ColumnOrder::kPairs:
      return 2 * l + v;
    case ColumnOrder::kQuads:
      return 4 * l + v;
    case ColumnOrder::kNibbles:
      return 32 * (l / 4) + 16 * (v / 4) + 4 * (l % 4) + v % 4;
  }
  return l;
}

template <ColumnOrder kOrder, int kVecs>
static void permute_order(const float* src, std::int64_t cols, float factor, float* out) {
  constexpr std::int64_t kChunk = kVecs * 8;
  const std::int64_t padded = pivot::simd::padded_columns(cols);
  for (std::int64_t c = 0; c < padded; c += kChunk)
    for (int v = 0; v < kVecs; ++v)
      for (int l = 0; l < 8; ++l) {
        const std::int64_t col = c + column_of(kOrder, v, l);
        out[c + 8 * v + l] = col < cols ? src[col] * factor : 0.0f;
      }
}

static void permute(const float* src, std::int64_t cols, ColumnOrder order, float* out) {
  switch (order) {
    case ColumnOrder::kPlain:
      return permute_order<ColumnOrder::kPlain, 1>(src, cols, 1.0f, out);
    case ColumnOrder::kPairs:
      return permute_order<ColumnOrder::kPairs, 2>(src, cols, 1.0f, out);
    case ColumnOrder::kQuads:
      return permute_order<ColumnOrder::kQuads, 4>(src, cols, kQuadsInputFactor, out);
    case ColumnOrder::kNibbles:
      return permute_order<ColumnOrder::kNibbles, 8>(src, cols, 1.0f, out);
  }
}

// Largest magnitude; NaN elements do not count.
PIVOT_INLINE float absolute_maximum(const float* x, std::int64_t count) {
  Vec maximum = zero();
  const Bits magnitude = splat_bits(0x7fffffffu);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    maximum = max_or_second(from_bits(bit_and(bits(load(x + i)), magnitude)), maximum);
  float lanes[8];
  store(lanes, maximum);
  float result = 0.0f;
  for (const float lane : lanes) result = lane > result ? lane : result;
  for (; i < count; ++i) {
    const float a = __builtin_fabsf(x[i]);
    result = a > result ? a : result;
  }
  return result;
}

// E8M0 byte of ceil(log2(v)), specification 3.1.
PIVOT_INLINE std::uint32_t ceil_log2_code(float v) {
  std::uint32_t u;
  std::memcpy(&u, &v, 4);
  return (u >> 23) + ((u & 0x7fffffu) != 0 ? 1u : 0u);
}

// The E4M3 value nearest to v (ties to even), |v| <= 448 or NaN.
PIVOT_INLINE Vec round_to_e4m3(Vec v) {
  const Bits sign = bit_and(bits(v), splat_bits(0x80000000u));
  Vec a = from_bits(bit_and(bits(v), splat_bits(0x7fffffffu)));
  const Vec nan = is_nan(v);
  const Vec tiny = less(a, splat(0x1p-6f));
  const Bits odd = bit_and(shift_right<20>(bits(a)), splat_bits(1));
  const Bits rounded =
      bit_and(add_bits(bits(a), add_bits(splat_bits(0x7ffffu), odd)), splat_bits(0xfff00000u));
  const Vec normal = min_or_second(splat(448.0f), from_bits(rounded));
  const Vec subnormal = (a + splat(0x1p+14f)) - splat(0x1p+14f);
  a = select(tiny, subnormal, normal);
  return select(nan, v, from_bits(bit_or(bits(a), sign)));
}

// The E2M1 value nearest to v, |v| <= 6 (or NaN, which saturates to 6 as pivot::float_to_e2m1 does).
PIVOT_INLINE Vec round_to_e2m1(Vec v) {
  const Bits sign = bit_and(bits(v), splat_bits(0x80000000u));
  const Vec a = from_bits(bit_and(bits(v), splat_bits(0x7fffffffu)));
  // Steps: 0.5 below 2, 1 below 4, 2 above. Adding 1.5 * 2^23 * step rounds to a multiple of step, ties to
  // even, which are the even codes because every step interval starts at an even code.
  const Vec fine = (a + splat(0x1.8p+22f)) - splat(0x1.8p+22f);
  const Vec middle = (a + splat(0x1.8p+23f)) - splat(0x1.8p+23f);
  const Vec coarse = (a + splat(0x1.8p+24f)) - splat(0x1.8p+24f);
  Vec r = select(less(a, splat(2.0f)), fine, select(less(a, splat(4.0f)), middle, coarse));
  r = select(is_nan(v), splat(6.0f), min_or_second(r, splat(6.0f)));
  return from_bits(bit_or(bits(r), sign));
}

template <bool kE4m3>
PIVOT_INLINE void quantize_groups(float* x, std::int64_t cols, std::int64_t group, std::uint8_t* scales) {
  for (std::int64_t begin = 0; begin < cols; begin += group) {
    const std::int64_t count = smaller(group, cols - begin);
    float* values = x + begin;
    const float amax = absolute_maximum(values, count);
    constexpr float kFloor = kE4m3 ? 1e-4f : 6.0f * 0x1p-126f;
    constexpr float kInverse = kE4m3 ? 1.0f / 448.0f : 1.0f / 6.0f;
    const std::uint32_t code = ceil_log2_code((amax > kFloor ? amax : kFloor) * kInverse);
    if (scales != nullptr) scales[begin / group] = static_cast<std::uint8_t>(code);
    const Vec scale = splat(e8m0_value(static_cast<std::byte>(code)));
    const auto step = [&](Vec v) {
      v = v / scale;
      return (kE4m3 ? round_to_e4m3(v) : round_to_e2m1(v)) * scale;
    };
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) store(values + i, step(load(values + i)));
    if (i < count) {
      float tail[8] = {};
      std::memcpy(tail, values + i, static_cast<std::size_t>(count - i) * sizeof(float));
      store(tail, step(load(tail)));
      std::memcpy(values + i, tail, static_cast<std::size_t>(count - i) * sizeof(float));
    }
  }
}

static void quantize_e4m3(float* x, std::int64_t cols, std::int64_t group, std::uint8_t* scales) {
  quantize_groups<true>(x, cols, group, scales);
}
static void quantize_e2m1(float* x, std::int64_t cols, std::int64_t group) {
  quantize_groups<false>(x, cols, group, nullptr);
}

}  // namespace
