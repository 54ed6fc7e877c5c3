#include "ops/cuda/runtime/launch.h"

#include <cstdio>
#include <cstdlib>

#include "ops/cuda/runtime/status.h"

namespace pivot::cuda {

Result<> check_cuda(cudaError_t status, std::string_view attempted) {
  if (status == cudaSuccess) return {};
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory
                         : status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver
                             ? ErrorCode::kUnavailable
                             : ErrorCode::kInternal;
  return fail(code, "{}: CUDA reports {} ({})", attempted, cudaGetErrorName(status),
              cudaGetErrorString(status));
}

void require_cuda(cudaError_t status, const char* operation) {
  if (status == cudaSuccess) return;
  std::fprintf(
      stderr,
      "pivot: the GPU failed in %s: %s (%s); the process ends, because the state on the device is unknown\n",
      operation, cudaGetErrorName(status), cudaGetErrorString(status));
  std::abort();
}

int multiprocessors() {
  thread_local int of = -1, count = 0;
  int device = 0;
  require_cuda(cudaGetDevice(&device), "asking for the current device");
  if (device != of)
    require_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
                 "asking for multiprocessors");
  of = device;
  return count;
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "pivot: internal check failed: %s\n", what);
  std::abort();
}

}  // namespace pivot::cuda
