// q[h] = rope(bf(q[h] / rms(q[h]))), the rms in BF16 steps;  index_q[h] = Q(bf(H rope(index_q[h]))).
//
// One warp a head: head_dim / 32 values a lane, lane l holding values l, l + 32, ... so that a rotary pair is
// exchanged with the neighbouring lane and a Hadamard stage is either a shuffle (step < 32) or between a
// lane's own values.
#include "ops/cuda/query/query.h"

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/query/index_heads.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

// Angles of a head's rotary tail: element 32 i + lane of its last ROPE / 32 groups of 32. From the step's
// description alone, so ahead of the wait for the product.
constexpr int kMaxRopeGroups = 4;
struct Angles {
  float sine[kMaxRopeGroups], cosine[kMaxRopeGroups];

  __device__ __forceinline__ Angles(int rope, float position, const float* frequencies) {
#pragma unroll
    for (int i = 0; i < kMaxRopeGroups; ++i)
      if (i * 32 < rope)
        sincosf(position * frequencies[(i * 32 + static_cast<int>(threadIdx.x) % 32) / 2], &sine[i],
                &cosine[i]);
  }
};
// v[i] is element 32 i + lane.
template <int N>
__device__ __forceinline__ void rotate(float (&v)[N], int rope, const Angles& angles) {
  const bool even = threadIdx.x % 2 == 0;
#pragma unroll
  for (int i = 0; i < kMaxRopeGroups && i < N; ++i) {  // the i-th group from the end of the widest tail
    const int at = N - 1 - i, group = rope / 32 - 1 - i;
    if (group < 0) continue;
    const float partner = __shfl_xor_sync(0xffffffffu, v[at], 1);
    float s = angles.sine[0], c = angles.cosine[0];
#pragma unroll
    for (int k = 1; k < kMaxRopeGroups; ++k)
      if (k == group) s = angles.sine[k], c = angles.cosine[k];
    v[at] = round_bf16(even ? v[at] * c - partner * s : partner * s + v[at] * c);
  }
}

template <int N>
__device__ void attention_head(const QueryArguments& a, std::int64_t head, const Angles& angles) {
  if (head >= static_cast<std::int64_t>(a.batch.num_tokens) * a.heads) return;
  const int lane = threadIdx.x % 32;
  BF16* q = static_cast<BF16*>(a.q) + head * (N * 32);
  float v[N], square = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v[i] = to_float(q[i * 32 + lane]);
    square += round_bf16(v[i] * v[i]);  // BF16 steps, unlike the other norms (specification 2.4 step 3)
  }
  const float mean = round_bf16(warp_sum(square) / static_cast<float>(N * 32));
  const float factor = round_bf16(1.0f / sqrtf(round_bf16(mean + a.eps)));
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = round_bf16(v[i] * factor);
  rotate<N>(v, a.rope, angles);
#pragma unroll
  for (int i = 0; i < N; ++i) q[i * 32 + lane] = to_bf16(v[i]);
}

template <int N>
__device__ void index_head(const QueryArguments& a, std::int64_t head, const Angles& angles) {
  if (head >= static_cast<std::int64_t>(a.batch.num_tokens) * a.index_heads) return;
  const int lane = threadIdx.x % 32;
  BF16* q = static_cast<BF16*>(a.index_q) + head * (N * 32);
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = to_float(q[i * 32 + lane]);
  rotate<N>(v, a.rope, angles);
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, v[i], step);
      v[i] = (lane & step) == 0 ? v[i] + other : other - v[i];
    }
#pragma unroll
  for (int step = 1; step < N; step *= 2) {
    float w[N];
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] = (i & step) == 0 ? v[i] + v[i ^ step] : v[i ^ step] - v[i];
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = w[i];
  }
  const float norm = 1.0f / sqrtf(static_cast<float>(N * 32));
  float whole = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v[i] = round_bf16(v[i] * norm);
    whole = fmaxf(whole, fabsf(v[i]));
  }
  whole = group_amax(whole, 32);
#pragma unroll
  for (int i = 0; i < N; ++i) {  // a row of 32 lanes is one FP4 group
    if (a.index_rounding == IndexRounding::kFp4)
      v[i] = round_e2m1(v[i], fp4_group_scale(group_amax(v[i], 32)));
    if (a.index_rounding == IndexRounding::kFp8) v[i] = round_e4m3(v[i], fp8_group_scale(whole));
    q[i * 32 + lane] = to_bf16(v[i]);
  }
}

// N, M: elements a lane of an attention head and of an index head. CTAs from `index_from` on take index
// heads.
template <int N, int M>
__global__ void __launch_bounds__(256)
    heads_kernel(const __grid_constant__ QueryArguments a, unsigned first_cta, unsigned index_from) {
  const unsigned cta = first_cta + blockIdx.x;
  const bool index = cta >= index_from;
  const std::int64_t head = static_cast<std::int64_t>(index ? cta - index_from : cta) * 8 + threadIdx.x / 32;
  const std::int64_t token =
      min(head / (index ? a.index_heads : a.heads), static_cast<std::int64_t>(a.batch.num_tokens) - 1);
  const Angles angles(a.rope, static_cast<float>(a.batch.positions[token]), a.frequencies);
  wait_for_predecessor();
  release_successor();
  if (index)
    index_head<M>(a, head, angles);
  else
    attention_head<N>(a, head, angles);
}

template <int N, int M>
void launch_heads(const QueryArguments& a, bool together, cudaStream_t stream) {
  const auto ctas = [&](std::int64_t heads) {
    return static_cast<unsigned>((heads * a.batch.num_tokens + 7) / 8);
  };
  const unsigned own = ctas(a.heads), index = a.index_q == nullptr ? 0 : ctas(a.index_heads);
  Launch how{dim3(together ? own + index : own), dim3(256), 0, stream, true, "query"};
  launch(how, heads_kernel<N, M>, a, 0u, own);
  if (together || index == 0) return;
  how.grid = dim3(index);
  launch(how, heads_kernel<N, M>, a, own, own);
}

}  // namespace

void launch_query(const QueryArguments& a, bool together, cudaStream_t stream) {
  if (a.batch.num_tokens > 128 && index_heads_takes(a)) {
    launch_index_heads(a, stream);
    QueryArguments own = a;
    own.index_q = nullptr;
    return launch_query(own, together, stream);
  }
  require(a.rope % 32 == 0 && a.rope <= 32 * kMaxRopeGroups, "rotary dims in multiples of 32, at most 128");
  require(a.head_dim == 512 || a.head_dim == 128, "head_dim 512 or 128");
  require(a.index_q == nullptr || a.index_dim == 128 || a.index_dim == 64, "index_head_dim 128 or 64");
  const bool wide = a.index_dim != 64;
  if (a.head_dim == 512)
    wide ? launch_heads<16, 4>(a, together, stream) : launch_heads<16, 2>(a, together, stream);
  else
    wide ? launch_heads<4, 4>(a, together, stream) : launch_heads<4, 2>(a, together, stream);
}

}  // namespace pivot::cuda
