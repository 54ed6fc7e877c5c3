// index_q[h] = Q(bf(H rope(index_q[h]))) for many tokens.
//
// Bytes: index_q read and written once, 32 KB a token. query.cu gives a head a warp, which moves every value
// through 47 shuffles and rounds it by comparisons: 650 instructions a head, six times what the bytes take.
// Here a lane keeps 32 neighbouring values, an FP4 group: four lanes are a head, the Hadamard transform
// leaves a lane only in its last stages, and a CTA computes the angles of its token once. Every sum has the
// same two operands as there, so the bits are the same.
#include "ops/cuda/query/index_heads.h"

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOwn = kIndexFp4Group;  // neighbouring values of a lane
constexpr int kRope = 64;

// round_e2m1(): adding 1.5 2^23 times a step rounds to a multiple of it, ties to even. Steps are 0.5 below 2,
// 1 below 4 and 2 above, and intervals begin at even codes. NaN saturates, as there.
__device__ __forceinline__ float round_fp4(float x, float scale, float inverse) {
  const float v = x * inverse, a = fabsf(v);
  const float shift = a < 2.0f ? 0x1.8p+22f : a < 4.0f ? 0x1.8p+23f : 0x1.8p+24f;
  return copysignf(fminf((a + shift) - shift, 6.0f), v) * scale;
}

template <int LANES>
__global__ void __launch_bounds__(kThreads) index_heads_kernel(const __grid_constant__ QueryArguments a) {
  __shared__ float2 rotation[kRope / 2];  // cosine and sine
  wait_for_predecessor();
  release_successor();
  const int token = blockIdx.x, which = threadIdx.x % LANES;
  if (threadIdx.x < kRope / 2) {
    float s, c;
    sincosf(static_cast<float>(a.batch.positions[token]) * a.frequencies[threadIdx.x], &s, &c);
    rotation[threadIdx.x] = {c, s};
  }
  __syncthreads();
  // Heads come in whole warps.
  for (int head = threadIdx.x / LANES; head < a.index_heads; head += kThreads / LANES) {
    auto* at = reinterpret_cast<uint4*>(
        static_cast<BF16*>(a.index_q) +
        (static_cast<std::int64_t>(token) * a.index_heads + head) * (LANES * kOwn) + which * kOwn);
    float v[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn / 8; ++i) {
      const uint4 raw = at[i];
      const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        v[8 * i + 2 * k] = __uint_as_float(words[k] << 16);
        v[8 * i + 2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
      }
    }
    if (which >= LANES - kRope / kOwn) {
      const float2* own = rotation + (which - (LANES - kRope / kOwn)) * (kOwn / 2);
#pragma unroll
      for (int j = 0; j < kOwn / 2; ++j) {
        const float x = v[2 * j], y = v[2 * j + 1];
        v[2 * j] = round_bf16(x * own[j].x - y * own[j].y);
        v[2 * j + 1] = round_bf16(x * own[j].y + y * own[j].x);
      }
    }
#pragma unroll
    for (int step = 1; step < kOwn; step *= 2)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if ((i & step) != 0) continue;
        const float x = v[i], y = v[i + step];
        v[i] = x + y;
        v[i + step] = x - y;
      }
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float other = __shfl_xor_sync(0xffffffffu, v[i], step);
        v[i] = (which & step) == 0 ? v[i] + other : other - v[i];
      }
    const float norm = 1.0f / sqrtf(static_cast<float>(LANES * kOwn));
    float most = 0.0f;
#pragma unroll
    for (float& x : v) {
      x = round_bf16(x * norm);
      most = fmaxf(most, fabsf(x));
    }
    if (a.index_rounding == IndexRounding::kFp4) {
      const std::uint8_t byte = fp4_group_scale(most);
      const float scale = e8m0_to_float(byte), inverse = inverse_scale(byte);
#pragma unroll
      for (float& x : v) x = round_fp4(x, scale, inverse);
    } else if (a.index_rounding == IndexRounding::kFp8) {
      const std::uint8_t byte = fp8_group_scale(group_amax(most, LANES));
#pragma unroll
      for (float& x : v) x = round_e4m3(x, byte);
    }
#pragma unroll
    for (int i = 0; i < kOwn / 8; ++i)
      at[i] = {pack_bf16x2(v[8 * i], v[8 * i + 1]), pack_bf16x2(v[8 * i + 2], v[8 * i + 3]),
               pack_bf16x2(v[8 * i + 4], v[8 * i + 5]), pack_bf16x2(v[8 * i + 6], v[8 * i + 7])};
  }
}

}  // namespace

bool index_heads_takes(const QueryArguments& a) {
  return a.index_q != nullptr && a.rope == kRope && (a.index_dim == 128 || a.index_dim == 64) &&
         a.index_heads % 16 == 0;
}

void launch_index_heads(const QueryArguments& a, cudaStream_t stream) {
  require(index_heads_takes(a), "index heads of 128 or 64 dims, 64 of which rotate");
  launch({dim3(static_cast<unsigned>(a.batch.num_tokens)), dim3(kThreads), 0, stream, true, "index_heads"},
         a.index_dim == 128 ? index_heads_kernel<4> : index_heads_kernel<2>, a);
}

}  // namespace pivot::cuda
