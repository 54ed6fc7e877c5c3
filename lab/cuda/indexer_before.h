// Index scores and top-k as they were: see indexer_before.cu.
#pragma once

#include "ops/cuda/indexer/indexer.h"

namespace pivot::cuda::before {

void launch_index_scores(const IndexArguments& a, int multiprocessors, cudaStream_t stream);
void launch_topk_rows(const TopkRows& a, std::int64_t cluster_bytes, cudaStream_t stream);
void launch_topk(const IndexArguments& a, std::int64_t cluster_bytes, cudaStream_t stream);

}  // namespace pivot::cuda::before
