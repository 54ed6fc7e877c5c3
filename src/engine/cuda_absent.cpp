#include "engine/cuda_devices.h"
#include "engine/device_draw.h"

namespace pivot {

bool has_cuda_backend() { return false; }

int cuda_device_count() { return 0; }

Result<std::shared_ptr<Backend>> make_cuda_device(int ordinal) {
  return fail(
      ErrorCode::kUnsupported,
      "device cuda:{} was asked for, but this build has no CUDA back-end; build with -DPIVOT_CUDA=ON (needs "
      "nvcc), or use --device cpu",
      ordinal);
}

namespace {
auto no_synthesis() {
  return fail(
      ErrorCode::kUnsupported,
      "a synthetic model needs the CUDA back-end; build with -DPIVOT_CUDA=ON and run with --device cuda");
}
}  // namespace

Result<SyntheticModel> synthesize_model(Backend&, const ModelConfig&, std::int64_t) { return no_synthesis(); }
Result<> synthesize_cache(Backend&, std::span<const LayerCacheView>, std::int64_t, std::int64_t,
                          std::int64_t) {
  return no_synthesis();
}

Result<std::vector<KernelTime>> kernel_times(Backend&) { return std::vector<KernelTime>{}; }

std::vector<BackendSwitch> backend_switches(Backend&) { return {}; }
Result<> set_backend_switch(Backend& backend, std::string_view name, bool) {
  return fail(ErrorCode::kInvalidArgument, "the {} back-end has no switch {}", backend.name(), name);
}

bool draws_on_device(Backend&) { return false; }
bool device_draw_takes(const SamplingParams&) { return false; }
Result<> draw_on_device(Backend& backend, const float*, std::int64_t, std::span<DeviceDraw>) {
  return fail(ErrorCode::kUnsupported, "the {} back-end does not draw tokens", backend.name());
}

}  // namespace pivot
