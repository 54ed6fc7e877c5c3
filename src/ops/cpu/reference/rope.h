// Rotation of the trailing dims (specification 2.3): adjacent pairs, fp32 angle = fp32(position) * w_i, fp32
// cos/sin.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/reference/rounding.h"

namespace pivot::reference {

// cos and sin of one position, [rope_dims/2] each.
struct RopeAngles {
  std::vector<float> cos, sin;
  RopeAngles(const float* frequencies, std::int64_t pairs, std::int32_t position);
};

// Rotates x[0 .. 2*pairs) by the angles, or back by them.
void rotate(float* x, const RopeAngles& angles, bool inverse, Rounding round);

}  // namespace pivot::reference
