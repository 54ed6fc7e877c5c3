// What the programs here share that link nothing but the CUDA runtime beside the kernels they measure:
// gemm.cu and indexer.cu, each of which includes this once.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {

// Here instead of runtime/launch.cpp.
void require_cuda(cudaError_t status, const char* operation) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", operation, cudaGetErrorString(status));
  std::exit(2);
}
void require(bool condition, const char* what) {
  if (condition) return;
  std::printf("refused: %s\n", what);
  std::exit(2);
}

namespace {

// Device memory of `count` elements, NaN in every format until it is written: what is not written shows.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count) : count_(std::max<std::int64_t>(count, 1)) {
    require_cuda(cudaMalloc(&memory_, bytes()), "allocating");
    clear();
  }
  explicit Buffer(const std::vector<T>& host) : Buffer(static_cast<std::int64_t>(host.size())) { fill(host); }
  ~Buffer() { cudaFree(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void clear(int byte = 0xff) { require_cuda(cudaMemset(memory_, byte, bytes()), "clearing"); }
  void fill(const std::vector<T>& host, std::int64_t at = 0) {  // from element `at` on
    require_cuda(cudaMemcpy(memory_ + at, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
                 "upload");
  }
  T* get() const { return memory_; }
  std::int64_t count() const { return count_; }
  std::vector<T> host() const {
    std::vector<T> out(static_cast<std::size_t>(count_));
    require_cuda(cudaMemcpy(out.data(), memory_, bytes(), cudaMemcpyDeviceToHost), "download");
    return out;
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }
  T* memory_ = nullptr;
  std::int64_t count_;
};

}  // namespace
}  // namespace pivot::cuda
