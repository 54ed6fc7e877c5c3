// Index scores and the selection (specification 2.6 steps 4-5).
//
// Packed FP4 keys are scored in integers: both sides are E2M1, so a dot over a scale group is exact. Keys are
// decoded in tiles of 8 and reused by a block of queries; other layouts are widened to fp32 rows. One query
// splits its keys over the threads, several queries are split themselves.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/cpu/reference/cache_rows.h"
#include "ops/cpu/simd/context.h"
#include "ops/cpu/simd/topk.h"

namespace pivot::simd {
namespace {

using reference::RowPointers;

constexpr std::int64_t kBlockKeys = 128;   // decoded at a time: tiles that fit the L1 cache
constexpr std::int64_t kBlockTokens = 16;  // queries that share them
constexpr std::int64_t kSplitKeys = 1024;  // a single query below this stays on one thread

// Scores of one sequence's queries against its keys.
class Scorer {
 public:
  Scorer(const Context& context, const LayerContext& layer, const Knobs& knobs, const IndexSelectParams& p)
      : kernels_(context.kernels),
        p_(p),
        heads_(layer.config->index_n_heads),
        width_(layer.config->index_head_dim),
        bf16_(knobs.index_score == ScorePrecision::kBf16),
        integer_(p.index_keys.layout.format == RowFormat::kIndexFp4 && width_ <= 256 && width_ % 32 == 0) {}

  // scores[i*stride + j - key_begin] of tokens [token, +tokens) and keys [key_begin, key_end), whatever is
  // visible.
  void run(const SequenceSpan& span, std::int64_t token, std::int64_t tokens, std::int64_t key_begin,
           std::int64_t key_end, float* scores, std::int64_t stride) const {
    std::vector<IndexQuery> queries(static_cast<std::size_t>(integer_ ? tokens * heads_ : 0));
    std::vector<char> exact(static_cast<std::size_t>(tokens), integer_ ? 1 : 0);
    bool any_exact = false, all_exact = true;
    for (std::int64_t i = 0; i < tokens; ++i) {
      for (std::int64_t h = 0; h < heads_ && exact[static_cast<std::size_t>(i)] != 0; ++h)
        // A query off the grid (it did not come from query()) takes the fp32 path.
        if (!kernels_.index_query(query(token + i, h), width_,
                                  &queries[static_cast<std::size_t>(i * heads_ + h)]))
          exact[static_cast<std::size_t>(i)] = 0;
      any_exact = any_exact || exact[static_cast<std::size_t>(i)] != 0;
      all_exact = all_exact && exact[static_cast<std::size_t>(i)] != 0;
    }
    for (std::int64_t key = key_begin; key < key_end; key += kBlockKeys) {
      const std::int64_t keys = std::min(kBlockKeys, key_end - key);
      float* out = scores + (key - key_begin);
      if (any_exact) score_tiles(span, token, tokens, key, keys, queries, exact, out, stride);
      if (!all_exact) score_rows(span, token, tokens, key, keys, exact, out, stride);
    }
  }

 private:
  const float* query(std::int64_t token, std::int64_t head) const {
    return floats(p_.index_q) + (token * heads_ + head) * width_;
  }
  const float* head_weights(std::int64_t token) const { return p_.index_weights + token * heads_; }

  void score_tiles(const SequenceSpan& span, std::int64_t token, std::int64_t tokens, std::int64_t key,
                   std::int64_t keys, const std::vector<IndexQuery>& queries, const std::vector<char>& exact,
                   float* scores, std::int64_t stride) const {
    static thread_local std::vector<IndexTile> tiles(kBlockKeys / kIndexTile);
    const std::int64_t num_tiles = (keys + kIndexTile - 1) / kIndexTile;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      const std::byte* data[kIndexTile] = {};
      const std::byte* scales[kIndexTile] = {};
      for (std::int64_t i = 0; i < std::min(kIndexTile, keys - tile * kIndexTile); ++i) {
        const RowPointers row = reference::paged_row(p_.index_keys, span.table, key + tile * kIndexTile + i);
        data[i] = row.data;
        scales[i] = row.scales;
      }
      kernels_.index_tile(data, scales, width_, &tiles[static_cast<std::size_t>(tile)]);
    }
    float buffer[kBlockKeys];
    for (std::int64_t i = 0; i < tokens; ++i) {
      if (exact[static_cast<std::size_t>(i)] == 0) continue;
      kernels_.index_scores(queries.data() + i * heads_, head_weights(token + i), heads_, width_,
                            tiles.data(), num_tiles, bf16_, buffer);
      std::copy_n(buffer, keys, scores + i * stride);
    }
  }

