// make_backend's CUDA half in a build that has the back-end.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>

#include "engine/cuda_devices.h"
#include "engine/device_draw.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/placement/placed_size.h"

namespace pivot {

bool has_cuda_backend() { return true; }

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

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

Result<std::vector<KernelTime>> kernel_times(Backend& backend) {
  std::vector<KernelTime> times;
  if (!is_cuda_backend(backend)) return times;
  PIVOT_TRY(const std::vector<CudaKernelTime> measured, cuda_kernel_times(backend));
  for (const CudaKernelTime& t : measured) times.push_back({t.name, t.seconds, t.bytes});
  return times;
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
    {"block_scaled", "FP8 and FP4 products through the block-scaled tensor cores (sm_120a)",
     &CudaSwitches::block_scaled},
};
}  // namespace

std::vector<BackendSwitch> backend_switches(Backend& backend) {
  std::vector<BackendSwitch> switches;
  if (backend.name() != "cuda") return switches;
  const CudaSwitches values = cuda_switches(backend);
  const CudaProductPaths paths = cuda_product_paths(backend);
  for (const NamedSwitch& s : kSwitches) {
    if (s.member == &CudaSwitches::wgmma && !paths.wgmma) continue;
    if (s.member == &CudaSwitches::block_scaled && !paths.block_scaled) continue;
    switches.push_back({s.name, s.effect, values.*s.member});
  }
  return switches;
}

Result<> set_backend_switch(Backend& backend, std::string_view name, bool on) {
  if (backend.name() == "cuda") {
    CudaSwitches values = cuda_switches(backend);
    const auto set = [&](bool CudaSwitches::*member) -> Result<> {
      values.*member = on;
      set_cuda_switches(backend, values);
      return {};
    };
    for (const NamedSwitch& s : kSwitches)
      if (s.name == name) return set(s.member);
    // No rungs of the ladder: outside the step, and not measured yet.
    if (name == "device_sampling") return set(&CudaSwitches::device_sampling);
  }
  return fail(ErrorCode::kInvalidArgument, "the {} back-end has no switch {}", backend.name(), name);
}

namespace {
// For whoever bisects a speed patch in production: switches by name, separated by commas.
Result<> set_switches(Backend& backend, const char* variable, bool on) {
  const char* value = std::getenv(variable);
  for (std::string_view names = value == nullptr ? "" : value; !names.empty();) {
    const std::size_t end = std::min(names.find(','), names.size());
    const std::string_view name = names.substr(0, end);
    names.remove_prefix(std::min(end + 1, names.size()));
    if (name.empty()) continue;
    if (Result<> done = set_backend_switch(backend, name, on); !done)
      return fail(ErrorCode::kInvalidArgument, "{}: {}", variable, done.error().message);
  }
  return {};
}
}  // namespace

Result<std::shared_ptr<Backend>> make_cuda_device(int ordinal) {
  PIVOT_TRY(std::shared_ptr<Backend> backend, make_cuda_backend(ordinal));
  PIVOT_TRY_VOID(set_switches(*backend, "PIVOT_CUDA_OFF", false));
  PIVOT_TRY_VOID(set_switches(*backend, "PIVOT_CUDA_ON", true));
  return backend;
}

bool draws_on_device(Backend& backend) {
  return is_cuda_backend(backend) && cuda_switches(backend).device_sampling;
}

bool device_draw_takes(const SamplingParams& params) {
  return !uses_history(params) && params.logit_bias.empty() && params.top_logprobs < 0 &&
         params.top_k <= cuda::kMaxSortedDraw;
}

Result<> draw_on_device(Backend& backend, const float* logits, std::int64_t vocab,
                        std::span<DeviceDraw> draws) {
  std::vector<std::int32_t> rows;
  std::vector<cuda::DrawParams> params;
  for (const DeviceDraw& draw : draws) {
    const SamplingParams& p = *draw.params;
    rows.push_back(draw.row);
    params.push_back({p.temperature, p.top_p, p.min_p, p.top_k, p.seed, draw.counter});
  }
  std::vector<cuda::DrawResult> results(draws.size());
  PIVOT_TRY_VOID(cuda_draw(backend, logits, static_cast<std::int32_t>(vocab), rows, params, results));
  for (std::size_t i = 0; i < draws.size(); ++i) {
    draws[i].drawn = results[i].status == cuda::DrawStatus::kDrawn;
    draws[i].id = TokenId{results[i].id};
  }
  return {};
}

}  // namespace pivot
