// Linear layers for many tokens: a tile of W is decoded once and multiplied with every token. Included once
// per instruction set, after its vec_*.h.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/weights_body.h"

namespace {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileCols = 256;  // 16 KiB of decoded weights: half of the L1 cache
constexpr std::int64_t kTileBlocks = kTileCols / 128;
constexpr std::int64_t kTileTokens = 96;
// Rows that pass over one tile of inputs (96 KiB) before the next: with their totals (192 KiB) it stays in
// the L2 cache.
constexpr std::int64_t kGroupRows = 64;

struct Tile {
  alignas(64) float weights[kTileRows * kTileCols];
  alignas(64) float scales[kTileRows * kTileBlocks * 8];  // [row][block][8]
  alignas(64) float totals[kTileTokens * kGroupRows * 8];
};

template <class Format>
static void decode_tile(const Matrix& w, std::int64_t row_begin, std::int64_t rows, std::int64_t col_begin,
                        std::int64_t padded, Tile& tile) {
  constexpr int kVecs = Format::kChunk / 8;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* row = w.codes + Format::bytes((row_begin + r) * w.cols);
    float* out = tile.weights + r * kTileCols;
    for (std::int64_t c = 0; c < padded; c += Format::kChunk) {
      Vec values[kVecs];
      if (col_begin + c < w.cols) {
        decode_chunk<Format>(w, row, row_begin + r, col_begin + c, values);
      } else {
        for (int v = 0; v < kVecs; ++v) values[v] = zero();
      }
      for (int v = 0; v < kVecs; ++v) store(out + c + 8 * v, values[v]);
    }
    if constexpr (std::is_same_v<Format, Fp8Format> || std::is_same_v<Format, Fp8BlockFormat>) {
      // NaN codes decode to a number: give them back their meaning.
      const std::int64_t codes = smaller(padded, w.cols - col_begin);
      CodeCheck check;
      std::int64_t whole = 0;
      for (; whole + 32 <= codes; whole += 32) note_e4m3(row + col_begin + whole, check);
      for (std::int64_t c = saw_nan(check) ? 0 : whole; c < codes; ++c)
        if ((static_cast<unsigned>(row[col_begin + c]) & 0x7fu) == 0x7fu)
          out[c / 32 * 32 + c % 4 * 8 + c % 32 / 4] = __builtin_nanf("");
    }
    if constexpr (Format::kVecsPerBlock > 0) {
      static_assert(Format::kVecsPerBlock * 8 == 128, "kTileBlocks counts blocks of 128 columns");
      for (std::int64_t block = 0; block * 128 < padded; ++block)
        store(tile.scales + (r * kTileBlocks + block) * 8,
              col_begin + block * 128 < w.cols
                  ? Format::block_scale(w, row_begin + r, col_begin + block * 128)
                  : zero());
    }
  }
}

// Where a tile's products go. Totals of earlier column tiles are read unless this is the first, and kept
// unless it is the last, which writes the outputs.
struct Destination {
  float* out;
  float* totals;
  std::int64_t out_stride;
  float factor;
  bool round, first, last;
};

// Four neighbouring outputs of each of two tokens.
PIVOT_INLINE void write_outputs(const Vec a[4], const Vec b[4], const Destination& to, float* out_a,
                                float* out_b) {
  Vec sums = sum8(a, b) * splat(to.factor);
  if (to.round) sums = round_to_bf16(sums);
  store_halves(out_a, out_b, sums);
}
PIVOT_INLINE void write_output(Vec a, const Destination& to, float* out) {
  const float scaled = sum(a) * to.factor;
  *out = to.round ? round_to_bf16(scaled) : scaled;
}

