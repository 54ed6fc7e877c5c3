// Launch decisions: pure functions of shapes and of the number of multiprocessors, tested without a GPU.
#pragma once

#include <cstdint>

#include "ops/cuda/placement/tile_format.h"

namespace pivot::cuda {

// Warps of a CTA for a stripe of `tiles_k` column tiles of 128. Part of the summation order, so a function of
// shapes and formats alone: a token's result does not depend on the rest of the step.
int stripe_warps(std::int64_t tiles_k, bool any_bf16);
// The same for a stripe of an expert: there are many of them, so CTAs stay small.
inline constexpr int kExpertWarps = 4;
// Token tiles of 8 that one CTA takes: 1, 2 or 4; eight would not fit a thread's registers.
int token_tiles(std::int64_t tokens);

// Whether the routed experts of a step have tokens enough for tiles of 128: 16 each on average.
bool experts_fill_tiles(std::int64_t pairs, std::int64_t experts);

inline constexpr int kAttentionKeys = 64;   // rows of a key tile
inline constexpr int kAttentionHeads = 16;  // heads of a CTA
inline constexpr int kMaxAttentionSplits = 64;
// CTAs that share the key tiles of one query: as many as keep three CTAs on every multiprocessor, at most one
// a tile. `max_keys` is the largest visible set that any query can have, so the answer does not depend on
// live lengths.
std::int32_t attention_splits(std::int64_t tokens, std::int32_t heads, std::int64_t max_keys,
                              int multiprocessors);

// CTAs that choose the top-k of one row of at most `entries`: 1, or a cluster where rows are long enough to
// be worth its barriers.
inline constexpr int kTopkClusterCtas = 8;
inline constexpr int kTopkOneCta = 8192;  // entries
int topk_ctas(std::int64_t entries, bool clusters);

// The slot of token tile `tile`, given the tiles before each slot (tiles[slots]: of all): the last one that
// starts at or before it, since slots without tokens share their successor's start. REQUIRES: tile <
// tiles[slots], slots <= 512.
constexpr int slot_of_tile(const std::int32_t* tiles, int slots, int tile) {
  int slot = 0;
  for (int step = 256; step > 0; step /= 2)
    if (slot + step < slots && tiles[slot + step] <= tile) slot += step;
  return slot;
}

// Groups of kAttentionHeads heads that one CTA takes: four once the queries alone fill the card, if the
// shared memory that a CTA may have holds their queries beside a tile of keys (227 KB on sm_90a: yes; 99 KB
// on sm_120a: no).
constexpr std::int64_t attention_shared_bytes(std::int32_t head_dim, int groups) {
  const std::int64_t row = 2 * (head_dim + 8);  // BF16; the pad spreads rows over the banks
  return (groups * kAttentionHeads + kAttentionKeys) * row +
         groups * kAttentionHeads * 2 * (kAttentionKeys + 8) + groups * 2 * 4 * kAttentionHeads * 4;
}
std::int32_t attention_head_groups(std::int64_t tokens, std::int32_t heads, std::int32_t head_dim,
                                   int multiprocessors, std::int64_t shared_bytes);

// Long steps on sm_90a (attention/prefill.cu): 64 heads of 448 + 64 dims, the shapes that fill its
// instructions and its shared memory; others take the kernel of short steps.
inline constexpr std::int32_t kPrefillHeads = 64, kPrefillDims = 512, kPrefillRope = 64;
inline constexpr std::int64_t kPrefillAttentionBytes = 212 * 1024;  // of shared memory
bool prefill_attention_takes(std::int32_t heads, std::int32_t head_dim, std::int32_t rope,
                             std::int64_t shared_bytes);

// Index scores of long steps on sm_90a (indexer/prefill_scores.cu): 64 heads of 128 dims, eight queries a
// CTA.
inline constexpr std::int32_t kPrefillIndexHeads = 64, kPrefillIndexDims = 128, kPrefillIndexQueries = 8;
inline constexpr std::int64_t kPrefillIndexBytes = 132 * 1024;  // of shared memory
bool prefill_scores_take(std::int32_t heads, std::int32_t dim, std::int64_t shared_bytes);

// Tokens of one slice of index scoring, so that the fp32 scores stay within 1 GiB.
std::int64_t score_slice_tokens(std::int64_t tokens, std::int64_t score_stride);

}  // namespace pivot::cuda
