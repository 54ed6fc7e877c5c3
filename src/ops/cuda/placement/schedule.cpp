#include "ops/cuda/placement/schedule.h"

#include <algorithm>

namespace pivot::cuda {

int stripe_warps(std::int64_t tiles_k, bool any_bf16) {
  // At least four tiles a warp where K has them: a warp then keeps loads in flight while it multiplies, and
  // small CTAs leave room for several on a multiprocessor, which hide each other's start.
  int warps = 4;  // the epilogue needs 128 threads
  const std::int64_t tiles_each =
      any_bf16 ? 2 : 4;  // a BF16 tile is twice as large, and its loop holds no second one
  while (warps < 16 && 2 * warps * tiles_each <= tiles_k) warps *= 2;
  return warps;
}

int token_tiles(std::int64_t tokens) { return tokens <= 8 ? 1 : tokens <= 16 ? 2 : 4; }

std::int32_t attention_splits(std::int64_t tokens, std::int32_t heads, std::int64_t max_keys,
                              int multiprocessors) {
  const std::int64_t tiles = std::max<std::int64_t>(1, (max_keys + kAttentionKeys - 1) / kAttentionKeys);
  const std::int64_t groups = tokens * ((heads + kAttentionHeads - 1) / kAttentionHeads);
  const std::int64_t room = std::max<std::int64_t>(1, 3 * multiprocessors / groups);
  return static_cast<std::int32_t>(std::min<std::int64_t>({tiles, room, kMaxAttentionSplits}));
}

bool experts_fill_tiles(std::int64_t pairs, std::int64_t experts) { return pairs >= 16 * experts; }

std::int32_t attention_head_groups(std::int64_t tokens, std::int32_t heads, std::int32_t head_dim,
                                   int multiprocessors, std::int64_t shared_bytes) {
  const bool fill = heads % (4 * kAttentionHeads) == 0 && tokens >= 2 * multiprocessors;
  return fill && attention_shared_bytes(head_dim, 4) <= shared_bytes ? 4 : 1;
}

bool prefill_attention_takes(std::int32_t heads, std::int32_t head_dim, std::int32_t rope,
                             std::int64_t shared_bytes) {
  return heads == kPrefillHeads && head_dim == kPrefillDims && rope == kPrefillRope &&
         kPrefillAttentionBytes <= shared_bytes;
}

bool prefill_scores_take(std::int32_t heads, std::int32_t dim, std::int64_t shared_bytes) {
  return heads == kPrefillIndexHeads && dim == kPrefillIndexDims && kPrefillIndexBytes <= shared_bytes;
}

int topk_ctas(std::int64_t entries, bool clusters) {
  return clusters && entries > kTopkOneCta ? kTopkClusterCtas : 1;
}

std::int64_t score_slice_tokens(std::int64_t tokens, std::int64_t score_stride) {
  return std::clamp<std::int64_t>((std::int64_t{1} << 28) / std::max<std::int64_t>(score_stride, 1), 1,
                                  tokens);
}

}  // namespace pivot::cuda
