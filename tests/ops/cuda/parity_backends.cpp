// The parity grid on the first GPU. Without one the test says so and skips.
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/placement/block_tile.h"
#include "ops/parity_ops.h"

namespace pivot::test {

std::vector<BackendFactory> parity_backends() {
  if (!make_cuda_backend(0)) return {};
  const auto make = [](const CudaSwitches& switches) {
    return [switches] {
      Result<std::shared_ptr<Backend>> backend = make_cuda_backend(0);
      PIVOT_CHECK(backend, "{}", backend.error().to_string());
      set_cuda_switches(**backend, switches);
      return *std::move(backend);
    };
  };
  // As it comes: wgmma for long steps on sm_90a, whose sums have another order; block-scaled products on
  // sm_120a, which have one order. Then the decode kernels alone.
  int major = 0, minor = 0;
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  CudaSwitches decode;
  decode.wgmma = decode.block_scaled = false;
  return {{"cuda", make({}), cuda::has_block_scaled(major, minor)}, {"cuda_one_order", make(decode), true}};
}

}  // namespace pivot::test
