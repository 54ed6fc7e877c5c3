// Exact values of weight matrices in any stored format (specification 4.1 "Decoding", 4.3).
#pragma once

#include <cstdint>
#include <span>

#include "numeric/formats.h"
#include "tensor/matrix.h"

namespace pivot {

// Rows [row_begin, row_end) of `matrix` as fp32, row-major. Exact for BF16, FP8 and FP4; NVFP4 is
// float(code * float(block scale * global scale)). REQUIRES: out.size() == (row_end - row_begin) * cols, host
// memory.
void dequantize_rows(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                     std::span<float> out);
// The same rounded to BF16 (nearest even); exact for FP4 and FP8 with power-of-two scales.
void dequantize_rows(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end, std::span<BF16> out);

}  // namespace pivot
