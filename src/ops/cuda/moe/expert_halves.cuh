// The two halves of an expert for few tokens (specification 2.7).
#pragma once

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/linear/tile_product.cuh"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/moe/swiglu.cuh"
#include "ops/cuda/placement/schedule.h"

namespace pivot::cuda {

__device__ __forceinline__ TiledMatrix tiled(const Matrix& m) {
  return {reinterpret_cast<const std::uint8_t*>(m.codes), reinterpret_cast<const std::uint8_t*>(m.scales),
          static_cast<std::int32_t>(m.cols / 128)};
}
// What multiplies the accumulator: the fp32 scales of NVFP4, which are no powers of two and so stay out of
// the operands.
template <MatrixFormat Routed>
__device__ __forceinline__ float post_factor(const ExpertArguments& a, bool shared, const Matrix& m) {
  if (Routed != MatrixFormat::kNVFP4 || shared) return 1.0f;
  return a.routed_rows_per_place ? m.global_scale * m.input_scale : m.global_scale;
}

// Places [first, first + count) of the work list, or all tokens for the shared expert. Where the step is one
// token, place s is its choice s.
struct Slot {
  bool shared;
  int first, count;
  const DeviceExpert* expert;
};
__device__ __forceinline__ Slot shared_slot(const ExpertArguments& a) {
  return {true, 0, a.tokens, a.table + a.experts};
}
__device__ __forceinline__ Slot routed_slot(const ExpertArguments& a, int s) {
  if (a.direct_ids != nullptr) return {false, s, 1, a.table + __ldcg(a.direct_ids + s)};
  return {false, __ldcg(a.list.first + s), __ldcg(a.list.count + s), a.list.weights + s};
}

// Two stripes of 16 rows times `count` tokens from `first` on, in rounds of up to 8: finish(done, count,
// sums) runs in every thread, threads below 128 holding row i / 8, token i % 8. `wait`: wait for the previous
// kernel once the first weights have been asked for. Warp w takes column tiles w, w + 4, ...
template <MatrixFormat F, class Op, class Finish>
__device__ __forceinline__ void run_rounds(const TiledMatrix (&m)[2], const std::int64_t (&row_tile)[2],
                                           const ProductInput& in, int first, int count, bool wait,
                                           float* scratch, const Finish& finish) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  StripeStart<F> start;
  const auto load = [&](int stripe) {
    start.load(stripe == 0 ? m[0] : m[1], stripe == 0 ? row_tile[0] : row_tile[1], warp, lane);
  };
  load(0);
  if (wait) {
    wait_for_predecessor();
    release_successor();
  }
  for (int done = 0; done < count; done += 8) {
    const int here = min(8, count - done);
    if (done > 0) __syncthreads();  // the sums of the round before have been read
#pragma unroll 1
    for (int stripe = 0; stripe < 2; ++stripe) {
      if (done > 0 || stripe > 0) load(stripe);
      float acc[1][4] = {};
      multiply_stripe<F, Op, 1, false>(start, m[0].tiles_k, in, first + done, here, warp, kExpertWarps, lane,
                                       acc);
      store_part(acc[0], stripe, warp, kExpertWarps, lane, scratch);
    }
    __syncthreads();
    const float sum[2] = {sum_parts(0, kExpertWarps, scratch), sum_parts(1, kExpertWarps, scratch)};
    finish(done, here, sum);
  }
}

