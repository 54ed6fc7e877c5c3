// score[t][j] = sum_h w[t][h] relu(q[t][h] . k_j) for many tokens t, with wgmma.
//
// FLOP: 2 * 64 * 128 a key and query; bytes: a key (68 B in FP4) once per eight queries, 4 a score. Bound by
// the tensor cores. A CTA keeps eight neighbouring queries in shared memory; a warpgroup decodes 64 keys into
// registers, the left operand, and multiplies them by one query after the other: 64 keys x 64 heads. Relu,
// weight and the sum over heads happen in the accumulator's registers while other warpgroups multiply.
//
// Same values as scores.cu: the same dims meet in the same step of 16, and heads are added in the same order.
// A dot product of FP4 keys and queries is exact in fp32 as long as the scales of their groups lie within
// 2^11 of each other; for other keys equality rests on both instructions adding a step's 16 products alike.
#include <algorithm>

#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/indexer/key_fragment.cuh"
#include "ops/cuda/placement/schedule.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kHeads = kPrefillIndexHeads, kDims = kPrefillIndexDims, kQueries = kPrefillIndexQueries;
constexpr int kWarpgroups = 4, kThreads = 128 * kWarpgroups;
constexpr int kPanelBytes = kQueries * kHeads * 128;  // 64 dims of every query and head
static_assert(kHeads == 64 && kDims == 128);

struct Shared {
  std::uint8_t q[kDims / 64][kPanelBytes];
  float weights[kQueries][kHeads];
  std::int32_t visible[kQueries], span[kQueries];
};
static_assert(sizeof(Shared) + 1024 <= kPrefillIndexBytes);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kKeys = 64;           // of a warpgroup
constexpr int kSteps = kDims / 16;  // products of a key

__device__ __forceinline__ float relu(float x) {  // NaN stays NaN and is ranked as such
  float r;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(r) : "f"(x));
  return r;
}

// Queries in the order of dims that load_key gives the keys: a step's first half is one piece of 16 bytes,
// two dims of each of the four lanes, its second half the next.
__device__ __forceinline__ void fill_queries(const IndexArguments& a, int first, int count, Shared& s) {
  const auto* q = static_cast<const BF16*>(a.index_q) + static_cast<std::int64_t>(first) * (kHeads * kDims);
  const bool fp4 = a.keys.layout.format == RowFormat::kIndexFp4;
  for (int i = threadIdx.x; i < count * kHeads * 4; i += kThreads) {
    const int row = i / 4, w = i % 4;
    QueryEight eight[4];
#pragma unroll
    for (int t = 0; t < 4; ++t)
      eight[t] = query_eight(*reinterpret_cast<const uint4*>(q + row * kDims + t * (kDims / 4) + w * 8), fp4);
    std::uint8_t* to = s.q[w / 2];
    const int piece = w % 2 * 4;
    const auto put = [&](int k, uint4 v) { *reinterpret_cast<uint4*>(to + swizzled(row, piece + k)) = v; };
    put(0, {eight[0].first.x, eight[1].first.x, eight[2].first.x, eight[3].first.x});
    put(1, {eight[0].first.y, eight[1].first.y, eight[2].first.y, eight[3].first.y});
    put(2, {eight[0].second.x, eight[1].second.x, eight[2].second.x, eight[3].second.x});
    put(3, {eight[0].second.y, eight[1].second.y, eight[2].second.y, eight[3].second.y});
  }
  for (int i = threadIdx.x; i < count * kHeads; i += kThreads)
    s.weights[i / kHeads][i % kHeads] = a.index_weights[static_cast<std::int64_t>(first) * kHeads + i];
  if (static_cast<int>(threadIdx.x) < count) {
    s.visible[threadIdx.x] = (a.batch.positions[first + threadIdx.x] + 1) / 4;
    s.span[threadIdx.x] = a.batch.span_of[first + threadIdx.x];
  }
  fence_operands();
}

