// The CUDA half of make_backend. cuda_absent.cpp answers in a CPU build; the CUDA back-end brings its own.
#pragma once

#include <memory>

#include "base/error.h"
#include "ops/ops.h"

namespace pivot {

// Whether this build contains the CUDA back-end, and how many devices the machine shows it.
bool has_cuda_backend();
int cuda_device_count();
Result<std::shared_ptr<Backend>> make_cuda_device(int ordinal);

}  // namespace pivot
