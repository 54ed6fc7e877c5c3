// A tensor as it lies in memory: dtype, shape and address, without ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace pivot {

using Shape = std::vector<std::int64_t>;

std::string to_string(const Shape& shape);  // "[8192, 4096]"

struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;  // row-major, no alignment promised
  std::int64_t elements() const {
    std::int64_t count = 1;
    for (std::int64_t extent : shape) count *= extent;
    return count;
  }
  std::int64_t bytes() const { return elements() * dtype_bytes(dtype); }
};

}  // namespace pivot
