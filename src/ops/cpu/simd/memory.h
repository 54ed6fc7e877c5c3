// Whether a model's weights fit the machine. They stay in the mapping of the checkpoint; weights that do not
// fit would be read from the disk again at every step.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "checkpoint/model_weights.h"

namespace pivot::simd {

// Bytes of codes and scales that steps read; a matrix that several names share counts once.
std::int64_t weight_bytes(const ModelWeights& weights);
// Physical memory, or the limit of the process's control group where that is lower.
std::int64_t usable_memory_bytes();
// Errors: kOutOfMemory, with both numbers.
Result<> check_weights_fit(std::int64_t weight_bytes, std::int64_t memory_bytes);

}  // namespace pivot::simd
