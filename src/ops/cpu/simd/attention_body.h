// Attention over gathered rows and index scores, on 8 lanes. Included once per instruction set, after
// its vec_*.h.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/pointwise_body.h"

namespace {

using pivot::simd::IndexQuery;
using pivot::simd::IndexTile;
using pivot::simd::kIndexTile;

// ---- attention ----

// kHeads heads against kRows rows; every dot in lane order over dim.
template <int kHeads, int kRows>
PIVOT_INLINE void dot_block(const float* q, std::int64_t dim, const float* const* rows, float factor,
                            float* scores, std::int64_t stride) {
  Vec acc[kHeads][kRows];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) acc[h][r] = zero();
  const float* row[kRows];
  for (int r = 0; r < kRows; ++r) row[r] = rows[r];
  for (std::int64_t c = 0; c < dim; c += 8) {
    Vec values[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) values[r] = load(row[r] + c);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Vec query = load(q + h * dim + c);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[h][r] = fma(query, values[r], acc[h][r]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    float four[4];
    sum4(acc[h][0], kRows > 1 ? acc[h][kRows > 1 ? 1 : 0] : zero(),
         kRows > 2 ? acc[h][kRows > 2 ? 2 : 0] : zero(), zero(), four);
    for (int r = 0; r < kRows; ++r) scores[h * stride + r] = four[r] * factor;
  }
}

template <int kHeads>
static void dot_rows(const float* q, std::int64_t dim, const float* const* rows, std::int64_t count,
                     float factor, float* scores, std::int64_t stride) {
  std::int64_t i = 0;
  for (; i + 3 <= count; i += 3) dot_block<kHeads, 3>(q, dim, rows + i, factor, scores + i, stride);
  for (; i < count; ++i) dot_block<kHeads, 1>(q, dim, rows + i, factor, scores + i, stride);
}

static void row_scores(const float* q, std::int64_t heads, std::int64_t dim, const float* const* rows,
                       std::int64_t count, float factor, float* scores, std::int64_t stride) {
  // Rows in groups that stay in the L1 and L2 caches while all heads pass over them.
  constexpr std::int64_t kGroup = 24;
  for (std::int64_t i = 0; i < count; i += kGroup) {
    const std::int64_t group = smaller(kGroup, count - i);
    std::int64_t h = 0;
    for (; h + 4 <= heads; h += 4)
      dot_rows<4>(q + h * dim, dim, rows + i, group, factor, scores + h * stride + i, stride);
    for (; h < heads; ++h)
      dot_rows<1>(q + h * dim, dim, rows + i, group, factor, scores + h * stride + i, stride);
  }
}

static float softmax(float* scores, std::int64_t count, float sink, bool round) {
  Vec largest = splat(sink);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) largest = max_or_second(load(scores + i), largest);
  if (i < count) largest = max_or_second(load_partial(scores + i, count - i, sink), largest);
  float lanes[8];
  store(lanes, largest);
  float maximum = sink;
  for (const float lane : lanes) maximum = lane > maximum ? lane : maximum;
  const Vec shift = splat(maximum);
  Vec total = zero();
  for (i = 0; i + 8 <= count; i += 8) {
    const Vec p = exponential(load(scores + i) - shift);
    total = total + p;
    store(scores + i, maybe_round(p, round));
  }
  if (i < count) {
    const Vec p = exponential(load_partial(scores + i, count - i, -__builtin_inff()) - shift);
    total = total + p;
    store_partial(scores + i, count - i, maybe_round(p, round));
  }
  float last[8];
  store(last, exponential(splat(sink) - shift));
  return sum(total) + last[0];
}

