// FP4 and NVFP4 weights times FP8 inputs, in integers. Included once per instruction set, after its pack_*.h.
//
// An E4M3 code is an integer of 18 bits times 2^-9, written as two or three digits of a signed byte. Twice an
// E2M1 value plus 12 is an unsigned byte. Byte multiplies then give the exact sum of eight columns, whatever
// their order, and the float arithmetic shrinks to one multiplication and one multiply-add for 64 columns a
// row:
//   total[lane] = fma(float(sum[lane]) * weight_scale[lane], input_scale, total[lane])
// With power-of-two scales the product is exact, so a losslessly cast NVFP4 matrix computes what its FP4
// source does.
//
// A prepared row is a Digits record per 64 columns.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/weights_body.h"

namespace {

using pivot::simd::Digits;

// Ahead in the stream of codes (lab/cpu/gemv.cpp, idea 3).
constexpr std::int64_t kDigitPrefetchBytes = 1024;

// Rows [row, row + kPackRows) are addressed by `row` and `step`: 1, or 0 where the last row stands in for one
// that does not exist.
struct Fp4Scales {
  static constexpr std::int64_t kGroup = 32;
  // Lane scales of columns [col, +64).
  PIVOT_INLINE Pack load_one(const std::byte* p, std::int64_t stride) { return pack_e8m0(p, stride); }
  // Of two neighbouring chunks.
  PIVOT_INLINE void load_two(const std::byte* p, std::int64_t stride, Pack out[2]) {
    pack_e8m0_two(p, stride, out);
  }
};

struct Nvfp4Scales {
  static constexpr std::int64_t kGroup = 16;
  PIVOT_INLINE Pack load_one(const std::byte* p, std::int64_t stride) { return pack_e4m3_scales(p, stride); }
  PIVOT_INLINE void load_two(const std::byte* p, std::int64_t stride, Pack out[2]) {
    out[0] = pack_e4m3_scales(p, stride);
    out[1] = pack_e4m3_scales(p + 4, stride);
  }
};

// A chunk of 64 columns of a pack of rows, zero beyond the last column.
template <class Scales, bool kWords>
PIVOT_INLINE Pack load_chunk(const Matrix& w, std::int64_t row, std::int64_t step, std::int64_t col,
                             PackBytes* out) {
  const auto decode = [&](const std::byte* p, std::int64_t stride) __attribute__((always_inline)) {
    if constexpr (kWords)
      pack_e2m1_words(p, stride, out);
    else
      pack_e2m1(p, stride, out);
  };
  const std::byte* codes = w.codes + (row * w.cols + col) / 2;
  const std::byte* scales = w.scales + (row * w.cols + col) / Scales::kGroup;
  const std::int64_t code_stride = step * w.cols / 2, scale_stride = step * w.cols / Scales::kGroup;
  if (col + 64 <= w.cols) {
    decode(codes, code_stride);
    return Scales::load_one(scales, scale_stride);
  }
  std::byte code_rest[kPackRows][32] = {}, scale_rest[kPackRows][4] = {};
  for (std::int64_t r = 0; r < kPackRows; ++r) {
    std::memcpy(code_rest[r], codes + r * code_stride, static_cast<std::size_t>(w.cols - col) / 2);
    std::memcpy(scale_rest[r], scales + r * scale_stride,
                static_cast<std::size_t>((w.cols - col) / Scales::kGroup));
  }
  decode(code_rest[0], 32);
  return Scales::load_one(scale_rest[0], 4);
}

// One chunk of one input, ready for any number of rows.
template <bool kShort>
struct Chunk {
  DigitPacks<kShort ? 2 : 3> digits;
  PackBits offset;
  Pack scale;

