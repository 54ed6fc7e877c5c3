#include "ops/cpu/reference/norm.h"

#include <algorithm>
#include <cmath>

namespace pivot::reference {

namespace {

constexpr std::int64_t kBlock = 128;

}  // namespace

float mean_square(const float* x, std::int64_t count) {
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

void head_rms(float* head, std::int64_t count, float eps, Rounding round) {
  float total = 0.0f;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    float sum = 0.0f;
    for (std::int64_t i = begin; i < std::min(begin + kBlock, count); ++i) sum += round(head[i] * head[i]);
    total += sum;
  }
  const float mean = round(total / static_cast<float>(count));
  const float factor = round(1.0f / std::sqrt(round(mean + eps)));
  for (std::int64_t i = 0; i < count; ++i) head[i] = round(head[i] * factor);
}

}  // namespace pivot::reference
