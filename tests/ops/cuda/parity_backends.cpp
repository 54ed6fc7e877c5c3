// The parity grid on the first GPU. Without one the test says so and skips.
#include "base/check.h"
#include "ops/cuda/backend.h"
#include "ops/parity_ops.h"

namespace pivot::test {

std::vector<BackendFactory> parity_backends() {
  if (!make_cuda_backend(0)) return {};
  return {{"cuda", [] {
             Result<std::shared_ptr<Backend>> backend = make_cuda_backend(0);
             PIVOT_CHECK(backend, "{}", backend.error().to_string());
             return *std::move(backend);
           }}};
}

}  // namespace pivot::test
