// Launch decisions: pure functions of shapes and of the number of multiprocessors, tested without a GPU.
#pragma once

#include <cstdint>

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

// CTAs that choose the top-k of one row of at most `entries`: 1, or a cluster whose CTAs keep the keys of the
// whole row in their shared memory.
inline constexpr int kTopkClusterCtas = 8;
inline constexpr int kTopkClusterEntries = 262144;
int topk_ctas(std::int64_t entries);

// Groups of kAttentionHeads heads that one CTA takes: four once the queries alone fill the card.
std::int32_t attention_head_groups(std::int64_t tokens, std::int32_t heads, int multiprocessors);

// Tokens of one slice of index scoring, so that the fp32 scores stay within 1 GiB.
std::int64_t score_slice_tokens(std::int64_t tokens, std::int64_t score_stride);

}  // namespace pivot::cuda
