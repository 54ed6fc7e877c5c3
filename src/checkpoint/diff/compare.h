// Comparison of two stored matrices, or parts of them: bytes, codes, values, and how far the values are
// apart.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace pivot {

// Sums over the elements compared; additive, so that parts of a tensor combine.
struct ErrorSums {
  std::int64_t elements = 0;
  std::int64_t changed_codes =
      0;  // elements whose codes differ; only where both sides use the same code grid
  bool codes_comparable = false;
  std::int64_t changed_values = 0;  // elements whose exact values differ
  double max_error = 0;             // max |a - b|
  double squared_error = 0;         // sum (a - b)^2
  double squared_a = 0;
  double squared_b = 0;
  double product = 0;  // sum a b

  void add(const ErrorSums& other);
  double rms_error() const;
  double relative_error() const;  // sqrt(squared_error / squared_a)
  double snr_db() const;          // 10 log10(squared_a / squared_error); infinite where nothing differs
  double cosine() const;
};

struct Comparison {
  bool same_bytes = false;   // codes and scales, in one format
  bool same_codes = false;   // bit patterns on the same grid (FP4 and NVFP4 share theirs)
  bool same_values = false;  // every element, exactly
  ErrorSums sums;
};

struct CompareOptions {
  bool always_sum = false;  // fill the sums even where the bytes are equal (for parts of a larger tensor)
};

// Shapes must agree. Values are compared exactly, as the two formats define them (specification 4.1, 4.3).
Comparison compare_matrices(const Matrix& a, const Matrix& b, const CompareOptions& options = {});

}  // namespace pivot
