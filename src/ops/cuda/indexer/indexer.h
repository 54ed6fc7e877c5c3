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
// The same for steps of many tokens (sm_90a): keys are decoded once for several queries.
// REQUIRES: prefill_scores_take() (placement/schedule.h).
void launch_prefill_index_scores(const IndexArguments& a, int multiprocessors, cudaStream_t stream);
// `clusters`: whether long rows may be a cluster's (placement/schedule.h topk_ctas); else one CTA takes a
// row.
void launch_topk(const IndexArguments& a, bool clusters, cudaStream_t stream);

// Top-k of rows of floats outside the step: draws, tests, benchmarks.
struct TopkRows {
  const float* scores = nullptr;
  std::int64_t stride = 0;
  std::int32_t rows = 0;
  const std::int32_t* row = nullptr;      // [rows] which row of `scores` each is; null: in order
  const std::int32_t* lengths = nullptr;  // [rows], a negative one is 0; null: `length` for all
  std::int32_t length = 0;
  std::int32_t topk = 0;
  std::int32_t* selected = nullptr;  // [rows][topk] ascending, -1 beyond count
  std::int32_t* count = nullptr;     // [rows]
};
void launch_topk_rows(const TopkRows& a, bool clusters, cudaStream_t stream);

}  // namespace pivot::cuda
