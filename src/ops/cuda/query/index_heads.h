// The index heads of launch_query() by themselves, for steps with many tokens (specification 2.6 step 1).
#pragma once

#include "ops/cuda/query/query.h"

namespace pivot::cuda {

// index_dim 128 or 64 of which 64 rotate, heads in multiples of 16.
bool index_heads_takes(const QueryArguments& a);
// In place in `index_q`, the bits of launch_query(). REQUIRES: index_heads_takes().
void launch_index_heads(const QueryArguments& a, cudaStream_t stream);

}  // namespace pivot::cuda
