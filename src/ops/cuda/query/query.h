// What follows wq_b and the indexer's wq_b (specification 2.4 steps 3-4, 2.6 step 1), in place.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/latent/latent.h"
#include "ops/views.h"

namespace pivot::cuda {

struct QueryArguments {
  StepBatch batch;
  float eps = 0.0f;
  const float* frequencies = nullptr;
  std::int32_t rope = 0, heads = 0, head_dim = 0, index_heads = 0, index_dim = 0;
  void* q = nullptr;        // BF16 [T][heads][head_dim]
  void* index_q = nullptr;  // BF16 [T][index_heads][index_dim], or null
  IndexRounding index_rounding = IndexRounding::kFp4;
};
// `together`: attention and index heads in one launch.
void launch_query(const QueryArguments& a, bool together, cudaStream_t stream);

}  // namespace pivot::cuda