  __attribute__((always_inline)) explicit Chunk(const Digits& x)
      : digits(load_digits < kShort ? 2 : 3 > (x.digits)),
        offset(pack_repeat_bits(x.offset)),
        scale(pack_splat(x.scale)) {}
  __attribute__((always_inline)) Pack add(const PackBytes weights[2], Pack weight_scale, Pack total) const {
    const PackBits dot = digit_dot < kShort ? 2 : 3,
                   kShort ? 256 : 128 > (weights[0], weights[1], digits, offset);
    return pack_fma(pack_multiply(pack_to_float(dot), weight_scale), scale, total);
  }
};
PIVOT_INLINE Pack add_digits(const PackBytes weights[2], Pack scale, const Digits& x, Pack total) {
  return x.is_short != 0 ? Chunk<true>(x).add(weights, scale, total)
                         : Chunk<false>(x).add(weights, scale, total);
}

// ---- one token ----

// One row at a time keeps the codes one sequential stream; a second row beside it gains nothing.
template <class Scales>
PIVOT_INLINE Pack digits_rows(const Matrix& w, std::int64_t row, std::int64_t step, const Digits* x) {
  const std::byte* codes = w.codes + row * w.cols / 2;
  const std::byte* scales = w.scales + row * w.cols / Scales::kGroup;
  const std::int64_t code_stride = step * w.cols / 2, scale_stride = step * w.cols / Scales::kGroup;
  Pack sum = pack_zero();
  std::int64_t col = 0;
  for (; col + 128 <= w.cols; col += 128, codes += 64, scales += 128 / Scales::kGroup, x += 2) {
    for (std::int64_t r = 0; r < kPackRows; ++r)
      __builtin_prefetch(codes + r * code_stride + kDigitPrefetchBytes);
    Pack lanes[2];
    Scales::load_two(scales, scale_stride, lanes);
    PackBytes weights[2];
    pack_e2m1(codes, code_stride, weights);
    sum = add_digits(weights, lanes[0], x[0], sum);
    pack_e2m1(codes + 32, code_stride, weights);
    sum = add_digits(weights, lanes[1], x[1], sum);
  }
  for (; col < w.cols; col += 64, ++x) {
    PackBytes weights[2];
    const Pack lanes = load_chunk<Scales, false>(w, row, step, col, weights);
    sum = add_digits(weights, lanes, *x, sum);
  }
  return sum;
}

template <class Scales>
static void digits_one(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const Digits* x,
                       float* out, bool round) {
  for (std::int64_t row = row_begin; row < row_end; row += 4) {
    const std::int64_t rows = smaller(4, row_end - row);
    Vec total[4] = {zero(), zero(), zero(), zero()};
    for (std::int64_t r = 0; r < rows; r += kPackRows)
      pack_split(digits_rows<Scales>(w, row + r, r + kPackRows <= rows ? 1 : 0, x), total + r);
    float values[8] = {};
    sum4(total[0], total[1], total[2], total[3], values);
    Vec result = load(values) * splat(w.global_scale);
    if (round) result = round_to_bf16(result);
    store(values, result);
    std::memcpy(out + (row - row_begin), values, static_cast<std::size_t>(rows) * sizeof(float));
  }
}

// ---- many tokens ----
//
// The same integers in 16-bit words: a short input fits one, a long one splits into digit0 + 128 * digit1 and
// digit2. Weights take four times their bytes, which a tile pays once for all tokens, and a chunk takes four
// word multiplies instead of four byte multiplies, two word multiplies and an offset. The sums are exact, so
// the outputs are those of the one-token kernel.

constexpr std::int64_t kDigitRows = 16;
constexpr std::int64_t kDigitCols = 512;  // 16 KiB of decoded words and 4 KiB of scales
constexpr std::int64_t kDigitChunks = kDigitCols / 64;
constexpr std::int64_t kDigitTokens = 64;
// Rows that pass over one tile of inputs (64 to 128 KiB) before the next: with their totals (128 KiB) it
// stays in the L2 cache.
constexpr std::int64_t kDigitGroup = 64;

struct InputWords {
  alignas(64) std::int16_t low[64];
  std::int16_t high[64];  // of long inputs
  float scale;
  std::int32_t is_short;
  float unused[14];
};

struct DigitTile {
  alignas(64) std::uint8_t weights[kDigitRows / kPackRows][kDigitChunks][kPackRows * 128];
  alignas(64) float scales[kDigitRows / kPackRows][kDigitChunks][kPackRows * 8];
  alignas(64) float totals[kDigitTokens][kDigitGroup][8];
  InputWords inputs[kDigitTokens][kDigitChunks];
};

template <class Scales>
static void decode_digit_tile(const Matrix& w, std::int64_t row, std::int64_t rows, std::int64_t col,
                              std::int64_t chunks, DigitTile& tile) {
  for (std::int64_t r = 0; r < rows; r += kPackRows)
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      PackBytes words[4];
      const Pack lanes =
          load_chunk<Scales, true>(w, row + r, r + kPackRows <= rows ? 1 : 0, col + 64 * chunk, words);
      std::uint8_t* to = tile.weights[r / kPackRows][chunk];
      for (std::int64_t i = 0; i < 4; ++i) pack_store_bytes(to + i * kPackRows * 32, words[i]);
      pack_store(tile.scales[r / kPackRows][chunk], lanes);
    }
}

static void widen_inputs(const float* const* x, std::int64_t tokens, std::int64_t first_chunk,
                         std::int64_t chunks, DigitTile& tile) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const Digits& from = reinterpret_cast<const Digits*>(x[t])[first_chunk + chunk];
      InputWords& to = tile.inputs[t][chunk];
      to.scale = from.scale;
      to.is_short = from.is_short;
      if (from.is_short != 0) {
        words_of<256>(from.digits, to.low);
      } else {
        words_of<128>(from.digits, to.low);
        high_words_of(from.digits, to.high);
      }
    }
}

