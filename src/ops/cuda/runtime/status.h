// CUDA runtime results in set-up code.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "base/error.h"

namespace pivot::cuda {

// The driver's code and text as an Error, with what was attempted.
Result<> check_cuda(cudaError_t status, std::string_view attempted);

}  // namespace pivot::cuda
