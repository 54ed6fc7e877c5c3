// Attention of steps with many tokens (sm_90a): attention.h's result, summed in the tensor cores' own order.
#pragma once

#include "ops/cuda/attention/attention.h"

namespace pivot::cuda {

// As launch_attention without a window to store; `splits`, `head_groups` and the scratch are not looked at.
// REQUIRES: prefill_attention_takes() (placement/schedule.h).
void launch_prefill_attention(const AttentionArguments& a, int multiprocessors, cudaStream_t stream);

}  // namespace pivot::cuda
