// The inner loops of the fast CPU back-end, one table of functions per instruction set (isa.h).
//
// Each table is compiled from the same *_body.h files in a translation unit of its own, with that set's
// compiler flags. Those units include nothing that could emit a shared inline function, so no code compiled
// for a newer CPU can leak into the rest of the program.
//
// Order of sums: every dot product runs in 8 lanes over a column order that depends on the weight format
// alone, so an output has the same bits whether its token comes alone or with others, and whichever thread
// computes it. Registers of 16 lanes hold the 8 lanes of two rows side by side, which leaves every sum as it
// is: AVX-512 computes the bits of AVX2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/row_layout.h"
#include "tensor/matrix.h"

namespace pivot::simd {

inline constexpr std::int64_t kLanes = 8;
inline constexpr std::int64_t kColumnAlignment = 64;  // prepared inputs are zero-padded to a multiple of this
inline constexpr std::int64_t kIndexTile = 8;         // keys of one index tile
inline constexpr std::int64_t kMaxHeads = 256;        // attention heads
inline constexpr std::int64_t kMaxPairs = 128;        // rotary pairs

constexpr std::int64_t padded_columns(std::int64_t cols) {
  return (cols + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
}

// The order in which a weight format's decoder delivers columns; inputs are permuted to it once.
enum class ColumnOrder : std::uint8_t {
  kPlain,    // F32
  kPairs,    // BF16: 16 columns as even, odd
  kQuads,    // FP8: 32 columns as c mod 4 = 0, 1, 2, 3
  kNibbles,  // FP4, NVFP4: 64 columns in the order of the nibble unpacker
  kDigits    // FP4, NVFP4 with an FP8 input: Digits records
};

// 64 columns of an FP8 input as integers, for weights of four bits (linear_digits_body.h). A record takes the
// space of the 64 floats it stands for.
struct Digits {
  // Signed digits of the E4M3 value in units of 2^-9: three to the base 128, or, where all 64 are multiples
  // of eight (small codes are rare next to large ones), two to the base 256 in units of 2^-6. Each digit:
  // even columns, then odd columns.
  alignas(64) std::int8_t digits[192];
  alignas(32) std::int32_t offset[8];  // lane i: 12 times the sum of the integers of columns 8i .. 8i+7
  float scale;                         // the group's scale times the unit, halved
  std::int32_t is_short;               // two digits
  float unused[6];
};
static_assert(sizeof(Digits) == 64 * sizeof(float));

constexpr ColumnOrder column_order(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kF32:
      return ColumnOrder::kPlain;
    case MatrixFormat::kBF16:
      return ColumnOrder::kPairs;
    case MatrixFormat::kFP8:
      return ColumnOrder::kQuads;
    case MatrixFormat::kFP4:
    case MatrixFormat::kNVFP4:
      return ColumnOrder::kNibbles;
  }
  return ColumnOrder::kPlain;
}

// Keys of one tile of packed FP4 index keys, ready for integer dot products: 8 keys side by side.
struct IndexTile {
  // [dim/4 words][8 keys][4 bytes] of 2*E2M1; word order as index_query writes it. dim <= 256.
  alignas(64) std::int8_t codes[256 * kIndexTile];
  alignas(32) std::int32_t offset[8][kIndexTile];  // 12 * sum of the group's codes
  alignas(32) float scale[8][kIndexTile];          // a quarter of the group's scale: undoes the two factors 2
};

// One index query head for IndexTile.
struct IndexQuery {
  alignas(32) std::uint8_t codes[256];  // 2*E2M1 + 12, in word order
  float scale[8];
};

struct Kernels {
  // ---- linear layers ----
  // out = src[0, cols) in `order`, zero up to padded_columns(cols).
  void (*permute)(const float* src, std::int64_t cols, ColumnOrder order, float* out);
  // In place, groups of `group` columns (the last may be shorter): Q8 of specification 3.2. `scales`
  // (optional) gets one E8M0 byte per group. REQUIRES: group a multiple of 8.
  void (*quantize_e4m3)(float* x, std::int64_t cols, std::int64_t group, std::uint8_t* scales);
  void (*quantize_e2m1)(float* x, std::int64_t cols, std::int64_t group);
  // The quantiser of FP8 inputs (groups of 128) as Digits records of padded_columns(cols) columns.
  void (*quantize_digits)(const float* x, std::int64_t cols, Digits* out);
  // out[t*out_stride + n - row_begin] = W[n] . x[t] for rows [row_begin, row_end), n absolute; x[t] is
  // prepared in `order` (column_order() of the format, or kDigits) and padded. `round` rounds to BF16.
  void (*linear)(const Matrix& w, ColumnOrder order, std::int64_t row_begin, std::int64_t row_end,
                 const float* const* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
                 bool round);

