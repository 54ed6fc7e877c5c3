#include "ops/cpu/reference/hyper_connection.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/norm.h"

namespace pivot::reference {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// C[j][k] /= sum_k C[j][k] + eps.
void normalize_rows(float* comb, int streams, float eps) {
  for (int j = 0; j < streams; ++j) {
    float sum = 0.0f;
    for (int k = 0; k < streams; ++k) sum += comb[j * streams + k];
    for (int k = 0; k < streams; ++k) comb[j * streams + k] /= sum + eps;
  }
}

// C[j][k] /= sum_j C[j][k] + eps.
void normalize_columns(float* comb, int streams, float eps) {
  for (int k = 0; k < streams; ++k) {
    float sum = 0.0f;
    for (int j = 0; j < streams; ++j) sum += comb[j * streams + k];
    for (int j = 0; j < streams; ++j) comb[j * streams + k] /= sum + eps;
  }
}

}  // namespace

float round_hc_operand(float x, HcPrecision precision) {
  switch (precision) {
    case HcPrecision::kF32:
      return x;
    case HcPrecision::kBf16:
      return round_bf16(x);
    case HcPrecision::kTf32: {
      const auto bits = std::bit_cast<std::uint32_t>(x);
      if ((bits & 0x7f800000u) == 0x7f800000u) return x;
      return std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
    }
  }
  return x;
}

std::vector<float> hc_mixes(const float* h, std::int64_t tokens, std::int64_t cols, FloatSpan fn, float eps,
                            HcPrecision precision, ThreadPool& pool) {
  const std::int64_t rows = static_cast<std::int64_t>(fn.size()) / cols;
  LinearInput u = plain_input(h, tokens, cols);
  std::vector<float> rounded_fn;
  if (precision != HcPrecision::kF32) {
    for (float& value : u.values) value = round_hc_operand(value, precision);
    rounded_fn.assign(fn.begin(), fn.end());
    for (float& value : rounded_fn) value = round_hc_operand(value, precision);
    fn = rounded_fn;
  }
  std::vector<float> mixes = linear(as_matrix(fn, rows, cols), u, pool);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float factor = 1.0f / std::sqrt(mean_square(h + t * cols, cols) + eps);
    for (std::int64_t r = 0; r < rows; ++r) mixes[static_cast<std::size_t>(t * rows + r)] *= factor;
  }
  return mixes;
}

void hc_pre_weights(const float* mixes, float scale, const float* base, int streams, float eps, float* pre) {
  for (int j = 0; j < streams; ++j) pre[j] = sigmoid(mixes[j] * scale + base[j]) + eps;
}

void hc_sinkhorn(float* comb, int streams, int iters, float eps) {
  for (int j = 0; j < streams; ++j) {
    float* row = comb + j * streams;
    const float maximum = *std::max_element(row, row + streams);
    float sum = 0.0f;
    for (int k = 0; k < streams; ++k) {
      row[k] = std::exp(row[k] - maximum);
      sum += row[k];
    }
    for (int k = 0; k < streams; ++k) row[k] = row[k] / sum + eps;
  }
  normalize_columns(comb, streams, eps);
  for (int iteration = 1; iteration < iters; ++iteration) {
    normalize_rows(comb, streams, eps);
    normalize_columns(comb, streams, eps);
  }
}

void hc_coefficients(const float* mixes, FloatSpan scale, FloatSpan base, int streams, int sinkhorn_iters,
                     float eps, float* pre, float* post, float* comb) {
  PIVOT_CHECK(scale.size() == 3 && base.size() == static_cast<std::size_t>((2 + streams) * streams),
              "scale {}, base {}", scale.size(), base.size());
  hc_pre_weights(mixes, scale[0], base.data(), streams, eps, pre);
  for (int j = 0; j < streams; ++j)
    post[j] = 2.0f * sigmoid(mixes[streams + j] * scale[1] + base[static_cast<std::size_t>(streams + j)]);
  for (int i = 0; i < streams * streams; ++i)
    comb[i] = mixes[2 * streams + i] * scale[2] + base[static_cast<std::size_t>(2 * streams + i)];
  hc_sinkhorn(comb, streams, sinkhorn_iters, eps);
}

void hc_pre(const float* h, const float* pre, int streams, std::int64_t width, Rounding round, float* y) {
  for (std::int64_t i = 0; i < width; ++i) {
    float sum = 0.0f;
    for (int j = 0; j < streams; ++j) sum += pre[j] * h[j * width + i];
    y[i] = round(sum);
  }
}

void hc_post(float* h, const float* o, const float* post, const float* comb, int streams, std::int64_t width,
             Rounding round) {
  std::vector<float> next(static_cast<std::size_t>(streams));
  for (std::int64_t i = 0; i < width; ++i) {
    for (int k = 0; k < streams; ++k) {
      float mixed = 0.0f;
      for (int j = 0; j < streams; ++j) mixed += comb[j * streams + k] * h[j * width + i];
      next[static_cast<std::size_t>(k)] = round(post[k] * o[i] + mixed);
    }
    for (int k = 0; k < streams; ++k) h[k * width + i] = next[static_cast<std::size_t>(k)];
  }
}

}  // namespace pivot::reference
