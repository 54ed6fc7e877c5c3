// The parity grid on the first GPU. Without one the test says so and skips.
#include "base/check.h"
#include "ops/cuda/backend.h"
#include "ops/parity_ops.h"

namespace pivot::test {

std::vector<BackendFactory> parity_backends() {
  if (!make_cuda_backend(0)) return {};
  const auto make = [](bool wgmma) {
    return [wgmma] {
      Result<std::shared_ptr<Backend>> backend = make_cuda_backend(0);
      PIVOT_CHECK(backend, "{}", backend.error().to_string());
      CudaSwitches switches;
      switches.wgmma = wgmma;
      set_cuda_switches(**backend, switches);
      return *std::move(backend);
    };
  };
  return {{"cuda", make(true), false}, {"cuda_one_order", make(false), true}};
}

}  // namespace pivot::test
