// Attention over gathered rows and index scores. Included once per instruction set, after its pack_*.h.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/pointwise_body.h"

namespace {

using pivot::simd::IndexQuery;
using pivot::simd::IndexTile;
using pivot::simd::kIndexTile;

// ---- attention ----

// kPacks packs of heads against kRows rows; every dot in lane order over dim. `step` is 1, or 0 where the
// last head stands in for one that does not exist.
template <int kPacks, int kRows>
PIVOT_INLINE void dot_block(const float* q, std::int64_t step, std::int64_t dim, const float* const* rows,
                            float factor, float* scores, std::int64_t stride) {
  Pack acc[kPacks][kRows];
#pragma GCC unroll 4
  for (int h = 0; h < kPacks; ++h)
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) acc[h][r] = pack_zero();
  const float* row[kRows];
  for (int r = 0; r < kRows; ++r) row[r] = rows[r];
  for (std::int64_t c = 0; c < dim; c += 8) {
    Pack values[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) values[r] = pack_repeat_once(row[r] + c);
#pragma GCC unroll 4
    for (int h = 0; h < kPacks; ++h) {
      const Pack query = pack_gather(q + h * kPackRows * dim + c, step * dim);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[h][r] = pack_fma(query, values[r], acc[h][r]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kPacks; ++h) {
    Vec lanes[4][kPackRows] = {};
    for (int r = 0; r < kRows; ++r) pack_split(acc[h][r], lanes[r]);
    for (std::int64_t head = 0; head < (step == 1 ? kPackRows : 1); ++head) {
      float four[4];
      sum4(lanes[0][head], lanes[1][head], lanes[2][head], lanes[3][head], four);
      for (int r = 0; r < kRows; ++r) scores[(h * kPackRows + head) * stride + r] = four[r] * factor;
    }
  }
}

template <int kPacks>
static void dot_rows(const float* q, std::int64_t step, std::int64_t dim, const float* const* rows,
                     std::int64_t count, float factor, float* scores, std::int64_t stride) {
  std::int64_t i = 0;
  for (; i + 3 <= count; i += 3) dot_block<kPacks, 3>(q, step, dim, rows + i, factor, scores + i, stride);
  for (; i < count; ++i) dot_block<kPacks, 1>(q, step, dim, rows + i, factor, scores + i, stride);
}

static void row_scores(const float* q, std::int64_t heads, std::int64_t dim, const float* const* rows,
                       std::int64_t count, float factor, float* scores, std::int64_t stride) {
  // Rows in groups that stay in the L1 and L2 caches while all heads pass over them.
  constexpr std::int64_t kGroup = 24;
  constexpr std::int64_t kFour = 4 * kPackRows, kTwo = 2 * kPackRows;
  for (std::int64_t i = 0; i < count; i += kGroup) {
    const std::int64_t group = smaller(kGroup, count - i);
    std::int64_t h = 0;
    const auto add = [&](auto packs, std::int64_t step) {
      dot_rows<packs()>(q + h * dim, step, dim, rows + i, group, factor, scores + h * stride + i, stride);
      h += packs() * kPackRows;
    };
    while (h + kFour <= heads) add(std::integral_constant<int, 4>(), 1);
    while (h + kTwo <= heads) add(std::integral_constant<int, 2>(), 1);
    while (h < heads) add(std::integral_constant<int, 1>(), h + kPackRows <= heads ? 1 : 0);
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

// o[h][c .. c + kVecs packs) += sum_i p[h][i] * row_i; a pack is 8 * kPackRows neighbouring columns here.
template <int kHeads, int kVecs>
PIVOT_INLINE void add_rows(const float* p, std::int64_t stride, std::int64_t dim, const float* const* rows,
                           std::int64_t count, std::int64_t c, float* o) {
  constexpr std::int64_t kWidth = 8 * kPackRows;
  Pack acc[kHeads][kVecs];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[h][v] = pack_load(o + h * dim + c + kWidth * v);
  for (std::int64_t i = 0; i < count; ++i) {
    Pack values[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) values[v] = pack_load_once(rows[i] + c + kWidth * v);
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const Pack weight = pack_splat(p[h * stride + i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[h][v] = pack_fma(weight, values[v], acc[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) pack_store(o + h * dim + c + kWidth * v, acc[h][v]);
}

static void weighted_rows(const float* p, std::int64_t stride, std::int64_t heads, std::int64_t dim,
                          const float* const* rows, std::int64_t count, float* o) {
  // Rows that stay in the L1 cache while all columns and heads pass over them.
  constexpr std::int64_t kGroup = 12;
  constexpr int kVecs = 2 / kPackRows;  // 16 columns
  for (std::int64_t i = 0; i < count; i += kGroup) {
    const std::int64_t group = smaller(kGroup, count - i);
    for (std::int64_t c = 0; c < dim; c += 16) {
      std::int64_t h = 0;
      const auto add = [&](auto together) __attribute__((always_inline)) {
        add_rows<together(), kVecs>(p + h * stride + i, stride, dim, rows + i, group, c, o + h * dim);
        h += together();
      };
      if constexpr (kPackRows == 2)
        while (h + 8 <= heads) add(std::integral_constant<int, 8>());
      while (h + 4 <= heads) add(std::integral_constant<int, 4>());
      while (h < heads) add(std::integral_constant<int, 1>());
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

// A pack of tiles, `step` tiles apart (0: one tile stands in for the missing second).
template <bool kBf16>
PIVOT_INLINE Pack index_tile_scores(const IndexQuery* q, const float* weights, std::int64_t heads,
                                    std::int64_t groups, const IndexTile* tile, std::int64_t step) {
  const std::int64_t stride = step * static_cast<std::int64_t>(sizeof(IndexTile));
  const auto rounded = [](Pack a) __attribute__((always_inline)) {
    Vec rows[kPackRows];
    pack_split(a, rows);
    for (Vec& row : rows) row = round_to_bf16(row);
    return pack_join(rows);
  };
  Pack total = pack_zero();
  for (std::int64_t h = 0; h < heads; ++h) {
    const IndexQuery& query = q[h];
    Pack dot = pack_zero();
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::uint8_t* words = query.codes + g * 32;
      const std::int8_t* keys = tile->codes + g * 256;
      PackBits even = pack_index_zero(), odd = pack_index_zero();
#pragma GCC unroll 4
      for (int w = 0; w < 8; w += 2) {
        even = pack_index_step(even, words + 4 * w, keys + 32 * w, stride);
        odd = pack_index_step(odd, words + 4 * w + 4, keys + 32 * w + 32, stride);
      }
      const Pack value = pack_to_float(pack_index_sum(even, odd, tile->offset[g], stride));
      const Pack scale = pack_multiply(pack_gather(tile->scale[g], stride / 4), pack_splat(query.scale[g]));
      dot = pack_add(dot, pack_multiply(value, scale));
    }
    if (kBf16) dot = rounded(dot);
    const Pack term = pack_multiply(pack_splat(weights[h]), pack_relu(dot));
    total = pack_add(total, kBf16 ? rounded(term) : term);
  }
  return kBf16 ? rounded(total) : total;
}

template <bool kBf16>
static void index_scores_of(const IndexQuery* q, const float* weights, std::int64_t heads, std::int64_t width,
                            const IndexTile* tiles, std::int64_t num_tiles, float* scores) {
  for (std::int64_t t = 0; t < num_tiles; t += kPackRows) {
    const std::int64_t there = smaller(kPackRows, num_tiles - t);
    Vec rows[kPackRows];
    pack_split(index_tile_scores<kBf16>(q, weights, heads, width / 32, tiles + t, there == kPackRows ? 1 : 0),
               rows);
    for (std::int64_t i = 0; i < there; ++i) store(scores + (t + i) * kIndexTile, rows[i]);
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
