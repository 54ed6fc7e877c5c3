// The second half of a seam (specification 2.2): sums of the partial products, the coefficients, the weighted
// sum of the streams and its norm.
#pragma once

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/hyper_connection/tail.cuh"

namespace pivot::cuda {

// One token by a CTA: WARPS warps for the stream sum and the norm, a thread owning the same PIECES times four
// columns throughout, and one more for the coefficients that the norm does not need.
template <int ROWS, int PIECES, int WARPS>
struct Finish {
  static constexpr int kThreads = WARPS * 32, kAllThreads = kThreads + 32;
  static constexpr int kPieceColumns = kThreads * 4;
  struct Shared {
    float mix[ROWS + 1], pre[kStreams], sums[WARPS];
  };

  float4 norm[PIECES] = {};
  float base = 0.0f, scale = 0.0f, tail_base = 0.0f, tail_scale = 0.0f;

  static __device__ __forceinline__ bool owns_tail() { return ROWS == kSeamRows && threadIdx.x >= kThreads; }
  // What needs no result of a kernel before.
  __device__ __forceinline__ void load_weights(const SeamArguments& a) {
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < kThreads)
#pragma unroll
      for (int k = 0; k < PIECES; ++k)
        if (const int i = k * kPieceColumns + static_cast<int>(threadIdx.x) * 4; i < a.shape.width)
          norm[k] = __ldg(reinterpret_cast<const float4*>(a.norm + i));
    if (threadIdx.x < kStreams) {
      base = __ldg(a.base + threadIdx.x);
      scale = __ldg(a.scale);
    }
    if (owns_tail()) {
      tail_base = __ldg(a.base + kStreams + min(lane, kTailCoefficients - 1));  // post, then comb
      tail_scale = __ldg(a.scale + (lane < kStreams ? 1 : 2));
    }
  }
  // Token t into row `out_row` of x.
  __device__ __forceinline__ void run(const SeamArguments& a, int t, int out_row, int mix_ctas,
                                      Shared& shared) {
    const int width = a.shape.width, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const BF16* h = static_cast<const BF16*>(a.h) + static_cast<std::int64_t>(t) * kStreams * width;
    uint2 streams[PIECES][kStreams] = {};
    if (threadIdx.x < kThreads)
#pragma unroll
      for (int k = 0; k < PIECES; ++k) {
        const int i = k * kPieceColumns + static_cast<int>(threadIdx.x) * 4;
        if (i < width)
#pragma unroll
          for (int j = 0; j < kStreams; ++j)
            streams[k][j] = *reinterpret_cast<const uint2*>(h + j * width + i);
      }
    const float* partials = a.partials + static_cast<std::int64_t>(t) * mix_ctas * (ROWS + 1);
    constexpr int kWarps = kAllThreads / 32, kRounds = (ROWS + kWarps) / kWarps;
    float sums[kRounds] = {};
#pragma unroll
    for (int k = 0; k < kRounds; ++k)  // all loads before the first shuffle waits for one
      if (const int r = warp + k * kWarps; r <= ROWS)
        for (int c = lane; c < mix_ctas; c += 32) sums[k] += partials[r * mix_ctas + c];
#pragma unroll
    for (int k = 0; k < kRounds; ++k) {
      const float s = warp_sum(sums[k]);
      if (const int r = warp + k * kWarps; lane == 0 && r <= ROWS) shared.mix[r] = s;
    }
    __syncthreads();
    const float g = 1.0f / sqrtf(shared.mix[ROWS] / static_cast<float>(kStreams * width) + a.shape.norm_eps);
    if (threadIdx.x < kStreams)
      shared.pre[threadIdx.x] = sigmoid(shared.mix[threadIdx.x] * g * scale + base) + a.shape.hc_eps;
    if (owns_tail()) {
      const float coefficient =
          shared.mix[kStreams + min(lane, kTailCoefficients - 1)] * g * tail_scale + tail_base;
      if (a.coefficients == nullptr)
        finish_coefficients(coefficient, t, a.shape.sinkhorn_iters, a.shape.hc_eps, a.post, a.comb);
      else if (lane < kTailCoefficients)
        a.coefficients[t * kTailCoefficients + lane] = coefficient;
    }
    if (threadIdx.x >= kThreads) return;
    barrier();
    float y[PIECES][4], square = 0.0f;
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
      float sum[4] = {};
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const uint2 raw = streams[k][j];
        sum[0] += shared.pre[j] * __uint_as_float(raw.x << 16);
        sum[1] += shared.pre[j] * __uint_as_float(raw.x & 0xffff0000u);
        sum[2] += shared.pre[j] * __uint_as_float(raw.y << 16);
        sum[3] += shared.pre[j] * __uint_as_float(raw.y & 0xffff0000u);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y[k][i] = round_bf16(sum[i]);
        square += y[k][i] * y[k][i];
      }
    }
    square = warp_sum(square);
    if (lane == 0) shared.sums[warp] = square;
    barrier();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += shared.sums[w];
    const float factor = 1.0f / sqrtf(total / static_cast<float>(width) + a.shape.norm_eps);
    const std::int64_t out = static_cast<std::int64_t>(out_row) * width;
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {  // a warp's 128 columns are one FP8 group
      const int i = k * kPieceColumns + static_cast<int>(threadIdx.x) * 4;
      if (i >= width) break;  // the same for the whole warp
      const float v[4] = {round_bf16(y[k][0] * factor * norm[k].x), round_bf16(y[k][1] * factor * norm[k].y),
                          round_bf16(y[k][2] * factor * norm[k].z), round_bf16(y[k][3] * factor * norm[k].w)};
      *reinterpret_cast<uint2*>(static_cast<BF16*>(a.x) + out + i) =
          uint2{pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3])};
      if (a.x_values == nullptr) continue;
      float amax = 0.0f;
#pragma unroll
      for (float value : v) amax = fmaxf(amax, fabsf(value));
      const std::uint8_t byte = fp8_group_scale(group_amax(amax, 32));
      *reinterpret_cast<uint2*>(a.x_values + out + i) = quantize_fp8x4(v, byte);
      if (lane == 0) a.x_scales[(out + i) / 128] = e8m0_to_float(byte);
    }
  }

 private:
  static __device__ __forceinline__ void barrier() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
};

}  // namespace pivot::cuda
