// Attention of steps with many tokens (sm_90a): attention.h's result, summed in the tensor cores' own order.
#pragma once

#include "ops/cuda/attention/attention.h"

namespace pivot::cuda {

// Who computes the scores of a tile: both warpgroups all of them, without waiting for each other, or each
// those of half of the keys, exchanging maxima and P. Results differ in the order of sums.
enum class ScoreSharing : std::uint8_t { kRepeated, kSplit };

// As launch_attention without a window to store; `splits`, `head_groups` and the scratch are not looked at.
// `gathering_warpgroups`: 1 or 2, a choice of speed alone.
// REQUIRES: prefill_attention_takes() (placement/schedule.h).
void launch_prefill_attention(const AttentionArguments& a, int multiprocessors, cudaStream_t stream,
                              ScoreSharing sharing = ScoreSharing::kRepeated, int gathering_warpgroups = 2);

}  // namespace pivot::cuda
