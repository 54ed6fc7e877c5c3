// A stored tensor's bytes, wherever they were read to, as the Matrix that they encode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "tensor/matrix.h"

namespace pivot {

// An F32 scalar (weight_scale_2, input_scale) from the mapping; `otherwise` where there is none.
float stored_scalar(const Checkpoint& checkpoint, const TensorInfo* tensor, float otherwise = 1.0f);

// `rows` rows of a matrix whose codes and scales (empty: none) begin there. `stated_global` is what the file
// says: ModelOpt's factor or compressed-tensors' divisor (fault B08).
Matrix stored_matrix(const StoredTensor& tensor, std::int64_t rows, const std::byte* codes,
                     const std::byte* scales, float stated_global);

}  // namespace pivot
