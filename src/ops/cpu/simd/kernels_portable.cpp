// The kernels for any CPU, in plain C++.
#include "ops/cpu/simd/pack_portable.h"

// The bodies are written on the vectors above.
#include "ops/cpu/simd/table_body.h"

namespace pivot::simd {
extern const Kernels kPortableKernels;
const Kernels kPortableKernels = kTable;
}  // namespace pivot::simd
