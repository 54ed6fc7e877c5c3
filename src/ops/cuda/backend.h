// The CUDA back-end: src/ops/ops.h on one NVIDIA GPU (docs/cuda.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/cuda/sampling/decision.h"
#include "ops/ops.h"

namespace pivot {

// Errors: kUnavailable without a driver or device, kNotFound for a number the machine does not have,
// kUnsupported for a compute capability this build has no code for.
Result<std::shared_ptr<Backend>> make_cuda_backend(int device);

// Choices that change speed and no value: each path keeps the rounding points and the order of every sum. All
// but the last are on by default; the ladder of `pivot bench` turns them on one by one.
struct CudaSwitches {
  bool graphs = true;        // replay a step as one graph instead of launching its kernels
  bool overlap = true;       // a kernel starts before its predecessor has ended
  bool fused = true;         // small kernels joined, no work list for a step of one token
  bool cluster_topk = true;  // long rows chosen by a cluster of CTAs
  // Steps of many tokens through the tensor cores' own kernels (sm_90a). The one switch that changes the
  // order of a sum: a token's last bits then depend on whether its step is long.
  bool wgmma = true;
  // FP8 and FP4 products with FP8 activations, and NVFP4 ones with NVFP4 activations, through the
  // block-scaled tensor cores (sm_120a). One order of every sum for all steps, but another one than the
  // decode kernels'.
  bool block_scaled = true;
  // Tokens drawn on the device where a request allows it (ops/cuda/sampling). Off until it has been measured.
  bool device_sampling = false;
};
// REQUIRES: a back-end of make_cuda_backend.
CudaSwitches cuda_switches(Backend& backend);
void set_cuda_switches(Backend& backend, const CudaSwitches& switches);

bool is_cuda_backend(Backend& backend);
// Whether the switches `wgmma` and `block_scaled` mean anything on this device.
struct CudaProductPaths {
  bool wgmma = false, block_scaled = false;
};
CudaProductPaths cuda_product_paths(Backend& backend);
// Draws a token from each of `rows` of logits [..][vocab] in device memory, as engine/sampler.h draws it (how
// exactly: ops/cuda/sampling/decision.h), and waits for the results: the read-back of a step. REQUIRES: a
// back-end of make_cuda_backend; as many params and results as rows; vocab a multiple of 4 and at most
// 262,144. Errors: kInternal when the device failed.
Result<> cuda_draw(Backend& backend, const float* logits, std::int32_t vocab,
                   std::span<const std::int32_t> rows, std::span<const cuda::DrawParams> params,
                   std::span<cuda::DrawResult> results);

// For benchmarks: a model of full shapes without a checkpoint, and caches without a prefill.
//
// Weights of the shapes in `config` filled with random codes on the device. The first `resident_experts`
// experts of a layer have memory of their own; the rest are aliases of them. REQUIRES: a back-end of
// make_cuda_backend. Errors: kOutOfMemory with what is missing.
Result<std::shared_ptr<const ModelWeights>> synthesize_cuda_weights(Backend& backend,
                                                                    const ModelConfig& config,
                                                                    std::int64_t resident_experts);
// Random rows and states in every slot and page of the views.
void synthesize_cuda_cache(Backend& backend, std::span<const LayerCacheView> layers, std::int64_t slots,
                           std::int64_t ratio4_pages, std::int64_t ratio128_pages);
// Kernels that no operator runs alone, on random data: exact top-k of 32K to 256K entries, index scores at
// 128K and 1M tokens by key format, draws from 129,280 logits. `bytes`: what one call has to read. Errors:
// kOutOfMemory.
struct CudaKernelTime {
  std::string name;
  double seconds = 0, bytes = 0;
};
Result<std::vector<CudaKernelTime>> cuda_kernel_times(Backend& backend);
// Bytes per second that a kernel which only reads reaches on placed weights.
double cuda_read_bandwidth(Backend& backend, const ModelWeights& weights);

}  // namespace pivot
