#include "ops/cpu/reference/expert.h"

#include <algorithm>
#include <cmath>

namespace pivot::reference {

float swiglu(float g, float u, float limit, float weight) {
  if (limit > 0.0f) {
    g = std::min(g, limit);
    u = std::clamp(u, -limit, limit);
  }
  return g / (1.0f + std::exp(-g)) * u * weight;
}

std::vector<float> expert_forward(const ExpertWeights& expert, ActQuant act, const float* x,
                                  std::int64_t tokens, const float* route_weights, float swiglu_limit,
                                  Rounding round, ThreadPool& pool) {
  const std::int64_t inner = expert.w1.rows;
  const LinearInput input = linear_input(expert.w1, act, x, tokens, expert.w1.cols);
  const std::vector<float> g = linear(expert.w1, input, round, pool);
  // w1 and w3 share one set of codes unless the checkpoint gives them different formats or input scales.
  const bool same_input =
      expert.w3.format == expert.w1.format && expert.w3.input_scale == expert.w1.input_scale;
  const std::vector<float> u = linear(
      expert.w3, same_input ? input : linear_input(expert.w3, act, x, tokens, expert.w3.cols), round, pool);
  std::vector<float> v(g.size());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float weight = route_weights == nullptr ? 1.0f : route_weights[t];
    for (std::int64_t i = t * inner; i < (t + 1) * inner; ++i) {
      const auto at = static_cast<std::size_t>(i);
      v[at] = round(swiglu(g[at], u[at], swiglu_limit, weight));
    }
  }
  return linear(expert.w2, linear_input(expert.w2, act, v.data(), tokens, inner), round, pool);
}

}  // namespace pivot::reference
