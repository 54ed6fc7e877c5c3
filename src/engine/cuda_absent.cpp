#include "engine/cuda_devices.h"

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

}  // namespace pivot