  void score_rows(const SequenceSpan& span, std::int64_t token, std::int64_t tokens, std::int64_t key,
                  std::int64_t keys, const std::vector<char>& exact, float* scores,
                  std::int64_t stride) const {
    std::vector<float> rows(static_cast<std::size_t>(keys * width_)),
        dots(static_cast<std::size_t>(keys * heads_));
    std::vector<const float*> pointers;
    for (std::int64_t j = 0; j < keys; ++j) {
      const RowPointers row = reference::paged_row(p_.index_keys, span.table, key + j);
      kernels_.unpack_row(p_.index_keys.layout, row.data, row.scales, rows.data() + j * width_);
      pointers.push_back(rows.data() + j * width_);
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      if (exact[static_cast<std::size_t>(i)] != 0) continue;
      kernels_.row_scores(query(token + i, 0), heads_, width_, pointers.data(), keys, 1.0f, dots.data(),
                          keys);
      kernels_.head_sum(dots.data(), keys, head_weights(token + i), heads_, keys, bf16_, scores + i * stride);
    }
  }

  const Kernels& kernels_;
  const IndexSelectParams& p_;
  std::int64_t heads_, width_;
  bool bf16_, integer_;
};

}  // namespace

void index_select(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                  const IndexSelectParams& p) {
  PIVOT_CHECK(layer.ratio == 4 && p.topk > 0, "ratio {}, topk {}", layer.ratio, p.topk);
  const Scorer scorer(context, layer, knobs, p);
  const auto visible_at = [&](const SequenceSpan& span, std::int64_t i) {
    return static_cast<std::int32_t>((span.start_position + i + 1) / layer.ratio);
  };
  const auto choose = [&](std::int64_t token, const float* scores, std::int32_t visible,
                          TopkScratch& scratch) {
    p.count[token] = select_topk(scores, visible, p.topk, p.selected + token * p.topk, scratch);
  };
  // Tokens [begin, end) of a span. Those of all spans share one parallel region.
  struct Block {
    const SequenceSpan* span;
    std::int64_t begin, end;
  };
  std::vector<Block> blocks;
  for (std::int32_t s = 0; s < batch.num_spans; ++s) {
    const SequenceSpan& span = batch.spans[s];
    const std::int64_t entries = visible_at(span, span.num_tokens - 1);
    if (batch.num_tokens < context.pool.size() && entries > std::max<std::int64_t>(p.topk, kSplitKeys)) {
      auto* scores = context.scratch.take<float>(span.num_tokens * entries);
      context.pool.for_ranges(entries, kIndexTile, [&](std::int64_t begin, std::int64_t end) {
        scorer.run(span, span.first_token, span.num_tokens, begin, end, scores + begin, entries);
      });
      TopkScratch scratch;
      for (std::int64_t i = 0; i < span.num_tokens; ++i)
        choose(span.first_token + i, scores + i * entries, visible_at(span, i), scratch);
      continue;
    }
    for (std::int64_t begin = 0; begin < span.num_tokens; begin += kBlockTokens)
      blocks.push_back({&span, begin, std::min<std::int64_t>(begin + kBlockTokens, span.num_tokens)});
  }
  context.for_blocks(static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t first, std::int64_t last) {
    static thread_local TopkScratch scratch;
    static thread_local std::vector<float> scores;
    for (std::int64_t b = first; b < last; ++b) {
      const auto [span, begin, end] = blocks[static_cast<std::size_t>(b)];
      const std::int64_t keys = visible_at(*span, end - 1);
      const bool needed = keys > p.topk;  // else every query keeps all it sees, without scoring
      if (needed) {
        scores.resize(static_cast<std::size_t>((end - begin) * keys));
        scorer.run(*span, span->first_token + begin, end - begin, 0, keys, scores.data(), keys);
      }
      for (std::int64_t i = begin; i < end; ++i)
        choose(span->first_token + i, needed ? scores.data() + (i - begin) * keys : nullptr,
               visible_at(*span, i), scratch);
    }
  });
}

}  // namespace pivot::simd
