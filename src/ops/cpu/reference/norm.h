// rms(x, w, eps) of specification 2.0: fp32 throughout, one rounding at the end.
#pragma once

#include <cstdint>

#include "ops/cpu/reference/rounding.h"

namespace pivot::reference {

// mean(x^2) in fp32: blocks of 128 left to right, then the blocks left to right.
float mean_square(const float* x, std::int64_t count);
// y[i] = round(x[i] * (1/sqrt(mean(x^2) + eps)) * weight[i]); weight null means none. y may be x.
void rms_norm(const float* x, const float* weight, std::int64_t count, float eps, Rounding round, float* y);

// Per-head RMS of q without a weight (specification 2.4 step 3), in place, with the reference's own
// roundings: squares, mean, +eps, reciprocal root and product are each rounded. Back-ends that keep the
// statistic in fp32 and round once differ by up to 1 BF16 ulp in about a third of the values.
void head_rms(float* head, std::int64_t count, float eps, Rounding round);

}  // namespace pivot::reference
