// The middle of an expert (specification 2.7).
#pragma once

namespace pivot::cuda {

// silu(min(g, limit)) clamp(u, -limit, limit) weight, unrounded. limit 0: none.
__device__ __forceinline__ float swiglu(float g, float u, float limit, float weight) {
  if (limit > 0.0f) {
    g = fminf(g, limit);
    u = fminf(fmaxf(u, -limit), limit);
  }
  return g / (1.0f + expf(-g)) * u * weight;
}

}  // namespace pivot::cuda
