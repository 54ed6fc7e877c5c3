// Bytes: one row read, `streams` rows written a token. One CTA per (token, stream), 16 bytes a thread.
#include "ops/cuda/embed/embed.h"

#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

__global__ void embed_kernel(const uint4* embed, const std::int32_t* token_ids, int streams,
                             std::int64_t pieces, uint4* h) {
  wait_for_predecessor();
  release_successor();
  const uint4* row = embed + token_ids[blockIdx.x] * pieces;
  uint4* out = h + (static_cast<std::int64_t>(blockIdx.x) * streams + blockIdx.y) * pieces;
  for (std::int64_t i = threadIdx.x; i < pieces; i += blockDim.x) out[i] = row[i];
}

}  // namespace

void launch_embed(const void* embed, const std::int32_t* token_ids, std::int64_t tokens, int streams,
                  std::int64_t width, void* h, cudaStream_t stream) {
  require(width % 8 == 0, "hidden_size a multiple of 8");
  launch({dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(streams)), dim3(128), 0, stream, true,
          "embed"},
         embed_kernel, static_cast<const uint4*>(embed), token_ids, streams, width / 8,
         static_cast<uint4*>(h));
}

}  // namespace pivot::cuda
