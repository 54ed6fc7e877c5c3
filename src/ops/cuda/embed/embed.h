// Embedding rows, one copy per residual stream (specification 2.1).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pivot::cuda {

// h[t][s][:] = embed[token_ids[t]][:], BF16. `width` is a multiple of 8.
void launch_embed(const void* embed, const std::int32_t* token_ids, std::int64_t tokens, int streams,
                  std::int64_t width, void* h, cudaStream_t stream);

}  // namespace pivot::cuda
