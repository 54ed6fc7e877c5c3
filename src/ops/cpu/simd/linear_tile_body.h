// Linear layers for many tokens: a tile of W is decoded once and multiplied with every token. Included once
// per instruction set, after its pack_*.h.
//
// Order of sums of one output, the same as of the one-token kernel: lane l adds the products of its columns
// in decoder order, one fused multiply-add each; formats with scales start a new sum per scale block and add
// it as fma(sum, scale, total); the lanes are added by sum(). NVFP4's global scale multiplies the end result.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/weights_body.h"

namespace {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileCols = 256;  // 16 KiB of decoded weights: half of the L1 cache
constexpr std::int64_t kTileVecs = kTileCols / 8;
constexpr std::int64_t kTileScales = kTileCols / 64;  // most scale blocks of a row of the tile
constexpr std::int64_t kTileTokens = 96;
// Rows that pass over one tile of inputs (96 KiB) before the next: with their totals (192 KiB) it stays in
// the L2 cache.
constexpr std::int64_t kGroupRows = 64;
// Sums at a time: with the inputs they fill the registers (16, or 32 of two rows each).
constexpr int kStepPacks = 4;
constexpr int kStepTokens = kPackRows == 1 ? 3 : 6;

// Decoded values and scales of a pack of rows lie side by side.
struct Tile {
  alignas(64) float weights[kTileRows * kTileCols];        // [pack][vec][row of the pack][8]
  alignas(64) float scales[kTileRows * kTileScales * 8];   // [pack][block][row of the pack][8]
  alignas(64) float totals[kTileTokens * kGroupRows * 8];  // [row tile][token][row][8]

  float* weights_of(std::int64_t row) {
    return weights + (row / kPackRows * kTileVecs * kPackRows + row % kPackRows) * 8;
  }
  float* scales_of(std::int64_t row) {
    return scales + (row / kPackRows * kTileScales * kPackRows + row % kPackRows) * 8;
  }
};
constexpr std::int64_t kVecStride = kPackRows * 8;  // from one vector of a row to the next

// NaN codes of FP8 decode to 480 * 2^-120: give them back their meaning.
PIVOT_INLINE void restore_nan(const std::byte* codes, std::int64_t count, float* out) {
  CodeCheck check;
  std::int64_t whole = 0;
  for (; whole + 32 <= count; whole += 32) note_e4m3(codes + whole, check);
  // The codes of a part of a chunk were not noted and are looked at one by one.
  for (std::int64_t c = saw_nan(check) ? 0 : whole; c < count; ++c)
    if ((static_cast<unsigned>(codes[c]) & 0x7fu) == 0x7fu)
      out[(c / 32 * 4 + c % 4) * kVecStride + c % 32 / 4] = __builtin_nanf("");
}

// Columns [col_begin, +padded) of rows [row_begin, +rows); a missing row of the last pack becomes zeros.
template <class Format>
static void decode_tile(const Matrix& w, std::int64_t row_begin, std::int64_t rows, std::int64_t col_begin,
                        std::int64_t padded, Tile& tile) {
  constexpr int kVecs = Format::kChunk / 8;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* row = w.codes + Format::bytes((row_begin + r) * w.cols);
    float* out = tile.weights_of(r);
    for (std::int64_t c = 0; c < padded; c += Format::kChunk) {
      Vec values[kVecs];
      if (col_begin + c < w.cols) {
        decode_chunk<Format>(w, row, row_begin + r, col_begin + c, values);
      } else {
        for (int v = 0; v < kVecs; ++v) values[v] = zero();
      }
      for (int v = 0; v < kVecs; ++v) store(out + (c / 8 + v) * kVecStride, values[v]);
    }
    if constexpr (std::is_same_v<Format, Fp8Format>)
      restore_nan(row + col_begin, smaller(padded, w.cols - col_begin), out);
    if constexpr (Format::kVecsPerScale > 0) {
      constexpr std::int64_t kBlock = Format::kVecsPerScale * 8;
      for (std::int64_t c = 0; c < padded; c += kBlock) {
        const bool inside = col_begin + c / Format::kChunk * Format::kChunk < w.cols;
        store(tile.scales_of(r) + c / kBlock * kVecStride,
              inside ? Format::scale(w, row_begin + r, (col_begin + c) / kBlock) : zero());
      }
    }
  }
  for (std::int64_t r = rows; r % kPackRows != 0; ++r) {
    for (std::int64_t v = 0; v < padded / 8; ++v) store(tile.weights_of(r) + v * kVecStride, zero());
    for (std::int64_t b = 0; b < kTileScales; ++b) store(tile.scales_of(r) + b * kVecStride, zero());
  }
}

