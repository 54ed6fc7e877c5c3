#include "ops/cpu/simd/backend.h"
#include "ops/parity_ops.h"

#ifdef PIVOT_HAVE_SIMDE
namespace pivot::simd {
extern const Kernels kEmulatedAvx512Kernels;
}
#endif

namespace pivot::test {

std::vector<BackendFactory> parity_backends() {
  std::vector<BackendFactory> factories;
  for (const simd::Isa isa : simd::supported_isas())
    for (const int threads : {1, 3})
      factories.push_back({std::string(simd::to_string(isa)) + "_" + std::to_string(threads),
                           [isa, threads] { return make_simd_backend(threads, isa); }});
#ifdef PIVOT_HAVE_SIMDE
  if (simd::supported_isas().size() > 1)  // the stand-ins are made of AVX2
    factories.push_back({"emulated_avx512_2", [] {
                           return make_simd_backend(2, simd::kEmulatedAvx512Kernels, "emulated avx512");
                         }});
#endif
  return factories;
}

}  // namespace pivot::test
