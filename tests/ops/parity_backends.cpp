#include "ops/cpu/simd/backend.h"
#include "ops/parity_ops.h"

namespace pivot::test {

std::vector<BackendFactory> parity_backends() {
  std::vector<BackendFactory> factories;
  for (const simd::Isa isa : simd::supported_isas())
    for (const int threads : {1, 3})
      factories.push_back({std::string(simd::to_string(isa)) + "_" + std::to_string(threads),
                           [isa, threads] { return make_simd_backend(threads, isa); }});
  return factories;
}

}  // namespace pivot::test
