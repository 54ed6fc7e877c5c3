// The router (specification 2.7).
#pragma once

#include <cstdint>
#include <span>

namespace pivot::reference {

// sqrt(ln(1 + e^z)), with ln(1 + e^z) = z for z > 20.
float sqrt_softplus(float z);

struct RouterRule {
  int experts_per_token = 0;
  bool normalize = true;  // norm_topk_prob
  float route_scale = 1.0f;
};

// One token. z: [E] router logits. bias: [E], or empty with `table` = its hash-table row [K]. ids ascend;
// weights belong to them. Ties in p + bias go to the lower id, NaN ranks below every number. Returns the
// margin: the K-th minus the (K+1)-th selection score, +infinity where nothing was left out or the table
// chose.
float route_token(std::span<const float> z, std::span<const float> bias, std::span<const std::int32_t> table,
                  const RouterRule& rule, std::int32_t* ids, float* weights);

}  // namespace pivot::reference
