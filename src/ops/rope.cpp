#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace pivot {
namespace {

// The (fractional) frequency index that turns `rotations` times over the original context.
double correction_index(const RopeConfig& rope, std::int64_t rope_dims, double rotations) {
  return static_cast<double>(rope_dims) *
         std::log(static_cast<double>(rope.original_max_position_embeddings) /
                  (2.0 * std::numbers::pi * rotations)) /
         (2.0 * std::log(rope.theta));
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, std::int64_t rope_dims) {
  PIVOT_CHECK(rope_dims > 0 && rope_dims % 2 == 0, "rope_dims {}", rope_dims);
  const auto pairs = static_cast<std::size_t>(rope_dims / 2);
  std::vector<float> frequencies(pairs);
  // The power is taken in double and rounded once; everything after it is the reference's fp32 arithmetic,
  // because the angle at a large position magnifies the last bit of w_i.
  for (std::size_t i = 0; i < pairs; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(rope_dims);
    frequencies[i] = 1.0f / static_cast<float>(std::pow(rope.theta, exponent));
  }
  if (!rope.factor) return frequencies;

  const double last = static_cast<double>(rope_dims - 1);
  const double low = std::clamp(std::floor(correction_index(rope, rope_dims, rope.beta_fast)), 0.0, last);
  double high = std::clamp(std::ceil(correction_index(rope, rope_dims, rope.beta_slow)), 0.0, last);
  if (high == low) high += 0.001;  // a step instead of a ramp, without dividing by zero
  const auto factor = static_cast<float>(*rope.factor);
  for (std::size_t i = 0; i < pairs; ++i) {
    const float ramp =
        static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    const float keep = 1.0f - ramp;
    frequencies[i] = frequencies[i] / factor * (1.0f - keep) + frequencies[i] * keep;
  }
  return frequencies;
}

}  // namespace pivot
