// numeric/formats.h on the device, plus the group roundings that a warp does together.
//
// formats.h is constexpr and compiled for the device as it stands (--expt-relaxed-constexpr): one definition
// of every rounding for both sides. Its tables are host memory, so the one table look-up, E2M1 decoding, is
// arithmetic here.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "numeric/formats.h"
#include "ops/cuda/device/ptx.cuh"

namespace pivot::cuda {

__device__ __forceinline__ float e2m1_value(std::uint32_t code) {
  const std::uint32_t magnitude = code & 7u;
  const std::uint32_t bits =
      magnitude >= 2 ? ((magnitude >> 1) + 126u) << 23 | (magnitude & 1u) << 22 : magnitude * 0x3f000000u;
  return __uint_as_float(bits | (code & 8u) << 28);
}

// numeric/formats.h in one instruction. A NaN becomes the canonical one.
__device__ __forceinline__ BF16 to_bf16(float x) {
  return BF16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
__device__ __forceinline__ float round_bf16(float x) { return to_float(to_bf16(x)); }

__device__ __forceinline__ float load_bf16(const void* p, std::int64_t i) {
  return to_float(static_cast<const BF16*>(p)[i]);
}
__device__ __forceinline__ void store_bf16(void* p, std::int64_t i, float x) {
  static_cast<BF16*>(p)[i] = to_bf16(x);
}

__device__ __forceinline__ std::uint32_t pack_bf16x2(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Maximum of |x| over aligned groups of `width` lanes (a power of two, at most 32). NaN elements are left
// out, as in numeric/quantize.cpp.
__device__ __forceinline__ float group_amax(float x, int width) {
  float a = fabsf(x);
  if (!(a == a)) a = 0.0f;
  for (int step = width / 2; step > 0; step /= 2) a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, step));
  return a;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// 1 / e8m0_to_float(byte), exact: multiplying by it is dividing by the scale. byte >= 1.
__device__ __forceinline__ float inverse_scale(std::uint8_t byte) {
  return e8m0_to_float(byte == kE8m0Nan ? kE8m0Nan : static_cast<std::uint8_t>(254 - byte));
}
// Four values of an FP8 group (specification 3.3) as E4M3 code values in F16, under the group's scale byte.
__device__ __forceinline__ uint2 quantize_fp8x4(const float (&v)[4], std::uint8_t byte) {
  const float inverse = inverse_scale(byte);
  return {e4m3x2_to_f16x2(f32x2_to_e4m3x2(v[0] * inverse, v[1] * inverse)),
          e4m3x2_to_f16x2(f32x2_to_e4m3x2(v[2] * inverse, v[3] * inverse))};
}

// x rounded to E4M3 (E2M1) with the E8M0 scale `byte` and back; exact products.
__device__ __forceinline__ float round_e4m3(float x, std::uint8_t byte) {
  const std::uint32_t value = e4m3x2_to_f16x2(f32x2_to_e4m3x2(x * inverse_scale(byte), 0.0f));
  return __half2float(__ushort_as_half(static_cast<unsigned short>(value & 0xffffu))) * e8m0_to_float(byte);
}
__device__ __forceinline__ float round_e2m1(float x, std::uint8_t byte) {
  const float scale = e8m0_to_float(byte);
  return e2m1_value(float_to_e2m1(x / scale)) * scale;
}

// Sum over the block in a fixed order; every thread gets it. `scratch` holds 32 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

}  // namespace pivot::cuda
