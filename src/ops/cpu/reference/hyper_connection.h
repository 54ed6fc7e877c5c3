// Hyper-connections (specification 2.2), one function per step group.
//
// S streams of d values; h is [S, d] of one token (stream-major, as flattened for fn).
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "checkpoint/model_weights.h"
#include "ops/cpu/reference/rounding.h"
#include "ops/knobs.h"

namespace pivot::reference {

// Steps 1-3: m [tokens, rows] = (fn . u) * 1/sqrt(mean(u^2) + eps), u = h flattened, fn [rows, cols], cols =
// S*d.
std::vector<float> hc_mixes(const float* h, std::int64_t tokens, std::int64_t cols, FloatSpan fn, float eps,
                            HcPrecision precision, ThreadPool& pool);

// Step 4 and hc_head: pre[j] = sigmoid(m[j]*scale + base[j]) + eps.
void hc_pre_weights(const float* mixes, float scale, const float* base, int streams, float eps, float* pre);

// Steps 4-6 for one token: mixes [(2+S)*S] -> pre [S], post [S], comb [S][S] (row index first, used
// transposed).
void hc_coefficients(const float* mixes, FloatSpan scale, FloatSpan base, int streams, int sinkhorn_iters,
                     float eps, float* pre, float* post, float* comb);
// Step 6 on an [S][S] matrix of logits, in place.
void hc_sinkhorn(float* comb, int streams, int iters, float eps);

// Step 7: y[i] = round(sum_j pre[j] * h[j][i]).
void hc_pre(const float* h, const float* pre, int streams, std::int64_t width, Rounding round, float* y);
// h'[k][i] = round(post[k]*o[i] + sum_j comb[j][k] * h[j][i]), in place.
void hc_post(float* h, const float* o, const float* post, const float* comb, int streams, std::int64_t width,
             Rounding round);

// x with the operand precision of knob mhc: TF32 keeps 10 mantissa bits (nearest even).
float round_hc_operand(float x, HcPrecision precision);

}  // namespace pivot::reference
