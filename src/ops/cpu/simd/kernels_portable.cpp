// The kernels for any CPU, in plain C++.
#include "ops/cpu/simd/vec_portable.h"
// The order matters: vectors, then the bodies on them.
#include "ops/cpu/simd/linear_body.h"
#include "ops/cpu/simd/pointwise_body.h"
#include "ops/cpu/simd/attention_body.h"
#include "ops/cpu/simd/table_body.h"

namespace pivot::simd {
extern const Kernels kPortableKernels;
const Kernels kPortableKernels = kTable;
}  // namespace pivot::simd
