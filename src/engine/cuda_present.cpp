// make_backend's CUDA half in a build that has the back-end.
#include <cuda_runtime.h>

#include "engine/cuda_devices.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/placement/placed_size.h"

namespace pivot {

bool has_cuda_backend() { return true; }

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<std::shared_ptr<Backend>> make_cuda_device(int ordinal) { return make_cuda_backend(ordinal); }

Result<SyntheticModel> synthesize_model(Backend& backend, const ModelConfig& config,
                                        std::int64_t resident_experts) {
  SyntheticModel model;
  PIVOT_TRY(model.weights, synthesize_cuda_weights(backend, config, resident_experts));
  model.bytes = cuda::placed_bytes(*model.weights, resident_experts);
  model.read_bytes_per_second = cuda_read_bandwidth(backend, *model.weights);
  return model;
}

Result<> synthesize_cache(Backend& backend, std::span<const LayerCacheView> layers, std::int64_t slots,
                          std::int64_t ratio4_pages, std::int64_t ratio128_pages) {
  synthesize_cuda_cache(backend, layers, slots, ratio4_pages, ratio128_pages);
  return backend.synchronize();
}

namespace {
struct NamedSwitch {
  std::string_view name, effect;
  bool CudaSwitches::*member;
};
constexpr NamedSwitch kSwitches[] = {
    {"graphs", "a step is replayed as one graph", &CudaSwitches::graphs},
    {"overlap", "a kernel starts, and fetches its weights, before its predecessor has ended",
     &CudaSwitches::overlap},
    {"fused", "small kernels joined; no work list for a step of one token", &CudaSwitches::fused},
    {"cluster_topk", "the top-k of a long row is chosen by eight CTAs together", &CudaSwitches::cluster_topk},
    {"wgmma", "long steps through the tensor cores' own kernels, whose sums have another order",
     &CudaSwitches::wgmma},
};
}  // namespace

std::vector<BackendSwitch> backend_switches(Backend& backend) {
  std::vector<BackendSwitch> switches;
  if (backend.name() != "cuda") return switches;
  const CudaSwitches values = cuda_switches(backend);
  for (const NamedSwitch& s : kSwitches) switches.push_back({s.name, s.effect, values.*s.member});
  return switches;
}

Result<> set_backend_switch(Backend& backend, std::string_view name, bool on) {
  if (backend.name() == "cuda") {
    CudaSwitches values = cuda_switches(backend);
    for (const NamedSwitch& s : kSwitches)
      if (s.name == name) {
        values.*s.member = on;
        set_cuda_switches(backend, values);
        return {};
      }
  }
  return fail(ErrorCode::kInvalidArgument, "the {} back-end has no switch {}", backend.name(), name);
}

}  // namespace pivot
