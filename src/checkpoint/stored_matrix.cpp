#include "checkpoint/stored_matrix.h"

#include <cstring>

namespace pivot {

float stored_scalar(const Checkpoint& checkpoint, const TensorInfo* tensor, float otherwise) {
  float value = otherwise;
  if (tensor != nullptr && tensor->dtype == DType::kF32 && tensor->bytes() >= sizeof(value))
    std::memcpy(&value, checkpoint.view(*tensor).data, sizeof(value));
  return value;
}

Matrix stored_matrix(const StoredTensor& tensor, std::int64_t rows, const std::byte* codes,
                     const std::byte* scales, float stated_global) {
  Matrix matrix;
  matrix.format = tensor.format;
  matrix.scale_format = tensor.scale_format;
  matrix.rows = rows;
  matrix.cols = tensor.cols;
  matrix.codes = codes;
  matrix.scales = scales;
  matrix.global_scale =
      tensor.convention == Nvfp4Convention::kCompressedTensors ? 1.0f / stated_global : stated_global;
  return matrix;
}

}  // namespace pivot
