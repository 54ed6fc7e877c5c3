// Finds the GPU and makes its back-end; synthetic models for benchmarks.
#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_backend.h"

namespace pivot {

using cuda::check_cuda;
using cuda::CudaBackend;

namespace {
CudaBackend& as_cuda(Backend& backend) {
  auto* cuda = dynamic_cast<CudaBackend*>(&backend);
  PIVOT_CHECK(cuda != nullptr, "{} is not the CUDA back-end", backend.name());
  return *cuda;
}
}  // namespace

Result<std::shared_ptr<const ModelWeights>> synthesize_cuda_weights(Backend& backend,
                                                                    const ModelConfig& config,
                                                                    std::int64_t resident_experts) {
  return as_cuda(backend).synthesize(config, resident_experts);
}

void synthesize_cuda_cache(Backend& backend, std::span<const LayerCacheView> layers, std::int64_t slots,
                           std::int64_t ratio4_pages, std::int64_t ratio128_pages) {
  CudaBackend& cuda = as_cuda(backend);
  std::uint32_t seed = 1;
  for (const LayerCacheView& layer : layers) {
    cuda.synthesize_rows(layer.window, slots, seed += 1000);
    if (layer.compressed.base == nullptr) continue;
    const bool indexed = layer.index_keys.base != nullptr;
    const std::int64_t pages = indexed ? ratio4_pages : ratio128_pages;
    cuda.synthesize_rows(layer.compressed, pages, seed += 1000);
    cuda.synthesize_state(layer.compressor, slots, seed += 1000);
    if (!indexed) continue;
    cuda.synthesize_rows(layer.index_keys, pages, seed += 1000);
    cuda.synthesize_state(layer.index_compressor, slots, seed += 1000);
  }
}

CudaSwitches cuda_switches(Backend& backend) { return as_cuda(backend).switches(); }
void set_cuda_switches(Backend& backend, const CudaSwitches& switches) {
  as_cuda(backend).set_switches(switches);
}

bool is_cuda_backend(Backend& backend) { return dynamic_cast<CudaBackend*>(&backend) != nullptr; }

CudaProductPaths cuda_product_paths(Backend& backend) { return as_cuda(backend).product_paths(); }

Result<> cuda_draw(Backend& backend, const float* logits, std::int32_t vocab,
                   std::span<const std::int32_t> rows, std::span<const cuda::DrawParams> params,
                   std::span<cuda::DrawResult> results) {
  return as_cuda(backend).draw(logits, vocab, rows, params, results);
}

Result<std::vector<CudaKernelTime>> cuda_kernel_times(Backend& backend) {
  return as_cuda(backend).kernel_times();
}

double cuda_read_bandwidth(Backend& backend, const ModelWeights& weights) {
  return as_cuda(backend).read_bandwidth(weights.config);
}

Result<std::shared_ptr<Backend>> make_cuda_backend(int device) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess)
    return fail(
        ErrorCode::kUnavailable,
        "cuda:{} was asked for, and CUDA finds no usable GPU: {} ({}); load an NVIDIA driver of version "
        "580 or newer, or run on the CPU (--device cpu)",
        device, cudaGetErrorName(status), cudaGetErrorString(status));
  if (device < 0 || device >= count)
    return fail(ErrorCode::kNotFound, "cuda:{} was asked for; this machine has {} GPU{}", device, count,
                count == 1 ? "" : "s");
  cudaDeviceProp properties{};
  PIVOT_TRY_VOID(check_cuda(cudaGetDeviceProperties(&properties, device), "reading the GPU's properties"));
  if (!(properties.major == 9 && properties.minor == 0) && !(properties.major == 12 && properties.minor == 0))
    return fail(ErrorCode::kUnsupported,
                "{} has compute capability {}.{}; this build has code for 9.0 (sm_90a) and 12.0 (sm_120a)",
                properties.name, properties.major, properties.minor);
  auto backend = std::make_shared<CudaBackend>(device, properties);
  PIVOT_TRY_VOID(backend->open());
  return std::shared_ptr<Backend>(std::move(backend));
}

}  // namespace pivot