// W x for kRows rows from `row` and kTokens tokens from `token`, over one tile of columns. Twelve sums of
// four rows and three tokens use 12 of the 16 registers; a step loads seven vectors for twelve multiply-adds.
template <int kVecsPerBlock, int kRows, int kTokens>
static void multiply(const Tile& tile, std::int64_t row, std::int64_t token, const float* const* x,
                     std::int64_t col, std::int64_t vecs, const Destination& to) {
  const float* weights = tile.weights + row * kTileCols;
  // The totals of three tokens and four rows lie together; a rest of fewer uses a part of their place.
  float* const totals = to.totals + ((token / 3 * (kTileRows / 4) + row / 4) * 4 + row % 4) * 3 * 8;
  const float* inputs[kTokens];
  for (int t = 0; t < kTokens; ++t) inputs[t] = x[token + t] + col;
  const std::int64_t step = kVecsPerBlock == 0 ? vecs : kVecsPerBlock;
  for (std::int64_t begin = 0; begin < vecs; begin += step) {
    const std::int64_t end = smaller(begin + step, vecs);
    const bool fresh = to.first && begin == 0;
    Vec acc[kRows][kTokens];
    const auto each = [&](const auto& work) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) work(acc[r][t], totals + 8 * (r * kTokens + t), r);
    };
    if (kVecsPerBlock > 0 || fresh)
      each([](Vec& sum, const float*, int) { sum = zero(); });
    else
      each([](Vec& sum, const float* total, int) { sum = load(total); });
    // Columns are padded to a multiple of eight vectors.
    for (std::int64_t eight = begin; eight < end; eight += 8)
#pragma GCC unroll 4
      for (std::int64_t v = eight; v < eight + 8; ++v) {
        Vec input[kTokens];
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) input[t] = load_once(inputs[t] + 8 * v);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const Vec weight = load_once(weights + r * kTileCols + 8 * v);
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) acc[r][t] = fma(weight, input[t], acc[r][t]);
        }
      }
    // Keeps the compiler from loading the totals before the loop, which has no registers to spare for them.
    asm volatile("" ::: "memory");
    if constexpr (kVecsPerBlock > 0) {
      const float* scale = tile.scales + (row * kTileBlocks + begin / kVecsPerBlock) * 8;
      each([&](Vec& sum, const float* total, int r) {
        sum = fma(sum, load(scale + r * kTileBlocks * 8), fresh ? zero() : load(total));
      });
    }
    if (!to.last || end < vecs) {
      each([](const Vec& sum, float* total, int) { store(total, sum); });
      continue;
    }
    float* out = to.out + token * to.out_stride + row;
    if constexpr (kRows == 4) {
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; t += 2) {
        const int other = t + 1 < kTokens ? t + 1 : t;
        const Vec a[4] = {acc[0][t], acc[1][t], acc[2][t], acc[3][t]};
        const Vec b[4] = {acc[0][other], acc[1][other], acc[2][other], acc[3][other]};
        write_outputs(a, b, to, out + t * to.out_stride, out + other * to.out_stride);
      }
    } else {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) write_output(acc[r][t], to, out + t * to.out_stride + r);
    }
  }
}

template <int kVecsPerBlock, int kTokens>
static void multiply_rows(const Tile& tile, std::int64_t rows, std::int64_t token, const float* const* x,
                          std::int64_t col, std::int64_t vecs, const Destination& to) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) multiply<kVecsPerBlock, 4, kTokens>(tile, r, token, x, col, vecs, to);
  for (; r < rows; ++r) multiply<kVecsPerBlock, 1, kTokens>(tile, r, token, x, col, vecs, to);
}

template <class Format>
static void linear_tiles(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* const* x,
                         std::int64_t num_tokens, float* out, std::int64_t out_stride, bool round) {
  constexpr int kBlock = Format::kVecsPerBlock;
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
                               w.global_scale,
                               round,
                               col == 0,
                               col + cols == padded};
          std::int64_t t = 0;
          for (; t + 3 <= tokens; t += 3)
            multiply_rows<kBlock, 3>(tile, rows, t, x + first, col, cols / 8, to);
          if (t + 2 == tokens)
            multiply_rows<kBlock, 2>(tile, rows, t, x + first, col, cols / 8, to);
          else if (t < tokens)
            multiply_rows<kBlock, 1>(tile, rows, t, x + first, col, cols / 8, to);
        }
  }
}

}  // namespace
