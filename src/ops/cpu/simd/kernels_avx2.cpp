// The kernels for AVX2 + FMA (compiled with those flags; see CMakeLists.txt).
#include "ops/cpu/simd/vec_avx2.h"
// The order matters: vectors, then the bodies on them.
#include "ops/cpu/simd/linear_body.h"
#include "ops/cpu/simd/pointwise_body.h"
#include "ops/cpu/simd/attention_body.h"
#include "ops/cpu/simd/table_body.h"

namespace pivot::simd {
extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = kTable;
}  // namespace pivot::simd