  // ---- pointwise and per row ----
  // `round` rounds each square to BF16, as the per-head RMS of specification 2.4 does.
  float (*sum_squares)(const float* x, std::int64_t count, bool round);
  // y[i] = x[i] * factor * weight[i] (weight may be null); `round` rounds to BF16. y may be x.
  void (*scale_row)(const float* x, float factor, const float* weight, std::int64_t count, bool round,
                    float* y);
  void (*divide_row)(float* x, float divisor, std::int64_t count, bool round);  // in place
  void (*round_bf16)(float* x, std::int64_t count);
  // Adjacent pairs x[0, 2*pairs); sin negated by the caller for the inverse.
  void (*rotate)(float* x, const float* cos, const float* sin, std::int64_t pairs, bool round);
  // Natural-order transform times size^-0.5, bit-equal to pivot::hadamard. REQUIRES: a power of two >= 16.
  void (*hadamard)(float* x, std::int64_t size);
  // h[k][i] = round(post[k]*o[i] + sum_j comb[j][k]*h[j][i]) for columns [begin, end) of [streams][width].
  void (*hc_post)(float* h, const float* o, const float* post, const float* comb, int streams,
                  std::int64_t width, std::int64_t begin, std::int64_t end, bool round);
  // y[i] = round(sum_j pre[j]*h[j][i]).
  void (*hc_pre)(const float* h, const float* pre, int streams, std::int64_t width, bool round, float* y);
  // Steps 4-6 of specification 2.2 for up to 8 tokens at once: mixes [tokens][(2+S)*S]. REQUIRES: streams
  // <= 4.
  void (*hc_coefficients)(const float* mixes, std::int64_t num_tokens, const float* scale, const float* base,
                          int streams, int iterations, float eps, float* pre, float* post, float* comb);
  // g[i] = round(silu(min(g, limit)) * clamp(u, +-limit) * weight), limit <= 0: no clamp.
  void (*swiglu)(float* g, const float* u, std::int64_t count, float limit, float weight, bool round);
  void (*accumulate)(float* sum, const float* x, std::int64_t count);  // sum += x
  // Softmax pool of the compressor: out[c] = sum_i softmax_i(s[i][c]) * k[i][c] over `count` rows, c < width.
  void (*softmax_pool)(const float* const* k, const float* const* s, std::int64_t count, std::int64_t width,
                       float* out);

  // ---- cached rows ----
  void (*unpack_row)(const RowLayout& layout, const std::byte* data, const std::byte* scales, float* x);

  // ---- attention ----
  // scores[h*stride + i] = (q[h] . row_i) * factor, q [heads, dim]. REQUIRES: dim a multiple of 8.
  void (*row_scores)(const float* q, std::int64_t heads, std::int64_t dim, const float* const* rows,
                     std::int64_t count, float factor, float* scores, std::int64_t stride);
  // In place: p = exp(score - max(scores, sink)), rounded to BF16 when asked; returns the sum of the
  // unrounded p plus exp(sink - max).
  float (*softmax)(float* scores, std::int64_t count, float sink, bool round);
  // o[h][i] += sum_i p[h*stride + i] * row_i, rows added in order. REQUIRES: dim a multiple of 16.
  void (*weighted_rows)(const float* p, std::int64_t stride, std::int64_t heads, std::int64_t dim,
                        const float* const* rows, std::int64_t count, float* o);

  // ---- index scores ----
  // One packed FP4 key layout, `width` a multiple of 32: data[i], scales[i] of 8 keys (null: a zero key).
  void (*index_tile)(const std::byte* const* data, const std::byte* const* scales, std::int64_t width,
                     IndexTile* tile);
  // Splits a query head that lies on the FP4 grid; false where it does not.
  bool (*index_query)(const float* q, std::int64_t width, IndexQuery* query);
  // score[j] = sum_h weights[h] * relu(q_h . key_j) for the 8 keys of each tile. `bf16` rounds as knob
  // index_score=bf16 asks.
  void (*index_scores)(const IndexQuery* q, const float* weights, std::int64_t heads, std::int64_t width,
                       const IndexTile* tiles, std::int64_t num_tiles, bool bf16, float* scores);
  // The same sum from dots[h*stride + j], j < count.
  void (*head_sum)(const float* dots, std::int64_t stride, const float* weights, std::int64_t heads,
                   std::int64_t count, bool bf16, float* scores);
};

}  // namespace pivot::simd
