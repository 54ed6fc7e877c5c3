// hc_seam and hc_head (specification 2.2).
//
// A seam reads and writes h once: tokens go through hc_post, the mixes, the Sinkhorn steps, hc_pre and the
// norm in blocks that stay in the cache. With few tokens the fn product, the only part of weight, is split
// over the threads instead.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/cpu/reference/hyper_connection.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/simd/linear.h"

namespace pivot::simd {
namespace {

constexpr std::int64_t kBlockTokens = 48;

// fn under the mhc knob, as a matrix; rounded copies lie in scratch memory.
Matrix rounded_fn(Context& context, FloatSpan fn, std::int64_t cols, HcPrecision precision) {
  const auto rows = static_cast<std::int64_t>(fn.size()) / cols;
  if (precision == HcPrecision::kF32) return reference::as_matrix(fn, rows, cols);
  auto* copy = context.scratch.take<float>(rows * cols);
  for (std::size_t i = 0; i < fn.size(); ++i) copy[i] = reference::round_hc_operand(fn[i], precision);
  return reference::as_matrix({copy, fn.size()}, rows, cols);
}

// One instance of steps 1-3 for a block of tokens: h rows in, scaled mixes out.
class Mixer {
 public:
  Mixer(Context& context, FloatSpan fn, std::int64_t cols, float eps, HcPrecision precision)
      : kernels_(context.kernels),
        fn_(rounded_fn(context, fn, cols, precision)),
        eps_(eps),
        precision_(precision),
        in_place_(precision == HcPrecision::kF32 && padded_columns(cols) == cols) {}

  const Matrix& fn() const { return fn_; }
  std::int64_t rows() const { return fn_.rows; }
  bool in_place() const { return in_place_; }

  // The row that the product reads: h itself, or a padded and rounded copy.
  const float* operand(const float* h, float* copy) const {
    if (in_place_) return h;
    kernels_.permute(h, fn_.cols, ColumnOrder::kPlain, copy);
    if (precision_ != HcPrecision::kF32)
      for (std::int64_t i = 0; i < fn_.cols; ++i) copy[i] = reference::round_hc_operand(copy[i], precision_);
    return copy;
  }
  void normalize(const float* h, float* mixes) const {
    const float mean = kernels_.sum_squares(h, fn_.cols, false) / static_cast<float>(fn_.cols);
    const float factor = 1.0f / std::sqrt(mean + eps_);
    for (std::int64_t r = 0; r < fn_.rows; ++r) mixes[r] *= factor;
  }