// Where a tile's products go: `totals` between the first and the last tile of columns, `out` after the last.
struct Destination {
  float* out;     // of the tile's first row and the first token
  float* totals;  // likewise, [token][kTileRows][8]
  std::int64_t out_stride;
  std::int64_t rows;  // that exist
  float factor;
  bool round, first, last;
};

// Outputs of two tokens, up to four rows from `row`.
PIVOT_INLINE void write_outputs(const Vec a[4], const Vec b[4], std::int64_t rows, const Destination& to,
                                float* out_a, float* out_b) {
  Vec sums = sum8(a, b) * splat(to.factor);
  if (to.round) sums = round_to_bf16(sums);
  if (rows >= 4) return store_halves(out_a, out_b, sums);
  float values[8];
  store(values, sums);
  std::memcpy(out_a, values, static_cast<std::size_t>(rows) * sizeof(float));
  std::memcpy(out_b, values + 4, static_cast<std::size_t>(rows) * sizeof(float));
}

// W x for kPacks packs of rows from `pack` and kTokens tokens from `token`, over one tile of columns.
template <int kVecsPerScale, int kPacks, int kTokens>
static void multiply(const Tile& tile, std::int64_t pack, std::int64_t token, const float* const* x,
                     std::int64_t col, std::int64_t vecs, const Destination& to) {
  const float* weights = tile.weights + pack * kTileVecs * kVecStride;
  const float* scales = tile.scales + pack * kTileScales * kVecStride;
  const auto total_at = [&](int r, int t) {
    return to.totals + ((token + t) * kTileRows + (pack + r) * kPackRows) * 8;
  };
  const float* inputs[kTokens];
  for (int t = 0; t < kTokens; ++t) inputs[t] = x[token + t] + col;
  const std::int64_t step = kVecsPerScale == 0 ? vecs : kVecsPerScale;
  Pack acc[kPacks][kTokens];
  for (std::int64_t begin = 0;; begin += step) {
    const std::int64_t end = smaller(begin + step, vecs);
    const bool fresh = to.first && begin == 0;
#pragma GCC unroll 8
    for (int r = 0; r < kPacks; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t)
        acc[r][t] = kVecsPerScale > 0 || fresh ? pack_zero() : pack_load(total_at(r, t));
    // Columns are padded to a multiple of eight vectors.
    for (std::int64_t eight = begin; eight < end; eight += 8)
#pragma GCC unroll 4
      for (std::int64_t v = eight; v < eight + 8; ++v) {
        Pack input[kTokens];
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) input[t] = pack_repeat_once(inputs[t] + 8 * v);
#pragma GCC unroll 8
        for (int r = 0; r < kPacks; ++r) {
          const Pack weight = pack_load_once(weights + (r * kTileVecs + v) * kVecStride);
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) acc[r][t] = pack_fma(weight, input[t], acc[r][t]);
        }
      }
    // Keeps the compiler from loading the totals before the loop, which has no registers to spare for them.
    asm volatile("" ::: "memory");
    if constexpr (kVecsPerScale > 0) {
#pragma GCC unroll 8
      for (int r = 0; r < kPacks; ++r) {
        const Pack scale = pack_load(scales + (r * kTileScales + begin / step) * kVecStride);
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t)
          acc[r][t] = pack_fma(acc[r][t], scale, fresh ? pack_zero() : pack_load(total_at(r, t)));
      }
    }
    if (to.last && end == vecs) break;  // the sums are done
