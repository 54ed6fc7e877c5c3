#include "ops/cpu/reference/linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "numeric/quantize.h"

namespace pivot::reference {
namespace {

std::uint8_t byte_at(const std::byte* base, std::int64_t index) {
  return static_cast<std::uint8_t>(base[index]);
}

float f32_at(const std::byte* base, std::int64_t index) {
  float value = 0.0f;
  std::memcpy(&value, base + 4 * index, 4);
  return value;
}

float bf16_at(const std::byte* base, std::int64_t index) {
  BF16 value{};
  std::memcpy(&value.bits, base + 2 * index, 2);
  return to_float(value);
}

std::uint8_t nibble_at(const std::byte* base, std::int64_t index) {
  const std::uint8_t pair = byte_at(base, index / 2);
  return static_cast<std::uint8_t>(index % 2 == 0 ? pair & 15u : pair >> 4);
}

// Columns whose products are summed before the scales apply.
std::int64_t sum_block(const Matrix& w) {
  return w.format == MatrixFormat::kFP4 || w.format == MatrixFormat::kNVFP4 ? kFp4GroupCols
                                                                            : kActivationGroup;
}

// Values [col_begin, col_begin+count) of a row without its block scale; NVFP4's 16-column scales are folded
// in, since they change within a sum block (and are powers of two after a lossless cast, so that the sums
// stay those of FP4).
void decode_codes(const Matrix& w, std::int64_t row, std::int64_t col_begin, std::int64_t count, float* out,
                  std::int64_t out_stride) {
  const std::int64_t first = row * w.cols + col_begin;
  switch (w.format) {
    case MatrixFormat::kBF16:
      for (std::int64_t i = 0; i < count; ++i) out[i * out_stride] = bf16_at(w.codes, first + i);
      return;
    case MatrixFormat::kF32:
      for (std::int64_t i = 0; i < count; ++i) out[i * out_stride] = f32_at(w.codes, first + i);
      return;
    case MatrixFormat::kFP8:
      for (std::int64_t i = 0; i < count; ++i) out[i * out_stride] = kE4m3Values[byte_at(w.codes, first + i)];
      return;
    case MatrixFormat::kFP4:
      for (std::int64_t i = 0; i < count; ++i)
        out[i * out_stride] = kE2m1Values[nibble_at(w.codes, first + i)];
      return;
    case MatrixFormat::kNVFP4:
      for (std::int64_t i = 0; i < count; ++i) {
        const float block_scale = kE4m3Values[byte_at(w.scales, (first + i) / kNvfp4GroupCols)];
        out[i * out_stride] = kE2m1Values[nibble_at(w.codes, first + i)] * (block_scale * w.global_scale);
      }
      return;
  }
}

// The scale of the sum block that begins at column `col`.
float block_scale(const Matrix& w, std::int64_t row, std::int64_t col) {
  switch (w.format) {
    case MatrixFormat::kFP8: {
      const std::int64_t blocks = (w.cols + kFp8BlockCols - 1) / kFp8BlockCols;
      const std::int64_t index = row / kFp8BlockRows * blocks + col / kFp8BlockCols;
      return w.scale_format == ScaleFormat::kF32 ? f32_at(w.scales, index)
                                                 : e8m0_to_float(byte_at(w.scales, index));
    }
    case MatrixFormat::kFP4:
      return e8m0_to_float(byte_at(w.scales, (row * w.cols + col) / kFp4GroupCols));
    default:
      return 1.0f;
  }
}

}  // namespace

LinearInput plain_input(const float* x, std::int64_t tokens, std::int64_t cols, std::int64_t stride) {
  LinearInput input{tokens, cols, {}, {}};
  input.values.resize(static_cast<std::size_t>(tokens * cols));
  for (std::int64_t t = 0; t < tokens; ++t)
    std::copy_n(x + t * (stride == 0 ? cols : stride), cols, input.values.data() + t * cols);
  return input;
}

LinearInput fp8_input(const float* x, std::int64_t tokens, std::int64_t cols, std::int64_t stride) {
  LinearInput input{tokens, cols, {}, {}};
  const std::int64_t groups = input.groups();
  input.values.resize(static_cast<std::size_t>(tokens * cols));
  input.scales.resize(static_cast<std::size_t>(tokens * groups));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(cols)), scales(static_cast<std::size_t>(groups));
  for (std::int64_t t = 0; t < tokens; ++t) {
    quantize_e4m3({x + t * (stride == 0 ? cols : stride), static_cast<std::size_t>(cols)}, kActivationGroup,
                  codes.data(), scales.data());
    for (std::int64_t k = 0; k < cols; ++k)
      input.values[static_cast<std::size_t>(t * cols + k)] = kE4m3Values[codes[static_cast<std::size_t>(k)]];
    for (std::int64_t g = 0; g < groups; ++g)
      input.scales[static_cast<std::size_t>(t * groups + g)] =
          e8m0_to_float(scales[static_cast<std::size_t>(g)]);
  }
  return input;
}

LinearInput nvfp4_input(const float* x, std::int64_t tokens, std::int64_t cols, float input_scale) {
  LinearInput input = plain_input(x, tokens, cols);
  for (std::int64_t t = 0; t < tokens; ++t)
    quantize_dequantize_nvfp4({input.values.data() + t * cols, static_cast<std::size_t>(cols)}, input_scale);
  return input;
}