// The two sums over heads of keys g and g + 8 of a warp, in scores.cu's order; all four lanes get them.
template <bool BF16_SCORES>
__device__ __forceinline__ void sum_heads(const float (&dot)[32], const float* weights, int t,
                                          float (&sum)[2]) {
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int tile = 0; tile < kHeads / 8; ++tile) {
    const float2 w = *reinterpret_cast<const float2*>(weights + tile * 8 + 2 * t);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        float d = dot[4 * tile + 2 * key + i];
        if constexpr (BF16_SCORES) d = round_bf16(d);
        d = (i == 0 ? w.x : w.y) * relu(d);
        sum[key] += BF16_SCORES ? round_bf16(d) : d;
      }
  }
#pragma unroll
  for (int key = 0; key < 2; ++key) {
    sum[key] += __shfl_xor_sync(0xffffffffu, sum[key], 1);
    sum[key] += __shfl_xor_sync(0xffffffffu, sum[key], 2);
    if constexpr (BF16_SCORES) sum[key] = round_bf16(sum[key]);
  }
}
#endif

// grid (shares of the keys, blocks of kQueries queries)
template <bool BF16_SCORES>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_score_kernel(const __grid_constant__ IndexArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::uint8_t raw_shared[];
  Shared& s = *reinterpret_cast<Shared*>(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  wait_for_predecessor();
  release_successor();
  const int first = blockIdx.y * kQueries, count = min(kQueries, a.batch.num_tokens - first);
  fill_queries(a, first, count, s);
  __syncthreads();
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4,
            t = lane % 4;
  const std::uint64_t queries = wgmma_k_major(shared_address(s.q[0]));
  float* scores = a.scores + first * a.score_stride;
  // Queries [begin, end) of one sequence see the same keys, the last one most of them; rows with at most topk
  // need no scores.
  for (int begin = 0, end; begin < count; begin = end) {
    for (end = begin + 1; end < count && s.span[end] == s.span[begin]; ++end) {
    }
    const int most = s.visible[end - 1];
    int low = begin;
    while (low < end && s.visible[low] <= a.topk) ++low;
    if (low == end) continue;
    const int table = a.batch.spans[s.span[begin]].table;
    for (int key0 = (blockIdx.x * kWarpgroups + warpgroup) * kKeys; key0 < most;
         key0 += gridDim.x * (kWarpgroups * kKeys)) {
      const int j0 = key0 + warp * 16 + g, j1 = j0 + 8;
      std::uint32_t key[kSteps][4];
      {
        std::uint32_t upper[kDims / 8], lower[kDims / 8];
        load_key<kDims>(a.keys.layout, paged_row(a.keys, table, min(j0, most - 1)), t, upper);
        load_key<kDims>(a.keys.layout, paged_row(a.keys, table, min(j1, most - 1)), t, lower);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          key[step][0] = upper[2 * step];
          key[step][1] = lower[2 * step];
          key[step][2] = upper[2 * step + 1];
          key[step][3] = lower[2 * step + 1];
        }
      }
#pragma unroll 1
      for (int i = low; i < end; ++i) {
        const int visible = s.visible[i];
        if (key0 >= visible) continue;
        float dot[32] = {};
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
          Wgmma<64>::add(dot, key[step][0], key[step][1], key[step][2], key[step][3],
                         queries + (step / 4 * kPanelBytes + i * (kHeads * 128) + step % 4 * 32) / 16);
        wgmma_commit();
        wgmma_wait<0>();
        float sum[2];
        sum_heads<BF16_SCORES>(dot, s.weights[i], t, sum);
        float* out = scores + i * a.score_stride;
        if (t == 0 && j0 < visible) out[j0] = sum[0];
        if (t == 0 && j1 < visible) out[j1] = sum[1];
      }
    }
  }
#endif
}

}  // namespace

void launch_prefill_index_scores(const IndexArguments& a, int multiprocessors, cudaStream_t stream) {
  require(a.heads == kHeads && a.dim == kDims, "64 index heads of 128 dims");
  const int blocks = (a.batch.num_tokens + kQueries - 1) / kQueries;
  const Launch how{
      dim3(static_cast<unsigned>(std::max(1, multiprocessors / blocks)), static_cast<unsigned>(blocks)),
      dim3(kThreads),
      static_cast<std::size_t>(kPrefillIndexBytes),
      stream,
      true,
      "prefill_index_scores"};
  launch(how, a.bf16_scores ? prefill_score_kernel<true> : prefill_score_kernel<false>, a);
}

}  // namespace pivot::cuda
