// The kernels for AVX-512 (compiled with those flags; see CMakeLists.txt).
#include "ops/cpu/simd/pack_avx512.h"

// The bodies are written on the vectors above.
#include "ops/cpu/simd/table_body.h"

namespace pivot::simd {
extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = kTable;
}  // namespace pivot::simd
