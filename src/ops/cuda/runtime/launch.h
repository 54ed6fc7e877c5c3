// Kernel launches: one function that sets the stream, shared memory and programmatic dependent launch, and
// checks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace pivot::cuda {

// This header and everything a .cu file includes stays free of fmt, which nvcc 13 cannot compile: checks that
// print values live in the .cpp files.

// In the step a CUDA error cannot be handled: the process ends with the operation and the driver's text.
void require_cuda(cudaError_t status, const char* operation);
// A precondition of a launch function; its failure is a programmer's error.
void require(bool condition, const char* what);

// Of the current device.
int multiprocessors();

struct Launch {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool overlap_predecessor = false;  // programmatic dependent launch: the kernel calls wait_for_predecessor()
  const char* name = "";
  unsigned cluster = 1;  // CTAs of a cluster along x
};

// Whether launches may overlap their predecessor at all; a benchmark turns it off to show what it is worth.
inline bool overlap_allowed = true;

template <class... Params, class... Args>
void launch(const Launch& how, void (*kernel)(Params...), Args... args) {
  // A kernel's static and dynamic shared memory together may be 48 KB before it has to ask for more.
  if (how.shared_bytes > 16 * 1024)
    require_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(how.shared_bytes)),
                 how.name);
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = how.stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (how.overlap_predecessor && overlap_allowed) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = how.cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  require_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), how.name);
}

}  // namespace pivot::cuda
