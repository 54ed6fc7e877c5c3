// One expert's feed-forward (specification 2.7) on the tokens that chose it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "checkpoint/model_weights.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/rounding.h"
#include "ops/knobs.h"

namespace pivot::reference {

// Steps 2-3: v = silu(min(g, limit)) * clamp(u, -limit, limit) * weight. limit <= 0 means no clamp.
float swiglu(float g, float u, float limit, float weight);

// Steps 1-4: y [tokens, d], rounded. route_weights: one per token, or null for the shared expert.
std::vector<float> expert_forward(const ExpertWeights& expert, ActQuant act, const float* x,
                                  std::int64_t tokens, const float* route_weights, float swiglu_limit,
                                  Rounding round, ThreadPool& pool);

}  // namespace pivot::reference
