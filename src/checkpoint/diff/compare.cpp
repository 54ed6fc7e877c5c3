#include "checkpoint/diff/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "checkpoint/dequantize.h"
#include "numeric/formats.h"

namespace pivot {

namespace {

bool is_fp4(MatrixFormat format) { return format == MatrixFormat::kFP4 || format == MatrixFormat::kNVFP4; }

bool same_code_grid(const Matrix& a, const Matrix& b) {
  return a.format == b.format || (is_fp4(a.format) && is_fp4(b.format));
}

bool equal_bytes(const std::byte* a, const std::byte* b, std::int64_t count) {
  return count == 0 || std::memcmp(a, b, static_cast<std::size_t>(count)) == 0;
}

// What each scale byte of an FP4 or NVFP4 matrix stands for.
std::array<float, 256> scale_values(const Matrix& m) {
  std::array<float, 256> values{};
  for (std::size_t byte = 0; byte < values.size(); ++byte) {
    const auto code = static_cast<std::uint8_t>(byte);
    values[byte] =
        m.format == MatrixFormat::kNVFP4 ? e4m3_to_float(code) * m.global_scale : e8m0_to_float(code);
  }
  return values;
}

// Two FP4 matrices with equal codes have equal values where the scales of every block with a nonzero code
// agree.
bool scales_give_equal_values(const Matrix& a, const Matrix& b) {
  const std::array<float, 256> values_a = scale_values(a);
  const std::array<float, 256> values_b = scale_values(b);
  // 16-blocks a scale byte covers, as a shift.
  const int shift_a = a.format == MatrixFormat::kNVFP4 ? 0 : 1;
  const int shift_b = b.format == MatrixFormat::kNVFP4 ? 0 : 1;
  const std::int64_t blocks = a.cols / kNvfp4GroupCols;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::byte* codes = a.codes + row * (a.cols / 2);
    const std::byte* scales_a = a.scales + row * (blocks >> shift_a);
    const std::byte* scales_b = b.scales + row * (blocks >> shift_b);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const auto byte_a = std::to_integer<std::uint8_t>(scales_a[block >> shift_a]);
      const auto byte_b = std::to_integer<std::uint8_t>(scales_b[block >> shift_b]);
      if (values_a[byte_a] == values_b[byte_b]) [[likely]]
        continue;
      const std::byte* at = codes + block * (kNvfp4GroupCols / 2);
      if (std::any_of(at, at + kNvfp4GroupCols / 2,
                      [](std::byte pair) { return (pair & std::byte{0x77}) != std::byte{0}; }))
        return false;
    }
  }
  return true;
}

std::int64_t changed_nibbles(const std::byte* a, const std::byte* b, std::int64_t bytes) {
  std::int64_t changed = 0;
  for (std::int64_t i = 0; i < bytes; ++i) {
    const std::byte difference = a[i] ^ b[i];
    changed += ((difference & std::byte{0x0f}) != std::byte{0} ? 1 : 0) +
               ((difference & std::byte{0xf0}) != std::byte{0} ? 1 : 0);
  }
  return changed;
}

std::int64_t changed_codes(const Matrix& a, const Matrix& b, std::int64_t row) {
  const std::int64_t bytes = a.code_bytes() / a.rows;
  const std::byte* left = a.codes + row * bytes;
  const std::byte* right = b.codes + row * bytes;
  if (is_fp4(a.format)) return changed_nibbles(left, right, bytes);
  const std::int64_t width = bytes / a.cols;
  std::int64_t changed = 0;
  for (std::int64_t k = 0; k < a.cols; ++k)
    changed += equal_bytes(left + k * width, right + k * width, width) ? 0 : 1;
  return changed;
}

// Four fp32 lanes; the baseline instruction set has them, and eight independent sums hide the latency of an
// addition.
using Lanes = float __attribute__((vector_size(16)));
constexpr std::int64_t kLanes = 4;
constexpr std::int64_t kFlush =
    256;  // elements summed in fp32 before they go to fp64: keeps the sums good to 1e-6

Lanes load(const float* at) {
  Lanes value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

double sum(Lanes lanes) {
  return static_cast<double>(lanes[0]) + static_cast<double>(lanes[1]) + static_cast<double>(lanes[2]) +
         static_cast<double>(lanes[3]);
}

void add_values(const float* a, const float* b, std::int64_t count, ErrorSums& sums) {
  Lanes largest = {0, 0, 0, 0};
  std::int64_t at = 0;
  for (; at + kLanes <= count;) {
    const std::int64_t end = std::min(count / kLanes * kLanes, at + kFlush);
    Lanes error2 = {0, 0, 0, 0}, a2 = error2, b2 = error2, ab = error2;
    using Bits = int __attribute__((vector_size(16)));
    Bits changed = {0, 0, 0, 0};
    for (; at < end; at += kLanes) {
      const Lanes x = load(a + at);
      const Lanes y = load(b + at);
      const Lanes error = x - y;
      const Lanes magnitude = error < 0 ? -error : error;
      largest = magnitude > largest ? magnitude : largest;
      changed -= x != y;
      error2 += error * error;
      a2 += x * x;
      b2 += y * y;
      ab += x * y;
    }
    sums.squared_error += sum(error2);
    sums.squared_a += sum(a2);
    sums.squared_b += sum(b2);
    sums.product += sum(ab);
    sums.changed_values += changed[0] + changed[1] + changed[2] + changed[3];
  }
  float most = std::max({largest[0], largest[1], largest[2], largest[3]});
  for (; at < count; ++at) {
    const double x = static_cast<double>(a[at]);
    const double y = static_cast<double>(b[at]);
    most = std::max(most, std::fabs(a[at] - b[at]));
    sums.changed_values += a[at] != b[at] ? 1 : 0;
    sums.squared_error += (x - y) * (x - y);
    sums.squared_a += x * x;
    sums.squared_b += y * y;
    sums.product += x * y;
  }
  sums.max_error = std::max(sums.max_error, static_cast<double>(most));
  sums.elements += count;
}

ErrorSums sum_values(const Matrix& a, const Matrix& b) {
  ErrorSums sums;
  sums.codes_comparable = same_code_grid(a, b);
  const auto width = static_cast<std::size_t>(a.cols);
  std::vector<float> left(width);
  std::vector<float> right(width);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    dequantize_rows(a, row, row + 1, std::span<float>(left));
    dequantize_rows(b, row, row + 1, std::span<float>(right));
    add_values(left.data(), right.data(), a.cols, sums);
    if (sums.codes_comparable) sums.changed_codes += changed_codes(a, b, row);
  }
  return sums;
}

