// Linear layers of a step: inputs prepared once per (quantisation, column order), then any number of products
// in one parallel region.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/cpu/simd/context.h"

namespace pivot::simd {

// What a matrix wants of its input under an activation knob (the rules of reference::linear_input).
struct InputKind {
  ColumnOrder order = ColumnOrder::kPlain;
  ActQuant quant = ActQuant::kBf16;  // kBf16: as it is
  float input_scale = 0.0f;          // kNvfp4

  bool operator==(const InputKind&) const = default;
};
InputKind input_kind(const Matrix& w, ActQuant act);

// Prepares one row: quantises a copy of x[0, cols) and permutes it to `out` (padded_columns(cols) floats).
// `temporary`: cols floats.
void prepare_row(const Kernels& kernels, const InputKind& kind, const float* x, std::int64_t cols,
                 float* temporary, float* out);

// Prepared rows of one kind, in scratch memory.
struct PreparedInput {
  InputKind kind;
  const float* const* rows = nullptr;  // [tokens]
};

// x: [tokens] rows of `cols` floats, `stride` floats apart. One result per kind, in the order given.
std::vector<PreparedInput> prepare_inputs(Context& context, const float* x, std::int64_t tokens,
                                          std::int64_t cols, std::int64_t stride,
                                          std::span<const InputKind> kinds);

// out[t*out_stride + n - row_begin] = W[n] . x[t], rounded to BF16 where `round`.
struct LinearJob {
  const Matrix* w = nullptr;
  ColumnOrder order = ColumnOrder::kPlain;  // of the prepared rows
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  const float* const* x = nullptr;  // prepared rows
  std::int64_t tokens = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  bool round = false;
};
// All jobs, split over the threads by cost.
void run_linear(Context& context, std::span<const LinearJob> jobs);

// Several products of the same input. Usage: add() each, then run().
class LinearStep {
 public:
  LinearStep(Context& context, const float* x, std::int64_t tokens, std::int64_t cols,
             std::int64_t stride = 0)
      : context_(context), x_(x), tokens_(tokens), cols_(cols), stride_(stride == 0 ? cols : stride) {}

  // All rows of w: out [tokens, w.rows].
  void add(const Matrix& w, ActQuant act, float* out, bool round);
  void run();

 private:
  Context& context_;
  const float* x_;
  std::int64_t tokens_, cols_, stride_;
  std::vector<InputKind> kinds_;
  std::vector<LinearJob> jobs_;
  std::vector<std::size_t> kind_of_;
};

}  // namespace pivot::simd
