#include "ops/cpu/reference/rope.h"

#include <cmath>

namespace pivot::reference {

RopeAngles::RopeAngles(const float* frequencies, std::int64_t pairs, std::int32_t position)
    : cos(static_cast<std::size_t>(pairs)), sin(static_cast<std::size_t>(pairs)) {
  for (std::size_t i = 0; i < cos.size(); ++i) {
    // The product is rounded to fp32 before the sine: more precise angles would differ from the reference.
    const float angle = static_cast<float>(position) * frequencies[i];
    cos[i] = std::cos(angle);
    sin[i] = std::sin(angle);
  }
}

void rotate(float* x, const RopeAngles& angles, bool inverse, Rounding round) {
  for (std::size_t i = 0; i < angles.cos.size(); ++i) {
    const float c = angles.cos[i];
    const float s = inverse ? -angles.sin[i] : angles.sin[i];
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = round(a * c - b * s);
    x[2 * i + 1] = round(a * s + b * c);
  }
}

}  // namespace pivot::reference
