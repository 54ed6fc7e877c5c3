// The kernels for AVX2 + FMA (compiled with those flags; see CMakeLists.txt).
#include "ops/cpu/simd/pack_avx2.h"

// The bodies are written on the vectors above.
#include "ops/cpu/simd/table_body.h"

namespace pivot::simd {
extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = kTable;
}  // namespace pivot::simd
