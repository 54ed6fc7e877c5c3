#include "mma_probe.h"

#include "ops/cuda/block_scaled/mma.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

template <BlockKind K, int STEP>
__global__ void probe_kernel(const LaneOperands* lanes, float* out) {
  if constexpr (kBlockScaledMma) {
    const LaneOperands& mine = lanes[threadIdx.x];
    float d[4] = {};
    block_scaled_mma<K, STEP>(d, mine.a, mine.b, mine.scale_a, mine.scale_b);
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
  }
}

template <BlockKind K>
void launch_step(int step, const LaneOperands* lanes, float* out) {
  switch (step) {
    case 0:
      probe_kernel<K, 0><<<1, 32>>>(lanes, out);
      return;
    case 1:
      probe_kernel<K, 1><<<1, 32>>>(lanes, out);
      return;
    case 2:
      if constexpr (block_steps(K) > 2) probe_kernel<K, 2><<<1, 32>>>(lanes, out);
      return;
    default:
      if constexpr (block_steps(K) > 3) probe_kernel<K, 3><<<1, 32>>>(lanes, out);
  }
}

}  // namespace

void run_mma_probe(BlockKind kind, int step, const LaneOperands (&lanes)[32], float (&d)[32][4]) {
  LaneOperands* device_lanes = nullptr;
  float* device_d = nullptr;
  require_cuda(cudaMalloc(&device_lanes, sizeof(lanes)), "allocating the probe's operands");
  require_cuda(cudaMalloc(&device_d, sizeof(d)), "allocating the probe's sums");
  require_cuda(cudaMemcpy(device_lanes, lanes, sizeof(lanes), cudaMemcpyHostToDevice),
               "the probe's operands");
  switch (kind) {
    case BlockKind::kFp8:
      launch_step<BlockKind::kFp8>(step, device_lanes, device_d);
      break;
    case BlockKind::kFp4:
      launch_step<BlockKind::kFp4>(step, device_lanes, device_d);
      break;
    case BlockKind::kNvfp4:
      launch_step<BlockKind::kNvfp4>(step, device_lanes, device_d);
      break;
  }
  require_cuda(cudaGetLastError(), "the probe");
  require_cuda(cudaMemcpy(d, device_d, sizeof(d), cudaMemcpyDeviceToHost), "the probe's sums");
  require_cuda(cudaFree(device_lanes), "the probe");
  require_cuda(cudaFree(device_d), "the probe");
}

}  // namespace pivot::cuda
