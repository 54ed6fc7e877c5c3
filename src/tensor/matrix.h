// Weight matrices [rows, cols] (y = W x) in the formats that checkpoints of this family store, as views.
//
// `codes` and `scales` may be unaligned (checkpoint tensors are only 4-byte aligned) and live on whichever
// device the owning weights were placed on. Decoding (specification 4.1, 4.3):
//   kBF16     codes: rows*cols BF16
//   kF32      codes: rows*cols F32
//   kFP8      codes: rows*cols E4M3; scales: [ceil(rows/128), ceil(cols/128)] E8M0 or F32
//   kFP4      codes: rows*cols/2 bytes, low nibble = even column; scales: [rows, cols/32] E8M0
//   kNVFP4    codes as kFP4; scales: [rows, cols/16] E4M3; value = code * scale * global_scale
#pragma once

#include <cstddef>
#include <cstdint>

namespace pivot {

enum class MatrixFormat : std::uint8_t { kBF16, kF32, kFP8, kFP4, kNVFP4 };
enum class ScaleFormat : std::uint8_t { kNone, kE8M0, kF32, kE4M3 };

inline constexpr std::int64_t kFp8BlockRows = 128;
inline constexpr std::int64_t kFp8BlockCols = 128;
inline constexpr std::int64_t kFp4GroupCols = 32;
inline constexpr std::int64_t kNvfp4GroupCols = 16;

struct Matrix {
  MatrixFormat format = MatrixFormat::kBF16;
  ScaleFormat scale_format = ScaleFormat::kNone;
  std::int64_t rows = 0;  // output features
  std::int64_t cols = 0;  // input features
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  float global_scale = 1.0f;  // NVFP4 weight_scale_2, as a multiplier
  float input_scale = 0.0f;  // NVFP4 activation scale (input_amax / (6*448)); 0 where the checkpoint has none

  bool empty() const { return codes == nullptr; }
  std::int64_t code_bytes() const {
    switch (format) {
      case MatrixFormat::kBF16:
        return rows * cols * 2;
      case MatrixFormat::kF32:
        return rows * cols * 4;
      case MatrixFormat::kFP8:
        return rows * cols;
      case MatrixFormat::kFP4:
      case MatrixFormat::kNVFP4:
        return rows * cols / 2;
    }
    return 0;
  }
  std::int64_t scale_bytes() const {
    switch (format) {
      case MatrixFormat::kFP8:
        return ((rows + kFp8BlockRows - 1) / kFp8BlockRows) * ((cols + kFp8BlockCols - 1) / kFp8BlockCols) *
               (scale_format == ScaleFormat::kF32 ? 4 : 1);
      case MatrixFormat::kFP4:
        return rows * cols / kFp4GroupCols;
      case MatrixFormat::kNVFP4:
        return rows * cols / kNvfp4GroupCols;
      default:
        return 0;
    }
  }
};

// "bf16", "f32", "fp8", "fp4", "nvfp4".
const char* to_string(MatrixFormat format);

}  // namespace pivot
