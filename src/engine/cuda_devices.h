// The CUDA half of make_backend. cuda_absent.cpp answers in a CPU build; the CUDA back-end brings its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/ops.h"

namespace pivot {

// Whether this build contains the CUDA back-end, and how many devices the machine shows it.
bool has_cuda_backend();
int cuda_device_count();
Result<std::shared_ptr<Backend>> make_cuda_device(int ordinal);

// For benchmarks at full size without a checkpoint (ops/cuda/backend.h). kUnsupported in a CPU build.
struct SyntheticModel {
  std::shared_ptr<const ModelWeights> weights;
  std::int64_t bytes = 0;            // in device memory, the aliased experts not counted
  double read_bytes_per_second = 0;  // of a kernel that only reads them
};
Result<SyntheticModel> synthesize_model(Backend& backend, const ModelConfig& config,
                                        std::int64_t resident_experts);
Result<> synthesize_cache(Backend& backend, std::span<const LayerCacheView> layers, std::int64_t slots,
                          std::int64_t ratio4_pages, std::int64_t ratio128_pages);

// Kernels that no operator runs alone (ops/cuda/backend.h cuda_kernel_times). Empty for a back-end without
// any.
struct KernelTime {
  std::string name;
  double seconds = 0, bytes = 0;  // of one call
};
Result<std::vector<KernelTime>> kernel_times(Backend& backend);

// Choices of a back-end that change its speed and no rounding point, in the order in which a ladder turns
// them on. Empty for a back-end without any. Errors: kInvalidArgument for a name it does not have.
struct BackendSwitch {
  std::string_view name;
  std::string_view effect;
  bool on = false;
};
std::vector<BackendSwitch> backend_switches(Backend& backend);
Result<> set_backend_switch(Backend& backend, std::string_view name, bool on);

}  // namespace pivot
