// make_backend's CUDA half in a build that has the back-end.
#include <cuda_runtime.h>

#include "engine/cuda_devices.h"
#include "ops/cuda/backend.h"

namespace pivot {

bool has_cuda_backend() { return true; }

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<std::shared_ptr<Backend>> make_cuda_device(int ordinal) { return make_cuda_backend(ordinal); }

}  // namespace pivot
