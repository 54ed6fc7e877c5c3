// rms(x, w, eps) of specification 2.0: fp32 throughout, one rounding at the end.
#pragma once

#include <cstdint>

#include "ops/cpu/reference/rounding.h"

namespace pivot::reference {

// mean(x^2) in fp32: blocks of 128 left to right, then the blocks left to right.
float mean_square(const float* x, std::int64_t count);
// y[i] = round(x[i] * (1/sqrt(mean(x^2) + eps)) * weight[i]); weight null means none. y may be x.
void rms_norm(const float* x, const float* weight, std::int64_t count, float eps, Rounding round, float* y);

}  // namespace pivot::reference
