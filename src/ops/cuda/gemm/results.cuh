// The ends of an item: sums of a warpgroup to memory, a token's rows together. Sums have their tokens side by
// side and their rows over the lanes, results the other way round, so they turn in shared memory
// (stmatrix.trans).
#pragma once

#include "ops/cuda/gemm/product.cuh"
#include "ops/cuda/moe/swiglu.cuh"

namespace pivot::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ float2 unpack_pair(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
// Four 8 x 8 matrices as the sums hold them, transposed: lane l gives the address of row l % 8 of matrix l
// / 8.
__device__ __forceinline__ void store_transposed(std::uint32_t shared, const std::uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared), "r"(m[0]),
               "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}
__device__ __forceinline__ uint4 load_shared16(std::uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

inline constexpr int kTurned = 128;  // tokens that the staging memory of a warpgroup holds

// out[token][64 rows of the warpgroup] = sums * post in BF16, for the first `count` tokens. `out`: 16-byte
// aligned, as is every row.
template <int TOKENS>
__device__ __forceinline__ void store_rows(const float (&sums)[TOKENS / 2], float post, std::uint16_t* out,
                                           std::int64_t stride, int count, const ConsumerPlace& p) {
  const int thread = threadIdx.x % 128;
  // A token is 128 bytes, piece i at i ^ (token % 8).
  const std::uint32_t to = p.staging + (p.lane % 8 + p.lane / 16 * 8) * 128 +
                           (((2 * (p.warp % 4) + p.lane / 8 % 2) ^ (p.lane % 8)) * 16);
  const int token0 = thread / 8, piece = thread % 8;
  const std::uint32_t from = p.staging + token0 * 128 + ((piece ^ (token0 % 8)) * 16);
#pragma unroll
  for (int base = 0; base < TOKENS; base += kTurned) {
    if (base >= count) break;
    warpgroup_barrier(p.group);  // what was there has been read
#pragma unroll
    for (int t = 0; t < kTurned && base + t < TOKENS; t += 16) {
      const int i = (base + t) / 2;  // sums of 8 tokens: 4
      store_transposed(to + t * 128, {round_pair(sums[i] * post, sums[i + 1] * post),
                                      round_pair(sums[i + 2] * post, sums[i + 3] * post),
                                      round_pair(sums[i + 4] * post, sums[i + 5] * post),
                                      round_pair(sums[i + 6] * post, sums[i + 7] * post)});
    }
    warpgroup_barrier(p.group);
#pragma unroll
    for (int t = 0; t < kTurned && base + t < TOKENS; t += 16) {
      const int token = base + t + token0;
      if (token < count)
        *reinterpret_cast<uint4*>(out + token * stride + piece * 8) = load_shared16(from + t * 128);
    }
  }
}

// The same in fp32, straight from the registers: eight rows are a sector.
template <int TOKENS>
__device__ __forceinline__ void store_rows(const float (&sums)[TOKENS / 2], float post, float* out,
                                           std::int64_t stride, int count, const ConsumerPlace& p) {
  float* to = out + 2 * (p.lane % 4) * stride + p.warp % 4 * 16 + p.lane / 4;
#pragma unroll
  for (int i = 0; i < TOKENS / 8; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = 8 * i + k % 2;
      if (token + 2 * (p.lane % 4) < count) to[token * stride + k / 2 * 8] = sums[4 * i + k] * post;
    }
}

// out[token][32 rows of the warpgroup] = SwiGLU, for sums whose low rows are g and whose high rows are u.
// `weights`: of tokens `thread` and `thread` + 128.
template <int TOKENS>
__device__ __forceinline__ void store_swiglu(const float (&sums)[TOKENS / 2], float post_g, float post_u,
                                             float limit, float2 weights, std::uint16_t* out,
                                             std::int64_t stride, int count, const ConsumerPlace& p) {
  const int thread = threadIdx.x % 128;
  const std::uint32_t by_token = p.staging + kTurned * 64;  // fp32 [TOKENS]
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(by_token + 4 * thread), "f"(weights.x) : "memory");
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(by_token + 4 * (thread + 128)), "f"(weights.y) : "memory");
  // A token is 64 bytes, piece i at i ^ (token / 2 % 4): eight tokens meet every bank once.
  const std::uint32_t to = p.staging + p.lane * 64 + (((p.warp % 4) ^ (p.lane / 2 % 4)) * 16);
  const int token0 = thread / 4, piece = thread % 4;
  const std::uint32_t from = p.staging + token0 * 64 + ((piece ^ (token0 / 2 % 4)) * 16);
#pragma unroll
  for (int base = 0; base < TOKENS; base += kTurned) {
    if (base >= count) break;
    warpgroup_barrier(p.group);  // the weights are there, and what was staged has been read
#pragma unroll
    for (int t = 0; t < kTurned && base + t < TOKENS; t += 32) {
      std::uint32_t m[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = (base + t + 8 * j) / 2;
        float2 w;
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                     : "=f"(w.x), "=f"(w.y)
                     : "r"(by_token + 4 * (base + t + 8 * j + 2 * (p.lane % 4)))
                     : "memory");
        const float2 g = unpack_pair(round_pair(sums[i] * post_g, sums[i + 1] * post_g));
        const float2 u = unpack_pair(round_pair(sums[i + 2] * post_u, sums[i + 3] * post_u));
        m[j] = round_pair(swiglu(g.x, u.x, limit, w.x), swiglu(g.y, u.y, limit, w.y));
      }
      store_transposed(to + t * 64, m);
    }
    warpgroup_barrier(p.group);
#pragma unroll
    for (int t = 0; t < kTurned && base + t < TOKENS; t += 32) {
      const int token = base + t + token0;
      if (token < count)
        *reinterpret_cast<uint4*>(out + token * stride + piece * 8) = load_shared16(from + t * 64);
    }
  }
}

#endif

}  // namespace pivot::cuda
