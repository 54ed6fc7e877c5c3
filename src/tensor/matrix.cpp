#include "tensor/matrix.h"

namespace pivot {

const char* to_string(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kBF16:
      return "bf16";
    case MatrixFormat::kF32:
      return "f32";
    case MatrixFormat::kFP8:
      return "fp8";
    case MatrixFormat::kFP4:
      return "fp4";
    case MatrixFormat::kNVFP4:
      return "nvfp4";
  }
  return "?";
}

}  // namespace pivot
