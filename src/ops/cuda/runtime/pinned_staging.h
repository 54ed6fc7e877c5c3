// Small host arrays on their way to the device: copied into pinned memory first, so that the copy to the
// device is asynchronous and the caller may reuse its array at once.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace pivot::cuda {

class PinnedStaging {
 public:
  ~PinnedStaging();
  Result<> open();
  // The pinned copy of `host`, or `host` itself where it is too large to be worth one. Waits for `stream`
  // when the ring comes round.
  const void* stage(const void* host, std::int64_t bytes, cudaStream_t stream);

 private:
  std::byte* ring_ = nullptr;
  std::int64_t next_ = 0;
};

}  // namespace pivot::cuda
