// Sparse MLA attention over the visible set (specification 2.4): raw window rows, then compressed entries.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/latent/latent.h"
#include "ops/cuda/placement/schedule.h"
#include "ops/views.h"

namespace pivot::cuda {

struct AttentionArguments {
  StepBatch batch;
  std::int32_t heads = 0, head_dim = 0, rope = 0, window = 0, ratio = 0;
  float scale = 0.0f;                  // head_dim^-0.5
  const float* sink = nullptr;         // [heads]
  const float* frequencies = nullptr;  // [rope / 2]
  const void* q = nullptr;             // BF16 [T][heads][head_dim]
  const void* kv = nullptr;            // BF16 [T][head_dim]
  RingView ring;
  PagedView compressed;
  const std::int32_t* selected = nullptr;  // [T][topk], or null: every visible entry
  const std::int32_t* selected_count = nullptr;
  std::int32_t topk = 0;
  std::int32_t head_groups = 1;  // of 16 heads in a CTA: 1 or 4 (placement/schedule.h)
  std::int32_t splits = 1;       // CTAs that share the keys of one query
  float* partial_o = nullptr;    // scratch [T][splits][heads][head_dim]
  float* partial_ml = nullptr;   // scratch [T][splits][heads][2]: maximum, denominator
  void* o = nullptr;             // BF16 [T][heads][head_dim], after the inverse rotation
};

// `window`: rows to store in the ring after the last read of it, in the same launch as the merge; null: none.
void launch_attention(const AttentionArguments& a, const WindowArguments* window, cudaStream_t stream);

}  // namespace pivot::cuda
