#include "checkpoint/dequantize.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace pivot {
namespace {

template <class T>
T read_unaligned(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

std::uint8_t byte_at(const std::byte* data, std::int64_t index) {
  return std::to_integer<std::uint8_t>(data[index]);
}

void fp8_row(const Matrix& m, std::int64_t row, float* out) {
  const std::byte* codes = m.codes + row * m.cols;
  const std::int64_t scale_cols = (m.cols + kFp8BlockCols - 1) / kFp8BlockCols;
  for (std::int64_t block = 0; block < scale_cols; ++block) {
    const std::int64_t index = row / kFp8BlockRows * scale_cols + block;
    const float scale = m.scale_format == ScaleFormat::kF32 ? read_unaligned<float>(m.scales, index)
                                                            : e8m0_to_float(byte_at(m.scales, index));
    const std::int64_t end = std::min(m.cols, (block + 1) * kFp8BlockCols);
    for (std::int64_t k = block * kFp8BlockCols; k < end; ++k)
      out[k] = kE4m3Values[byte_at(codes, k)] * scale;
  }
}

// The two values of every byte of E2M1 codes, low nibble first.
constexpr std::array<std::array<float, 2>, 256> kE2m1Pairs = [] {
  std::array<std::array<float, 2>, 256> pairs{};
  for (std::size_t pair = 0; pair < pairs.size(); ++pair)
    pairs[pair] = {e2m1_to_float(pair & 15u), e2m1_to_float(static_cast<std::uint8_t>(pair >> 4))};
  return pairs;
}();

// FP4 and NVFP4: two codes a byte, low nibble = even column; one scale per `group` columns.
void fp4_row(const Matrix& m, std::int64_t row, std::int64_t group, float* out) {
  const std::byte* codes = m.codes + row * (m.cols / 2);
  const std::byte* scales = m.scales + row * (m.cols / group);
  for (std::int64_t g = 0; g < m.cols / group; ++g) {
    const std::uint8_t code = byte_at(scales, g);
    const float scale =
        m.format == MatrixFormat::kNVFP4 ? kE4m3Values[code] * m.global_scale : e8m0_to_float(code);
    float* values = out + g * group;
    for (std::int64_t k = 0; k < group; k += 2)
      std::memcpy(values + k, kE2m1Pairs[byte_at(codes, (g * group + k) / 2)].data(), 2 * sizeof(float));
    for (std::int64_t k = 0; k < group; ++k) values[k] *= scale;
  }
}

void dequantize_row(const Matrix& m, std::int64_t row, float* out) {
  switch (m.format) {
    case MatrixFormat::kBF16:
      for (std::int64_t k = 0; k < m.cols; ++k)
        out[k] = to_float(BF16{read_unaligned<std::uint16_t>(m.codes, row * m.cols + k)});
      return;
    case MatrixFormat::kF32:
      std::memcpy(out, m.codes + row * m.cols * 4, static_cast<std::size_t>(m.cols) * 4);
      return;
    case MatrixFormat::kFP8:
      return fp8_row(m, row, out);
    case MatrixFormat::kFP4:
      return fp4_row(m, row, kFp4GroupCols, out);
    case MatrixFormat::kNVFP4:
      return fp4_row(m, row, kNvfp4GroupCols, out);
  }
}

void check_request(const Matrix& m, std::int64_t begin, std::int64_t end, std::size_t size) {
  PIVOT_CHECK(!m.empty() && 0 <= begin && begin <= end && end <= m.rows, "rows {} to {} of {}", begin, end,
              m.rows);
  PIVOT_CHECK(size == static_cast<std::size_t>((end - begin) * m.cols), "{} values for {} rows of {}", size,
              end - begin, m.cols);
}

}  // namespace

void dequantize_rows(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                     std::span<float> out) {
  check_request(matrix, row_begin, row_end, out.size());
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    dequantize_row(matrix, row, out.data() + (row - row_begin) * matrix.cols);
  }
}

void dequantize_rows(const Matrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                     std::span<BF16> out) {
  check_request(matrix, row_begin, row_end, out.size());
  std::vector<float> values(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    dequantize_row(matrix, row, values.data());
    BF16* target = out.data() + (row - row_begin) * matrix.cols;
    for (std::size_t k = 0; k < values.size(); ++k) target[k] = to_bf16(values[k]);
  }
}

}  // namespace pivot