template <bool kShort, int kPacks>
PIVOT_INLINE void add_word_rows(const DigitTile& tile, std::int64_t pack, std::int64_t chunk,
                                const InputWords& x, Pack* total) {
  const WordPack low = load_words(x.low);
  const Pack scale = pack_splat(x.scale);
#pragma GCC unroll 8
  for (int r = 0; r < kPacks; ++r) {
    const std::uint8_t* weights = tile.weights[pack + r][chunk];
    PackBits dot = word_dot(weights, low);
    if constexpr (!kShort) dot = join_words(dot, word_dot(weights, load_words(x.high)));
    const Pack scaled = pack_multiply(pack_to_float(dot), pack_load(tile.scales[pack + r][chunk]));
    total[r] = pack_fma(scaled, scale, total[r]);
  }
}

// kPacks packs of rows and one token over the chunks of one tile: the rows share the loads of a chunk's
// input.
template <int kPacks>
static void multiply_words(const DigitTile& tile, std::int64_t pack, const InputWords* x, std::int64_t chunks,
                           bool first, float (*totals)[8]) {
  Pack total[kPacks];
#pragma GCC unroll 8
  for (int r = 0; r < kPacks; ++r) total[r] = first ? pack_zero() : pack_load(totals[r * kPackRows]);
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (x[chunk].is_short != 0)
      add_word_rows<true, kPacks>(tile, pack, chunk, x[chunk], total);
    else
      add_word_rows<false, kPacks>(tile, pack, chunk, x[chunk], total);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kPacks; ++r) pack_store(totals[r * kPackRows], total[r]);
}

PIVOT_INLINE void write_totals(const float (*totals)[8], std::int64_t rows, float factor, bool round,
                               float* out) {
  for (std::int64_t r = 0; r < rows; r += 8) {
    // Rows beyond the last are whatever the tile holds; their sums are not written.
    const auto total = [&](std::int64_t i) { return r + i < rows ? load(totals[r + i]) : zero(); };
    const Vec a[4] = {total(0), total(1), total(2), total(3)};
    const Vec b[4] = {total(4), total(5), total(6), total(7)};
    Vec sums = sum8(a, b) * splat(factor);
    if (round) sums = round_to_bf16(sums);
    if (r + 8 <= rows) {
      store(out + r, sums);
    } else {
      float values[8];
      store(values, sums);
      std::memcpy(out + r, values, static_cast<std::size_t>(rows - r) * sizeof(float));
    }
  }
}

template <class Scales>
static void digits_tiles(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const float* const* x,
                         std::int64_t num_tokens, float* out, std::int64_t out_stride, bool round) {
  constexpr std::int64_t kWide = 8;  // packs at a time
  DigitTile tile;
  for (std::int64_t first = 0; first < num_tokens; first += kDigitTokens) {
    const std::int64_t tokens = smaller(kDigitTokens, num_tokens - first);
    for (std::int64_t group = row_begin; group < row_end; group += kDigitGroup) {
      const std::int64_t group_end = smaller(group + kDigitGroup, row_end);
      for (std::int64_t col = 0; col < w.cols; col += kDigitCols) {
        const std::int64_t chunks = (smaller(kDigitCols, w.cols - col) + 63) / 64;
        widen_inputs(x + first, tokens, col / 64, chunks, tile);
        for (std::int64_t row = group; row < group_end; row += kDigitRows) {
          const std::int64_t rows = smaller(kDigitRows, group_end - row);
          const std::int64_t packs = (rows + kPackRows - 1) / kPackRows;
          decode_digit_tile<Scales>(w, row, rows, col, chunks, tile);
          for (std::int64_t t = 0; t < tokens; ++t) {
            const InputWords* input = tile.inputs[t];
            float(*totals)[8] = tile.totals[t] + (row - group);
            std::int64_t pack = 0;
            for (; pack + kWide <= packs; pack += kWide)
              multiply_words<kWide>(tile, pack, input, chunks, col == 0, totals + pack * kPackRows);
            for (; pack < packs; ++pack)
              multiply_words<1>(tile, pack, input, chunks, col == 0, totals + pack * kPackRows);
          }
        }
      }
      for (std::int64_t t = 0; t < tokens; ++t)
        write_totals(tile.totals[t], group_end - group, w.global_scale, round,
                     out + (first + t) * out_stride + (group - row_begin));
    }
  }
}

template <class Scales>
static void linear_digits(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                          const float* const* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
                          bool round) {
  if (num_tokens == 1)
    digits_one<Scales>(w, row_begin, row_end, reinterpret_cast<const Digits*>(x[0]), out, round);
  else if (num_tokens > 1)
    digits_tiles<Scales>(w, row_begin, row_end, x, num_tokens, out, out_stride, round);
}

}  // namespace