// The sums of a matrix compared with itself: its energy.
ErrorSums energy(const Matrix& m) {
  ErrorSums sums;
  std::vector<float> values(static_cast<std::size_t>(m.cols));
  for (std::int64_t row = 0; row < m.rows; ++row) {
    dequantize_rows(m, row, row + 1, std::span<float>(values));
    std::int64_t at = 0;
    while (at < m.cols) {
      const std::int64_t end = std::min(m.cols, at + kFlush);
      Lanes squares = {0, 0, 0, 0};
      for (; at + kLanes <= end; at += kLanes) {
        const Lanes x = load(values.data() + at);
        squares += x * x;
      }
      sums.squared_a += sum(squares);
      for (; at < end; ++at) {
        const double x = static_cast<double>(values[static_cast<std::size_t>(at)]);
        sums.squared_a += x * x;
      }
    }
  }
  sums.squared_b = sums.product = sums.squared_a;
  sums.elements = m.rows * m.cols;
  return sums;
}

// Every decoded value has the same bits; stops at the first row that has not.
bool equal_values(const Matrix& a, const Matrix& b) {
  std::vector<float> left(static_cast<std::size_t>(a.cols));
  std::vector<float> right(left.size());
  for (std::int64_t row = 0; row < a.rows; ++row) {
    dequantize_rows(a, row, row + 1, std::span<float>(left));
    dequantize_rows(b, row, row + 1, std::span<float>(right));
    if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

void ErrorSums::add(const ErrorSums& other) {
  codes_comparable = elements == 0 ? other.codes_comparable
                                   : codes_comparable && (other.codes_comparable || other.elements == 0);
  elements += other.elements;
  changed_codes += other.changed_codes;
  changed_values += other.changed_values;
  max_error = std::max(max_error, other.max_error);
  squared_error += other.squared_error;
  squared_a += other.squared_a;
  squared_b += other.squared_b;
  product += other.product;
}

double ErrorSums::rms_error() const {
  return elements == 0 ? 0 : std::sqrt(squared_error / static_cast<double>(elements));
}

double ErrorSums::relative_error() const {
  if (squared_error == 0) return 0;
  return squared_a == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(squared_error / squared_a);
}

double ErrorSums::snr_db() const {
  if (squared_error == 0) return std::numeric_limits<double>::infinity();
  return squared_a == 0 ? -std::numeric_limits<double>::infinity()
                        : 10 * std::log10(squared_a / squared_error);
}

double ErrorSums::cosine() const {
  const double norms = std::sqrt(squared_a) * std::sqrt(squared_b);
  return norms == 0 ? (squared_a == squared_b ? 1 : 0) : product / norms;
}

Comparison compare_matrices(const Matrix& a, const Matrix& b, const CompareOptions& options) {
  PIVOT_CHECK(a.rows == b.rows && a.cols == b.cols, "{}x{} and {}x{}", a.rows, a.cols, b.rows, b.cols);
  Comparison result;
  const bool one_grid = same_code_grid(a, b);
  result.same_codes = one_grid && equal_bytes(a.codes, b.codes, a.code_bytes());
  const bool one_format = a.format == b.format && a.scale_format == b.scale_format;
  const bool one_global = a.format != MatrixFormat::kNVFP4 || a.global_scale == b.global_scale;
  result.same_bytes =
      result.same_codes && one_format && one_global && equal_bytes(a.scales, b.scales, a.scale_bytes());
  if (result.same_bytes) {
    result.same_values = true;
  } else if (result.same_codes && is_fp4(a.format)) {
    result.same_values = scales_give_equal_values(a, b);
  } else {
    // Cheaper than sums, and soon over where the values differ.
    result.same_values = equal_values(a, b);
  }
  result.sums.codes_comparable = one_grid;
  if (result.same_values) {
    if (options.always_sum) result.sums = energy(a);
    result.sums.codes_comparable = one_grid;
    result.sums.elements = a.rows * a.cols;
    return result;
  }
  result.sums = sum_values(a, b);
  result.same_values = result.same_values || result.sums.changed_values == 0;
  return result;
}

}  // namespace pivot