// o[h][c .. c+8*kVecs) += sum_i p[h][i] * row_i.
template <int kHeads, int kVecs>
PIVOT_INLINE void add_rows(const float* p, std::int64_t stride, std::int64_t dim, const float* const* rows,
                           std::int64_t count, std::int64_t c, float* o) {
  Vec acc[kHeads][kVecs];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[h][v] = load(o + h * dim + c + 8 * v);
  for (std::int64_t i = 0; i < count; ++i) {
    Vec values[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) values[v] = load(rows[i] + c + 8 * v);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Vec weight = splat(p[h * stride + i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[h][v] = fma(weight, values[v], acc[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) store(o + h * dim + c + 8 * v, acc[h][v]);
}

static void weighted_rows(const float* p, std::int64_t stride, std::int64_t heads, std::int64_t dim,
                          const float* const* rows, std::int64_t count, float* o) {
  constexpr std::int64_t kGroup =
      12;  // rows that stay in the L1 cache while all columns and heads pass over them
  for (std::int64_t i = 0; i < count; i += kGroup) {
    const std::int64_t group = smaller(kGroup, count - i);
    for (std::int64_t c = 0; c < dim; c += 16) {
      std::int64_t h = 0;
      for (; h + 4 <= heads; h += 4)
        add_rows<4, 2>(p + h * stride + i, stride, dim, rows + i, group, c, o + h * dim);
      for (; h < heads; ++h) add_rows<1, 2>(p + h * stride + i, stride, dim, rows + i, group, c, o + h * dim);
    }
  }
}

// ---- index scores ----
//
// Both sides are 2*E2M1, integers in [-12, 12], so the dot of a group of 32 is an exact integer. The query is
// stored with 12 added, because the byte multiply wants one unsigned side; 12 * sum(key) takes that back out.

static void index_tile(const std::byte* const* data, const std::byte* const* scales, std::int64_t width,
                       IndexTile* tile) {
  constexpr std::byte kZero[16] = {};
  for (std::int64_t g = 0; g < width / 32; ++g) {
    const std::byte* keys[kIndexTile];
    for (int key = 0; key < kIndexTile; ++key) keys[key] = data[key] == nullptr ? kZero : data[key] + 16 * g;
    std::int8_t* words = tile->codes + g * 8 * 32;
    index_words(keys, words);
    // 12 * sum(codes) is what a query of all zeros would score.
    std::uint8_t twelve[4] = {12, 12, 12, 12};
    Bits acc = index_zero();
    for (int w = 0; w < 8; ++w) acc = index_step(acc, twelve, words + 32 * w);
    const Bits offset = index_sum(acc);
    std::memcpy(tile->offset[g], &offset, sizeof(offset));
    for (int key = 0; key < kIndexTile; ++key)
      tile->scale[g][key] = data[key] == nullptr ? 0.0f : 0.25f * e8m0_value(scales[key][g]);
  }
}

static bool index_query(const float* q, std::int64_t width, IndexQuery* query) {
  for (std::int64_t g = 0; g < width / 32; ++g) {
    const float* x = q + 32 * g;
    // Any scale that puts the group on the grid gives the same products; this is the smallest the quantiser
    // could have used: its largest element is a code in (2, 6] after scaling, unless all are zero.
    const float amax = absolute_maximum(x, 32);
    std::uint32_t code = 127;
    if (amax > 0.0f) code = ceil_log2_code(amax * (1.0f / 6.0f));
    if (code == 0 || code >= 254) return false;
    const float scale = e8m0_value(static_cast<std::byte>(code));
    query->scale[g] = scale;
    for (int i = 0; i < 32; ++i) {
      const float doubled = x[i] / scale * 2.0f;
      const float magnitude = __builtin_fabsf(doubled);
      if (!(magnitude <= 12.0f)) return false;
      const int whole = static_cast<int>(magnitude);
      const bool on_grid =
          static_cast<float>(whole) == magnitude && (whole <= 4 || whole == 6 || whole == 8 || whole == 12);
      if (!on_grid) return false;
      const int word = i % 2 * 4 + i / 2 / 4;
      query->codes[g * 32 + word * 4 + i / 2 % 4] =
          static_cast<std::uint8_t>(12 + (doubled < 0.0f ? -whole : whole));
    }
  }
  return true;
}

template <bool kBf16>
static void index_scores_of(const IndexQuery* q, const float* weights, std::int64_t heads, std::int64_t width,
                            const IndexTile* tiles, std::int64_t num_tiles, float* scores) {
  const std::int64_t groups = width / 32;
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    const IndexTile& tile = tiles[t];
    Vec total = zero();
    for (std::int64_t h = 0; h < heads; ++h) {
      const IndexQuery& query = q[h];
      Vec dot = zero();
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::uint8_t* words = query.codes + g * 32;
        const std::int8_t* keys = tile.codes + g * 256;
        Bits even = index_zero(), odd = index_zero();
#pragma GCC unroll 4
        for (int w = 0; w < 8; w += 2) {
          even = index_step(even, words + 4 * w, keys + 32 * w);
          odd = index_step(odd, words + 4 * w + 4, keys + 32 * w + 32);
        }
        const Bits value = sub_bits(add_bits(index_sum(even), index_sum(odd)), load_bits(tile.offset[g]));
        dot = dot + to_float(value) * (load(tile.scale[g]) * splat(query.scale[g]));
      }
      if (kBf16) dot = round_to_bf16(dot);
      Vec term = splat(weights[h]) * select(less(dot, zero()), zero(), dot);
      total = total + (kBf16 ? round_to_bf16(term) : term);
    }
    store(scores + t * kIndexTile, kBf16 ? round_to_bf16(total) : total);
  }
}

static void index_scores(const IndexQuery* q, const float* weights, std::int64_t heads, std::int64_t width,
                         const IndexTile* tiles, std::int64_t num_tiles, bool bf16, float* scores) {
  if (bf16)
    index_scores_of<true>(q, weights, heads, width, tiles, num_tiles, scores);
  else
    index_scores_of<false>(q, weights, heads, width, tiles, num_tiles, scores);
}

static void head_sum(const float* dots, std::int64_t stride, const float* weights, std::int64_t heads,
                     std::int64_t count, bool bf16, float* scores) {
  for (std::int64_t j = 0; j < count; j += 8) {
    const std::int64_t lanes = smaller(8, count - j);
    Vec total = zero();
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* p = dots + h * stride + j;
      const Vec dot = maybe_round(lanes == 8 ? load(p) : load_partial(p, lanes, 0.0f), bf16);
      total = total + maybe_round(splat(weights[h]) * select(less(dot, zero()), zero(), dot), bf16);
    }
    total = maybe_round(total, bf16);
    lanes == 8 ? store(scores + j, total) : store_partial(scores + j, lanes, total);
  }
}

}  // namespace