// The shared expert is FP8 or BF16 whatever the routed ones are; only these variants are compiled into a
// kernel.
template <class Finish>
__device__ __forceinline__ void run_shared(MatrixFormat format, const TiledMatrix (&m)[2],
                                           const std::int64_t (&row_tile)[2], const ProductInput& in,
                                           int count, float* scratch, const Finish& finish) {
  if (format == MatrixFormat::kBF16)
    run_rounds<MatrixFormat::kBF16, OperandBf16>(m, row_tile, in, 0, count, true, scratch, finish);
  else if (in.scales != nullptr)
    run_rounds<MatrixFormat::kFP8, OperandF16>(m, row_tile, in, 0, count, true, scratch, finish);
  else
    run_rounds<MatrixFormat::kFP8, OperandBf16>(m, row_tile, in, 0, count, true, scratch, finish);
}
// 16 rows of w1 and the same of w3. `scratch`: 2 * kExpertWarps * 128 floats of shared memory.
template <MatrixFormat Routed, class RoutedOp>
__device__ __forceinline__ void expert_up(const ExpertArguments& a, float* scratch) {
  const bool shared = blockIdx.y == 0;
  if (!shared) {
    wait_for_predecessor();
    release_successor();
  }
  const Slot slot = shared ? shared_slot(a) : routed_slot(a, static_cast<int>(blockIdx.y) - 1);
  const DeviceExpert& expert = *slot.expert;
  const TiledMatrix m[2] = {tiled(expert.w1), tiled(expert.w3)};  // asked for together with the count
  if (slot.count == 0) return;
  const std::int64_t row_tile[2] = {blockIdx.x, blockIdx.x};
  const auto finish = [&](int done, int count, const float(&sum)[2]) {
    const int row = blockIdx.x * 16 + threadIdx.x / 8, i = threadIdx.x % 8;
    if (threadIdx.x >= 128 || row >= a.inner || i >= count) return;
    const float g = round_bf16(sum[0] * post_factor<Routed>(a, shared, expert.w1));
    const float u = round_bf16(sum[1] * post_factor<Routed>(a, shared, expert.w3));
    const int place = slot.first + done + i;
    const float weight =
        shared ? 1.0f : a.route_weights[a.direct_ids != nullptr ? place : a.list.pairs[place]];
    const std::int64_t out = shared ? static_cast<std::int64_t>(a.tokens) * a.chosen + place : place;
    store_bf16(a.hidden, out * a.inner + row, swiglu(g, u, a.limit, weight));
  };
  if (shared) {
    const ProductInput in{a.shared_x, a.shared_scales, nullptr, a.width};
    return run_shared(a.shared_format, m, row_tile, in, slot.count, scratch, finish);
  }
  ProductInput in{a.routed_x, a.routed_scales, nullptr, a.width};
  if (!a.routed_rows_per_place && a.direct_ids == nullptr) in.rows = a.list.tokens;
  run_rounds<Routed, RoutedOp>(m, row_tile, in, a.direct_ids != nullptr ? 0 : slot.first, slot.count, false,
                               scratch, finish);
}

// 32 rows of w2.
template <MatrixFormat Routed, class RoutedOp>
__device__ __forceinline__ void expert_down(const ExpertArguments& a, float* scratch) {
  const bool shared = blockIdx.y == 0;
  const Slot slot = shared ? shared_slot(a) : routed_slot(a, static_cast<int>(blockIdx.y) - 1);
  if (slot.count == 0) {
    wait_for_predecessor();  // see the head of experts.cu
    return;
  }
  const DeviceExpert& expert = *slot.expert;
  const TiledMatrix w2 = tiled(expert.w2), m[2] = {w2, w2};
  const std::int64_t row_tile[2] = {2 * blockIdx.x, 2 * blockIdx.x + 1};
  const auto finish = [&](int done, int count, const float(&sum)[2]) {
    const int i = threadIdx.x % 8;
    if (threadIdx.x >= 128 || i >= count) return;
    const std::int64_t place =
        (shared ? static_cast<std::int64_t>(a.tokens) * a.chosen : 0) + slot.first + done + i;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = static_cast<int>(row_tile[k]) * 16 + threadIdx.x / 8;
      if (row < a.width)
        store_bf16(a.partial, place * a.width + row, sum[k] * post_factor<Routed>(a, shared, expert.w2));
    }
  };
  const ProductInput in{shared ? a.shared_v : a.routed_v, shared ? a.shared_v_scales : a.routed_v_scales,
                        nullptr, a.inner};
  if (shared)
    run_shared(a.shared_format, m, row_tile, in, slot.count, scratch, finish);
  else
    run_rounds<Routed, RoutedOp>(m, row_tile, in, slot.first, slot.count, true, scratch, finish);
}

}  // namespace pivot::cuda
