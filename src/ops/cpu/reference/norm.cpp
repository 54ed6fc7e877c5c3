#include "ops/cpu/reference/norm.h"

#include <algorithm>
#include <cmath>

namespace pivot::reference {

float mean_square(const float* x, std::int64_t count) {
  constexpr std::int64_t kBlock = 128;
  float total = 0.0f;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    float sum = 0.0f;
    for (std::int64_t i = begin; i < std::min(begin + kBlock, count); ++i) sum += x[i] * x[i];
    total += sum;
  }
  return total / static_cast<float>(count);
}

void rms_norm(const float* x, const float* weight, std::int64_t count, float eps, Rounding round, float* y) {
  const float factor = 1.0f / std::sqrt(mean_square(x, count) + eps);
  for (std::int64_t i = 0; i < count; ++i) {
    const float normalized = x[i] * factor;
    y[i] = round(weight == nullptr ? normalized : normalized * weight[i]);
  }
}

}  // namespace pivot::reference
