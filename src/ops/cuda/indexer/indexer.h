// Index scores and exact top-k (specification 2.6 steps 4-5).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/views.h"

namespace pivot::cuda {

struct IndexArguments {
  StepBatch batch;
  std::int32_t heads = 0, dim = 0;
  const void* index_q = nullptr;         // BF16 [T][heads][dim]
  const float* index_weights = nullptr;  // [T][heads]
  PagedView keys;
  bool bf16_scores = false;
  std::int32_t topk = 0;
  float* scores = nullptr;  // scratch [T][score_stride]
  std::int64_t score_stride = 0;
  std::int32_t* selected = nullptr;  // [T][topk] ascending, -1 beyond count
  std::int32_t* count = nullptr;     // [T]
};
void launch_index_scores(const IndexArguments& a, int multiprocessors, cudaStream_t stream);
// `clusters`: long rows by a cluster of CTAs (placement/schedule.h topk_ctas), else by one.
void launch_topk(const IndexArguments& a, bool clusters, cudaStream_t stream);

// Top-k of rows of any length given by the caller, for tests: lengths[T] may be negative (treated as 0).
// `stride` is a multiple of 4.
void launch_topk_rows(const float* scores, std::int64_t stride, const std::int32_t* lengths,
                      std::int32_t rows, std::int32_t topk, bool clusters, std::int32_t* selected,
                      std::int32_t* count, cudaStream_t stream);

}  // namespace pivot::cuda
