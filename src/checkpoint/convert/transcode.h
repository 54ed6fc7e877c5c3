// Re-encoding of one weight matrix between the storage formats, exact unless it says otherwise
// (specification 4.2, 4.3).
//
// Every function works on whole rows of a matrix in host memory and touches nothing else. "Exact" means that
// every decoded value of the result equals that of the source.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "tensor/matrix.h"

namespace pivot {

// The largest scale exponent (unbiased) over the 32-blocks of an FP4 matrix that hold a nonzero code; nullopt
// where all are zero. A lossless NVFP4 cast sets weight_scale_2 from it (specification 4.3).
std::optional<int> largest_exponent(const Matrix& fp4);

// FP4 -> NVFP4, codes unchanged: the E4M3 scales of rows [row_begin, row_end), two per 32-block, under
// weight_scale_2 = 2^(kmax - 8). kUnsupported where a block lies more than 17 binades below kmax or above it:
// no lossless cast exists.
Result<> nvfp4_scales(const Matrix& fp4, int kmax, std::int64_t row_begin, std::int64_t row_end,
                      std::span<std::uint8_t> scales);
float nvfp4_global_scale(int kmax);  // 2^(kmax - 8)

// NVFP4 -> FP4, codes unchanged: the E8M0 bytes of those rows. kUnsupported where the matrix is no lossless
// cast (a scale that is no power of two, or halves of a 32-block that disagree): the message says which.
Result<> fp4_scales(const Matrix& nvfp4, std::int64_t row_begin, std::int64_t row_end,
                    std::span<std::uint8_t> scales);

// Any format -> FP4 where every value fits its grid, block by block: codes (two a byte) and E8M0 bytes of the
// rows. kUnsupported with the first block that does not fit.
Result<> fp4_exact(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                   std::span<std::uint8_t> codes, std::span<std::uint8_t> scales);

// Any format -> FP8 with one E8M0 scale per 128x128. row_begin must be a multiple of 128. From FP4 the block
// scale is the largest group scale over 64, which keeps every value exact while the groups of a block span at
// most 14 binades. Returns the number of values that were rounded.
std::int64_t fp8_blocks(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                        std::span<std::uint8_t> codes, std::span<std::uint8_t> scales);

// The scales of fp8_blocks alone; from FP4 without touching codes, except where a group's scale would raise
// the block's.
void fp8_scales(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                std::span<std::uint8_t> scales);

// Any format -> BF16, nearest even. Returns the number of values that were rounded (0 from FP4, lossless
// NVFP4 and FP8 with E8M0).
std::int64_t bf16_values(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                         std::span<std::uint16_t> values);

}  // namespace pivot
