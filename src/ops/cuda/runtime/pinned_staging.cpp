#include "ops/cuda/runtime/pinned_staging.h"

#include <cstring>

#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/runtime/status.h"

namespace pivot::cuda {
namespace {
constexpr std::int64_t kRingBytes = std::int64_t{1} << 20;
constexpr std::int64_t kLargestBytes = std::int64_t{64} << 10;
}  // namespace

PinnedStaging::~PinnedStaging() {
  if (ring_ != nullptr) cudaFreeHost(ring_);
}

Result<> PinnedStaging::open() {
  void* memory = nullptr;
  PIVOT_TRY_VOID(check_cuda(cudaMallocHost(&memory, kRingBytes), "allocating pinned host memory"));
  ring_ = static_cast<std::byte*>(memory);
  return {};
}

const void* PinnedStaging::stage(const void* host, std::int64_t bytes, cudaStream_t stream) {
  if (bytes > kLargestBytes || bytes == 0) return host;
  if (next_ + bytes > kRingBytes) {
    require_cuda(cudaStreamSynchronize(stream), "waiting for uploads");
    next_ = 0;
  }
  std::byte* copy = ring_ + next_;
  std::memcpy(copy, host, static_cast<std::size_t>(bytes));
  next_ = (next_ + bytes + 255) / 256 * 256;
  return copy;
}

}  // namespace pivot::cuda
