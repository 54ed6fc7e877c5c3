// LinF8, LinF4, LinBF and Lin32 of specification 2.0 and 3.3 for every weight format, and their activation
// rounding.
//
// Sum order, the same for any number of tokens: within a block of K columns (128; 32 for FP4 and NVFP4
// weights) left to right in fp32, the block's sum times its scales, blocks added left to right in fp32. A
// result therefore depends only on the token's own input: chunked = whole, batched = alone, prefill = decode,
// bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "checkpoint/model_weights.h"
#include "numeric/formats.h"
#include "ops/cpu/reference/rounding.h"
#include "ops/knobs.h"
#include "tensor/matrix.h"

namespace pivot::reference {

inline constexpr std::int64_t kActivationGroup = 128;  // specification 3.3

// The right operand of a linear: element (t, k) stands for values[t*cols + k] * scales[t*groups + k/128].
struct LinearInput {
  std::int64_t tokens = 0;
  std::int64_t cols = 0;
  std::vector<float> values;  // E4M3 code values, or the activations themselves
  std::vector<float> scales;  // powers of two; empty means all 1

  std::int64_t groups() const { return (cols + kActivationGroup - 1) / kActivationGroup; }
};

// `x` is [tokens, cols] with `stride` floats from row to row (0 means cols).
LinearInput plain_input(const float* x, std::int64_t tokens, std::int64_t cols, std::int64_t stride = 0);
LinearInput fp8_input(const float* x, std::int64_t tokens, std::int64_t cols, std::int64_t stride = 0);
// Specification 4.3: per 16 columns, block scale e4m3(amax/6/input_scale), codes e2m1. REQUIRES input_scale >
// 0.
LinearInput nvfp4_input(const float* x, std::int64_t tokens, std::int64_t cols, float input_scale);
// What a linear with weight `w` receives under an activation knob: BF16 and F32 weights always take it as it
// is (they are not quantised linears), NVFP4 rounding applies to weights that carry an input scale.
LinearInput linear_input(const Matrix& w, ActQuant act, const float* x, std::int64_t tokens,
                         std::int64_t cols);

// y[t*y_stride + n - row_begin] = sum_k W[n][k] x[t][k] for rows [row_begin, row_end), unrounded fp32.
// REQUIRES: x.cols == w.cols.
void linear(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, const LinearInput& x, float* y,
            std::int64_t y_stride, ThreadPool& pool);
// All rows: [tokens, rows], unrounded (Lin32).
std::vector<float> linear(const Matrix& w, const LinearInput& x, ThreadPool& pool);
// All rows, rounded (LinF8, LinF4, LinBF).
std::vector<float> linear(const Matrix& w, const LinearInput& x, Rounding round, ThreadPool& pool);

// The exact values of one weight row (specification 4.1, 4.3), fp32. An NVFP4 value is code * fp32(scale *
// global).
void dequantize_row(const Matrix& w, std::int64_t row, float* out);

// A fp32 weight vector of the loader seen as a matrix.
Matrix as_matrix(FloatSpan values, std::int64_t rows, std::int64_t cols);

// Why the reference linears cannot read `w`; `name` is the tensor's in messages.
Result<> check_matrix(const Matrix& w, std::string_view name);

// ---- shared building block ----

inline constexpr std::int64_t kPanelRows = 32;

// acc[r] = sum_k x[k] * panel[k*kPanelRows + r], each summed left to right. The compiler vectorises over r,
// which leaves the order of every single sum untouched.
void panel_dot(const float* x, const float* panel, std::int64_t cols, float* acc);

}  // namespace pivot::reference
