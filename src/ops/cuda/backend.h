// The CUDA back-end: src/ops/ops.h on one NVIDIA GPU (docs/cuda.md).
#pragma once

#include <memory>

#include "base/error.h"
#include "ops/ops.h"

namespace pivot {

// Errors: kUnavailable without a driver or device, kNotFound for a number the machine does not have, kUnsupported for a
// compute capability this build has no code for.
Result<std::shared_ptr<Backend>> make_cuda_backend(int device);

}  // namespace pivot
