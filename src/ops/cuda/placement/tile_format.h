// How weight matrices lie in device memory: tiles of 16 rows x 128 columns in the order in which a warp's
// lanes load them, so that every load is 512 contiguous bytes and no lane has to exchange data with another.
//
// Lane l of a warp owns rows g = l/4 and g+8 of the tile; t = l%4 picks its columns. Within a tile K is taken
// in this order by both operands, so it needs no undoing:
//   kBF16  4 steps j: 16 bytes a row = columns 32j + 8t .. +7       4096 B: [j][row half][lane][16 B]
//   kFP8   2 steps i: 16 bytes a row = columns 64i + 16t .. +15     2048 B: [i][row half][lane][16 B]
//   kFP4   4 words q: 8 codes a row = columns 32q + 8t .. +7        1024 B: [row half][lane][q][4 B]
// An FP4 word keeps two codes a byte: A with the sign at bit 7 and the magnitude at bits 3..1, B with the
// magnitude at bits 6..4 and the sign at bit 0. Codes A are the high bytes of F16 values after one AND; a
// shift by three and one bit of sign turn B into A. Columns 0, 1 are A of bytes 1, 3; 2, 3 A of bytes 0, 2;
// 4, 5 B of bytes 1, 3; 6, 7 B of bytes 0, 2. Scales: kFP8 one fp32 per tile; kFP4 16 rows x 4 E8M0 bytes;
// kNVFP4 16 rows x 8 E4M3 bytes. Rows
// are padded with zeros to a multiple of 16.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace pivot::cuda {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileCols = 128;

constexpr std::int64_t tile_code_bytes(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kBF16:
      return 4096;
    case MatrixFormat::kFP8:
      return 2048;
    case MatrixFormat::kFP4:
    case MatrixFormat::kNVFP4:
      return 1024;
    case MatrixFormat::kF32:
      return 0;  // not placed as tiles
  }
  return 0;
}
constexpr std::int64_t tile_scale_bytes(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kFP8:
      return 4;
    case MatrixFormat::kFP4:
      return 64;
    case MatrixFormat::kNVFP4:
      return 128;
    default:
      return 0;
  }
}

}  // namespace pivot::cuda