#pragma GCC unroll 8
    for (int r = 0; r < kPacks; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) pack_store(total_at(r, t), acc[r][t]);
    if (end == vecs) return;
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; t += 2) {
    constexpr int kVecRows = (kPacks * kPackRows + 3) / 4 * 4;
    const int other = t + 1 < kTokens ? t + 1 : t;
    Vec a[kVecRows], b[kVecRows];
    for (int r = kPacks * kPackRows; r < kVecRows; ++r) a[r] = b[r] = zero();
#pragma GCC unroll 8
    for (int r = 0; r < kPacks; ++r) {
      pack_split(acc[r][t], a + r * kPackRows);
      pack_split(acc[r][other], b + r * kPackRows);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kPacks * kPackRows; r += 4) {
      const std::int64_t row = pack * kPackRows + r;
      const std::int64_t rows = smaller(smaller(4, to.rows - row), kPacks * kPackRows - r);
      float* out = to.out + token * to.out_stride + row;
      if (rows > 0)
        write_outputs(a + r, b + r, rows, to, out + t * to.out_stride, out + other * to.out_stride);
    }
  }
}

template <int kVecsPerScale, int kTokens>
static void multiply_rows(const Tile& tile, std::int64_t token, const float* const* x, std::int64_t col,
                          std::int64_t vecs, const Destination& to) {
  const std::int64_t packs = (to.rows + kPackRows - 1) / kPackRows;
  std::int64_t pack = 0;
  for (; pack + kStepPacks <= packs; pack += kStepPacks)
    multiply<kVecsPerScale, kStepPacks, kTokens>(tile, pack, token, x, col, vecs, to);
  for (; pack < packs; ++pack) multiply<kVecsPerScale, 1, kTokens>(tile, pack, token, x, col, vecs, to);
}

template <class Format>
static void linear_tiles(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* const* x,
                         std::int64_t num_tokens, float* out, std::int64_t out_stride, bool round) {
  constexpr int kScale = Format::kVecsPerScale;
  Tile tile;
  const std::int64_t padded = pivot::simd::padded_columns(w.cols);
  for (std::int64_t first = 0; first < num_tokens; first += kTileTokens) {
    const std::int64_t tokens = smaller(kTileTokens, num_tokens - first);
    for (std::int64_t group = row_begin; group < row_end; group += kGroupRows)
      for (std::int64_t col = 0; col < padded; col += kTileCols)
        for (std::int64_t row = group; row < smaller(group + kGroupRows, row_end); row += kTileRows) {
          const std::int64_t rows = smaller(kTileRows, row_end - row);
          const std::int64_t cols = smaller(kTileCols, padded - col);
          decode_tile<Format>(w, row, rows, col, cols, tile);
          const Destination to{out + first * out_stride + (row - row_begin),
                               tile.totals + (row - group) * kTileTokens * 8,
                               out_stride,
                               rows,
                               w.global_scale,
                               round,
                               col == 0,
                               col + cols == padded};
          std::int64_t t = 0;
          for (; t + kStepTokens <= tokens; t += kStepTokens)
            multiply_rows<kScale, kStepTokens>(tile, t, x + first, col, cols / 8, to);
          if constexpr (kStepTokens > 3)
            for (; t + 3 <= tokens; t += 3) multiply_rows<kScale, 3>(tile, t, x + first, col, cols / 8, to);
          if (t + 2 == tokens)
            multiply_rows<kScale, 2>(tile, t, x + first, col, cols / 8, to);
          else if (t < tokens)
            multiply_rows<kScale, 1>(tile, t, x + first, col, cols / 8, to);
        }
  }
}

}  // namespace
