// Launching a persistent product: as many clusters as the card holds at once.
#pragma once

#include <algorithm>
#include <atomic>

#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/gemm/product.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {

inline GemmRing gemm_ring(int tile_tokens) {
  return {gemm_stages(tile_tokens), tile_tokens * 2 * kGemmPanel};
}
// Units of rows that a cluster takes at once.
inline std::int32_t gemm_units(std::int32_t row_tiles) {
  return (row_tiles + kGemmCluster - 1) / kGemmCluster;
}

// Clusters of a kernel that are resident at once; asked of the driver once a kernel.
template <class Job>
int resident_clusters(void (*kernel)(Job, GemmRing), std::atomic<int>& known) {
  if (const int count = known.load(std::memory_order_relaxed); count > 0) return count;
  require_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGemmSharedBytes),
               "gemm");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kGemmCluster);
  config.blockDim = dim3(kGemmThreads);
  config.dynamicSmemBytes = kGemmSharedBytes;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kGemmCluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  require_cuda(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "gemm");
  count = std::max(count, 1);
  known.store(count, std::memory_order_relaxed);
  return count;
}

// `items`: at most so many.
template <class Job>
void launch_products(void (*kernel)(Job, GemmRing), const Job& job, int tile_tokens, std::int64_t items,
                     int clusters, cudaStream_t stream, const char* name) {
  const auto count = static_cast<unsigned>(std::min<std::int64_t>(clusters, items));
  const Launch how{
      dim3(count * kGemmCluster), dim3(kGemmThreads), kGemmSharedBytes, stream, true, name, kGemmCluster};
  launch(how, kernel, job, gemm_ring(tile_tokens));
}

template <class F>
void with_gemm_format(MatrixFormat format, const F& f) {
  switch (format) {
    case MatrixFormat::kBF16:
      return f.template operator()<MatrixFormat::kBF16>();
    case MatrixFormat::kFP8:
      return f.template operator()<MatrixFormat::kFP8>();
    case MatrixFormat::kFP4:
      return f.template operator()<MatrixFormat::kFP4>();
    case MatrixFormat::kNVFP4:
      return f.template operator()<MatrixFormat::kNVFP4>();
    case MatrixFormat::kF32:
      require(false, "matrices in BF16, FP8, FP4 or NVFP4");
  }
}

}  // namespace pivot::cuda