LinearInput linear_input(const Matrix& w, ActQuant act, const float* x, std::int64_t tokens,
                         std::int64_t cols) {
  const bool quantized = w.format != MatrixFormat::kBF16 && w.format != MatrixFormat::kF32;
  if (!quantized || act == ActQuant::kBf16) return plain_input(x, tokens, cols);
  if (act == ActQuant::kNvfp4) return nvfp4_input(x, tokens, cols, w.input_scale);
  return fp8_input(x, tokens, cols);
}

void panel_dot(const float* x, const float* panel, std::int64_t cols, float* acc) {
  float sums[kPanelRows] = {};
  for (std::int64_t k = 0; k < cols; ++k) {
    const float value = x[k];
    const float* column = panel + k * kPanelRows;
    for (std::int64_t r = 0; r < kPanelRows; ++r) sums[r] += value * column[r];
  }
  std::copy_n(sums, kPanelRows, acc);
}

void linear(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const LinearInput& x, float* y,
            std::int64_t y_stride, ThreadPool& pool) {
  PIVOT_CHECK(x.cols == w.cols && row_begin >= 0 && row_end <= w.rows, "x cols {}, w [{}, {}], rows {}..{}",
              x.cols, w.rows, w.cols, row_begin, row_end);
  const std::int64_t block = sum_block(w);
  const std::int64_t groups = x.groups();
  pool.for_ranges(row_end - row_begin, kPanelRows, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> panel(static_cast<std::size_t>(block * kPanelRows));
    for (std::int64_t first = begin; first < end; first += kPanelRows) {
      const std::int64_t rows = std::min(kPanelRows, end - first);
      for (std::int64_t t = 0; t < x.tokens; ++t) std::fill_n(y + t * y_stride + first, rows, 0.0f);
      std::fill(panel.begin(), panel.end(), 0.0f);
      for (std::int64_t col = 0; col < w.cols; col += block) {
        const std::int64_t cols = std::min(block, w.cols - col);
        float weight_scales[kPanelRows];
        for (std::int64_t r = 0; r < rows; ++r) {
          decode_codes(w, row_begin + first + r, col, cols, panel.data() + r, kPanelRows);
          weight_scales[r] = block_scale(w, row_begin + first + r, col);
        }
        for (std::int64_t t = 0; t < x.tokens; ++t) {
          float acc[kPanelRows];
          panel_dot(x.values.data() + t * w.cols + col, panel.data(), cols, acc);
          const float x_scale = x.scales.empty()
                                    ? 1.0f
                                    : x.scales[static_cast<std::size_t>(t * groups + col / kActivationGroup)];
          float* out = y + t * y_stride + first;
          for (std::int64_t r = 0; r < rows; ++r) out[r] += acc[r] * (x_scale * weight_scales[r]);
        }
      }
    }
  });
}

std::vector<float> linear(const Matrix& w, const LinearInput& x, ThreadPool& pool) {
  std::vector<float> y(static_cast<std::size_t>(x.tokens * w.rows));
  linear(w, 0, w.rows, x, y.data(), w.rows, pool);
  return y;
}

std::vector<float> linear(const Matrix& w, const LinearInput& x, Rounding round, ThreadPool& pool) {
  std::vector<float> y = linear(w, x, pool);
  round.apply(y.data(), static_cast<std::int64_t>(y.size()));
  return y;
}

void dequantize_row(const Matrix& w, std::int64_t row, float* out) {
  PIVOT_CHECK(row >= 0 && row < w.rows, "row {} of {}", row, w.rows);
  decode_codes(w, row, 0, w.cols, out, 1);
  const std::int64_t block = sum_block(w);
  for (std::int64_t col = 0; col < w.cols; col += block) {
    const float scale = block_scale(w, row, col);
    for (std::int64_t k = col; k < std::min(col + block, w.cols); ++k) out[k] *= scale;
  }
}

Matrix as_matrix(FloatSpan values, std::int64_t rows, std::int64_t cols) {
  PIVOT_CHECK(static_cast<std::int64_t>(values.size()) == rows * cols, "{} values as [{}, {}]", values.size(),
              rows, cols);
  Matrix matrix;
  matrix.format = MatrixFormat::kF32;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.codes = reinterpret_cast<const std::byte*>(values.data());
  return matrix;
}

Result<> check_matrix(const Matrix& w, std::string_view name) {
  if (w.empty()) return fail(ErrorCode::kInvalidData, "{} is missing", name);
  const auto scale_is = [&](ScaleFormat format) { return w.scale_format == format; };
  switch (w.format) {
    case MatrixFormat::kBF16:
    case MatrixFormat::kF32:
      return {};
    case MatrixFormat::kFP8:
      if (!scale_is(ScaleFormat::kE8M0) && !scale_is(ScaleFormat::kF32))
        return fail(ErrorCode::kUnsupported, "{} is FP8 without E8M0 or F32 block scales", name);
      break;
    case MatrixFormat::kFP4:
      if (!scale_is(ScaleFormat::kE8M0) || w.cols % kFp4GroupCols != 0)
        return fail(ErrorCode::kUnsupported,
                    "{} is FP4 with {} columns; it needs E8M0 scales and a multiple of {}", name, w.cols,
                    kFp4GroupCols);
      break;
    case MatrixFormat::kNVFP4:
      if (!scale_is(ScaleFormat::kE4M3) || w.cols % kNvfp4GroupCols != 0)
        return fail(ErrorCode::kUnsupported,
                    "{} is NVFP4 with {} columns; it needs E4M3 scales and a multiple of {}", name, w.cols,
                    kNvfp4GroupCols);
      break;
  }
  if (w.scales == nullptr) return fail(ErrorCode::kInvalidData, "{} has no scales", name);
  return {};
}

}  // namespace pivot::reference
