// What of a seam nothing needs before the next one: `post` and the Sinkhorn iterations of `comb`
// (specification 2.2), some 3 us of dependent divisions that a step of few tokens leaves to a CTA of a later,
// longer kernel.
#pragma once

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/hyper_connection/hyper_connection.h"

namespace pivot::cuda {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Lane j*4+k of 16 holds C[j][k]; every lane of the warp takes part in the shuffles.
__device__ __forceinline__ float sinkhorn(float c, int iters, float eps) {
  const auto row_sum = [](float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  };
  const auto column_sum = [](float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    return v + __shfl_xor_sync(0xffffffffu, v, 8);
  };
  float maximum = fmaxf(c, __shfl_xor_sync(0xffffffffu, c, 1));
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
  c = expf(c - maximum);
  c = c / row_sum(c) + eps;
  c = c / (column_sum(c) + eps);
  for (int i = 1; i < iters; ++i) {
    c = c / (row_sum(c) + eps);
    c = c / (column_sum(c) + eps);
  }
  return c;
}

// One warp a token; lanes 0..3 hold the coefficients of post, 4..19 those of comb.
__device__ __forceinline__ void finish_coefficients(float coefficient, std::int64_t t, int iters, float eps,
                                                    float* post, float* comb) {
  const int lane = threadIdx.x % 32;
  if (lane < kStreams) post[t * kStreams + lane] = 2.0f * sigmoid(coefficient);
  const float c = sinkhorn(__shfl_sync(0xffffffffu, coefficient, kStreams + lane % 16), iters, eps);
  if (lane < 16) comb[t * 16 + lane] = c;
}

// One CTA's part of a kernel that took the tail along, or all CTAs of one of its own: after their wait, like
// any other reader.
__device__ __forceinline__ void run_seam_tail(const SeamTail& tail, int cta = 0, int ctas = 1) {
  wait_for_predecessor();
  release_successor();
  const int lane = threadIdx.x % 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int t = cta * warps + static_cast<int>(threadIdx.x) / 32; t < tail.tokens; t += ctas * warps)
    finish_coefficients(lane < kTailCoefficients ? tail.coefficients[t * kTailCoefficients + lane] : 0.0f, t,
                        tail.iters, tail.eps, tail.post, tail.comb);
}

}  // namespace pivot::cuda
