// Device buffers that an op needs between its kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {

// Buffers an op needs between its kernels. They grow to the largest step seen and are never shrunk, so that a
// captured graph keeps its addresses.
class Scratch {
 public:
  ~Scratch() {
    for (auto& [name, buffer] : buffers_) cudaFree(buffer.memory);
  }
  template <class T>
  T* get(const char* name, std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T);
    Buffer& buffer = buffers_[name];
    if (buffer.bytes < bytes) {
      require_cuda(cudaDeviceSynchronize(), "growing a workspace");
      if (buffer.memory != nullptr) require_cuda(cudaFree(buffer.memory), "growing a workspace");
      require_cuda(cudaMalloc(&buffer.memory, bytes), "growing a workspace");
      buffer.bytes = bytes;
      ++generation_;
    }
    return static_cast<T*>(buffer.memory);
  }
  // Changes whenever a buffer moved: a graph captured before then holds a dead address.
  std::int64_t generation() const { return generation_; }

 private:
  struct Buffer {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  std::unordered_map<std::string_view, Buffer> buffers_;  // keyed by string literals
  std::int64_t generation_ = 0;
};

}  // namespace pivot::cuda
