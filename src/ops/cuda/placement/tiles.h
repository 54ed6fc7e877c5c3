// Host side of placement/tile_format.h: sizes, checks and the re-tiling itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "ops/cuda/placement/tile_format.h"

namespace pivot::cuda {

struct TiledSize {
  std::int64_t code_bytes = 0;
  std::int64_t scale_bytes = 0;
};
TiledSize tiled_size(const Matrix& matrix);

// Why a matrix cannot be tiled: columns not a multiple of 128, format kF32.
Result<> check_tileable(const Matrix& matrix, const char* name);

// Host memory to host memory. REQUIRES: check_tileable; codes and scales of tiled_size bytes.
void tile_matrix(const Matrix& matrix, std::byte* codes, std::byte* scales);

// The word of 8 FP4 codes described above, and its inverse (for tests and the un-tiling kernels).
std::uint32_t interleave_fp4(const std::uint8_t (&codes)[8]);
void deinterleave_fp4(std::uint32_t word, std::uint8_t (&codes)[8]);

}  // namespace pivot::cuda