 private:
  const Kernels& kernels_;
  Matrix fn_;
  float eps_;
  HcPrecision precision_;
  bool in_place_;
};

void norm_row(const Kernels& kernels, FloatSpan norm, float eps, std::int64_t width, bool round, float* x) {
  const float mean = kernels.sum_squares(x, width, false) / static_cast<float>(width);
  kernels.scale_row(x, 1.0f / std::sqrt(mean + eps), norm.data(), width, round, x);
}

}  // namespace

void hc_seam(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const HcSeamParams& p) {
  const ModelConfig& config = *layer.config;
  const Kernels& kernels = context.kernels;
  const bool round = rounds(knobs);
  const int streams = static_cast<int>(config.hc_mult);
  const std::int64_t width = config.hidden_size, cols = streams * width;
  const auto norm_eps = static_cast<float>(config.rms_norm_eps);
  const Mixer mixer(context, p.hc->fn, cols, norm_eps, knobs.mhc);
  const std::int64_t rows = mixer.rows(), padded = padded_columns(cols);
  float* h = floats(p.h);

  const auto finish_post = [&](std::int64_t t, std::int64_t begin, std::int64_t end) {
    if (p.sublayer_out == nullptr) return;
    kernels.hc_post(h + t * cols, floats(p.sublayer_out) + t * width, p.post + t * streams,
                    p.comb + t * streams * streams, streams, width, begin, end, round);
  };
  const auto finish_pre = [&](std::int64_t begin, std::int64_t end, float* mixes, float* pre) {
    for (std::int64_t t = begin; t < end; ++t) mixer.normalize(h + t * cols, mixes + (t - begin) * rows);
    for (std::int64_t t = begin; t < end; t += kLanes) {
      const std::int64_t count = std::min(kLanes, end - t);
      kernels.hc_coefficients(mixes + (t - begin) * rows, count, p.hc->scale.data(), p.hc->base.data(),
                              streams, static_cast<int>(config.hc_sinkhorn_iters),
                              static_cast<float>(config.hc_eps), pre, p.post + t * streams,
                              p.comb + t * streams * streams);
      for (std::int64_t i = t; i < t + count; ++i) {
        float* x = floats(p.x) + i * width;
        kernels.hc_pre(h + i * cols, pre + (i - t) * streams, streams, width, round, x);
        norm_row(kernels, p.norm, norm_eps, width, round, x);
      }
    }
  };

  if (batch.num_tokens < 4 * context.pool.size()) {
    const std::int64_t tokens = batch.num_tokens;
    auto** x = context.scratch.take<const float*>(tokens);
    auto* copies = context.scratch.take<float>(mixer.in_place() ? 0 : tokens * padded);
    auto* mixes = context.scratch.take<float>(tokens * rows);
    auto* pre = context.scratch.take<float>(kLanes * streams);
    for (std::int64_t t = 0; t < tokens; ++t) {
      finish_post(t, 0, width);
      x[t] = mixer.operand(h + t * cols, copies + t * padded);
    }
    const LinearJob job{&mixer.fn(), ColumnOrder::kPlain, 0, rows, x, tokens, mixes, rows, false};
    run_linear(context, {&job, 1});
    finish_pre(0, tokens, mixes, pre);
    return;
  }
  context.pool.for_ranges(batch.num_tokens, kLanes, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> mixes(static_cast<std::size_t>(kBlockTokens * rows));
    std::vector<float> pre(static_cast<std::size_t>(kLanes * streams));
    std::vector<float> copies(static_cast<std::size_t>(mixer.in_place() ? 0 : kBlockTokens * padded));
    const float* x[kBlockTokens];
    for (std::int64_t t = begin; t < end; t += kBlockTokens) {
      const std::int64_t count = std::min(kBlockTokens, end - t);
      for (std::int64_t i = 0; i < count; ++i) {
        finish_post(t + i, 0, width);
        x[i] = mixer.operand(h + (t + i) * cols, copies.data() + i * padded);
      }
      kernels.linear(mixer.fn(), ColumnOrder::kPlain, 0, rows, x, count, mixes.data(), rows, false);
      finish_pre(t, t + count, mixes.data(), pre.data());
    }
  });
}

void hc_head(Context& context, const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
             const HcHeadParams& p) {
  const Kernels& kernels = context.kernels;
  const bool round = rounds(knobs);
  const int streams = static_cast<int>(config.hc_mult);
  const std::int64_t width = config.hidden_size, cols = streams * width;
  float* h = floats(p.h);
  if (p.sublayer_out != nullptr)
    context.for_each(batch.num_tokens, [&](std::int64_t t) {
      kernels.hc_post(h + t * cols, floats(p.sublayer_out) + t * width, p.post + t * streams,
                      p.comb + t * streams * streams, streams, width, 0, width, round);
    });
  const auto norm_eps = static_cast<float>(config.rms_norm_eps);
  const Mixer mixer(context, p.hc->fn, cols, norm_eps, knobs.mhc);
  const std::int64_t rows = mixer.rows(), padded = padded_columns(cols);
  auto** x = context.scratch.take<const float*>(p.num_rows);
  auto* copies = context.scratch.take<float>(mixer.in_place() ? 0 : p.num_rows * padded);
  auto* mixes = context.scratch.take<float>(p.num_rows * rows);
  for (std::int64_t i = 0; i < p.num_rows; ++i)
    x[i] = mixer.operand(h + p.rows[i] * cols, copies + i * padded);
  const LinearJob job{&mixer.fn(), ColumnOrder::kPlain, 0, rows, x, p.num_rows, mixes, rows, false};
  run_linear(context, {&job, 1});
  context.for_each(p.num_rows, [&](std::int64_t i) {
    const float* row = h + p.rows[i] * cols;
    mixer.normalize(row, mixes + i * rows);
    float pre[4];
    reference::hc_pre_weights(mixes + i * rows, p.hc->scale[0], p.hc->base.data(), streams,
                              static_cast<float>(config.hc_eps), pre);
    float* out = floats(p.x) + i * width;
    kernels.hc_pre(row, pre, streams, width, round, out);
    norm_row(kernels, p.norm, norm_eps, width, round, out);
  });
}

}  // namespace pivot::simd
