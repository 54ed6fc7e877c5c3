#include "ops/cuda/placement/tiles.h"

#include <cstring>

#include "base/check.h"
#include "numeric/formats.h"

namespace pivot::cuda {
namespace {

const std::uint8_t* bytes(const std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); }

std::int64_t row_tiles(const Matrix& m) { return (m.rows + kTileRows - 1) / kTileRows; }

// Copies `count` bytes from column `column` (in bytes) of a row-major byte matrix, zeros beyond the last row.
void copy_row_piece(const Matrix& m, std::int64_t row, std::int64_t row_bytes, std::int64_t offset,
                    std::int64_t count, std::uint8_t* out) {
  if (row < m.rows)
    std::memcpy(out, bytes(m.codes) + row * row_bytes + offset, static_cast<std::size_t>(count));
  else
    std::memset(out, 0, static_cast<std::size_t>(count));
}

void tile_bf16(const Matrix& m, std::int64_t r0, std::int64_t c0, std::uint8_t* out) {
  for (int j = 0; j < 4; ++j)
    for (int half = 0; half < 2; ++half)
      for (int lane = 0; lane < 32; ++lane, out += 16)
        copy_row_piece(m, r0 + 8 * half + lane / 4, m.cols * 2, (c0 + 32 * j + 8 * (lane % 4)) * 2, 16, out);
}

void tile_fp8(const Matrix& m, std::int64_t r0, std::int64_t c0, std::uint8_t* out) {
  for (int i = 0; i < 2; ++i)
    for (int half = 0; half < 2; ++half)
      for (int lane = 0; lane < 32; ++lane, out += 16)
        copy_row_piece(m, r0 + 8 * half + lane / 4, m.cols, c0 + 64 * i + 16 * (lane % 4), 16, out);
}

void tile_fp4(const Matrix& m, std::int64_t r0, std::int64_t c0, std::uint8_t* out) {
  for (int half = 0; half < 2; ++half)
    for (int lane = 0; lane < 32; ++lane)
      for (int q = 0; q < 4; ++q, out += 4) {
        std::uint8_t packed[4];
        copy_row_piece(m, r0 + 8 * half + lane / 4, m.cols / 2, (c0 + 32 * q + 8 * (lane % 4)) / 2, 4,
                       packed);
        std::uint8_t codes[8];
        for (int k = 0; k < 8; ++k) codes[k] = static_cast<std::uint8_t>(packed[k / 2] >> (k % 2 * 4) & 15);
        const std::uint32_t word = interleave_fp4(codes);
        std::memcpy(out, &word, 4);
      }
}

float fp8_scale(const Matrix& m, std::int64_t row, std::int64_t col) {
  const std::int64_t at =
      row / kFp8BlockRows * ((m.cols + kFp8BlockCols - 1) / kFp8BlockCols) + col / kFp8BlockCols;
  if (m.scale_format == ScaleFormat::kF32) {
    float value;
    std::memcpy(&value, m.scales + at * 4, 4);
    return value;
  }
  return e8m0_to_float(bytes(m.scales)[at]);
}

}  // namespace

namespace {
// Where column k of 8 lies in a word: its byte, and which of the byte's two codes it is (tile_format.h).
struct Place {
  int shift;  // of the byte
  bool second;
};
constexpr Place place_of(int k) {
  const int pair = k / 2;
  return {8 * (k % 2 * 2 + (pair % 2 == 0 ? 1 : 0)), pair >= 2};
}
}  // namespace

std::uint32_t interleave_fp4(const std::uint8_t (&codes)[8]) {
  std::uint32_t word = 0;
  for (int k = 0; k < 8; ++k) {
    const Place at = place_of(k);
    const std::uint32_t magnitude = codes[k] & 7u, sign = codes[k] >> 3 & 1u;
    word |= (at.second ? magnitude << 4 | sign : magnitude << 1 | sign << 7) << at.shift;
  }
  return word;
}

void deinterleave_fp4(std::uint32_t word, std::uint8_t (&codes)[8]) {
  for (int k = 0; k < 8; ++k) {
    const Place at = place_of(k);
    const std::uint32_t byte = word >> at.shift;
    codes[k] = static_cast<std::uint8_t>(at.second ? (byte >> 4 & 7) | (byte & 1) << 3
                                                   : (byte >> 1 & 7) | (byte >> 7 & 1) << 3);
  }
}

TiledSize tiled_size(const Matrix& m) {
  const std::int64_t tiles = row_tiles(m) * (m.cols / kTileCols);
  return {tiles * tile_code_bytes(m.format), tiles * tile_scale_bytes(m.format)};
}

Result<> check_tileable(const Matrix& m, const char* name) {
  if (m.format == MatrixFormat::kF32)
    return fail(ErrorCode::kUnsupported,
                "{} is F32; the CUDA back-end takes BF16, FP8, FP4 and NVFP4 matrices", name);
  if (m.cols % kTileCols != 0)
    return fail(ErrorCode::kUnsupported, "{} has {} columns; the CUDA back-end needs a multiple of {}", name,
                m.cols, kTileCols);
  return {};
}

void tile_matrix(const Matrix& m, std::byte* codes, std::byte* scales) {
  auto* out = reinterpret_cast<std::uint8_t*>(codes);
  auto* scale_out = reinterpret_cast<std::uint8_t*>(scales);
  for (std::int64_t tile = 0; tile < row_tiles(m); ++tile) {
    const std::int64_t r0 = tile * kTileRows;
    for (std::int64_t c0 = 0; c0 < m.cols; c0 += kTileCols) {
      switch (m.format) {
        case MatrixFormat::kBF16:
          tile_bf16(m, r0, c0, out);
          break;
        case MatrixFormat::kFP8: {
          tile_fp8(m, r0, c0, out);
          const float scale = fp8_scale(m, r0, c0);
          std::memcpy(scale_out, &scale, 4);
          break;
        }
        case MatrixFormat::kFP4:
        case MatrixFormat::kNVFP4: {
          tile_fp4(m, r0, c0, out);
          const std::int64_t group = m.format == MatrixFormat::kFP4 ? kFp4GroupCols : kNvfp4GroupCols;
          const std::int64_t per_row = kTileCols / group;
          for (std::int64_t r = 0; r < kTileRows; ++r)
            for (std::int64_t s = 0; s < per_row; ++s)
              scale_out[r * per_row + s] = r0 + r < m.rows
                                               ? bytes(m.scales)[(r0 + r) * (m.cols / group) + c0 / group + s]
                                               : std::uint8_t{0};
          break;
        }
        case MatrixFormat::kF32:
          PIVOT_CHECK(false, "F32 is not tileable");
      }
      out += tile_code_bytes(m.format);
      scale_out += tile_scale_bytes(m.format);
    }
  }
}

}  // namespace pivot::cuda
