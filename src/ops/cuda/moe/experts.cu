// v = bf(silu(min(g, L)) clamp(u, -L, L) w) with g = bf(w1 x), u = bf(w3 x);  y_e = bf(w2 Q(v));  out =
// bf(sum_e y_e + shared).
//
// Bytes: every touched expert once; FLOP: 6 d I a pair. grid.y = 0 is the shared expert, then the slots of
// the work list, so a step of one token launches chosen + 1 slots, and slots that the step does not use end
// at once. A CTA takes 16 rows of w1 and the same of w3, so SwiGLU is its epilogue, or 32 rows of w2: two
// tiles of the same columns, for which activations are loaded once. Pairs beyond 8 of an expert take another
// round over the same weights, which are then in L2.
//
// A CTA asks the L2 for all its weights at once, since the few tiles that its registers hold do not cover the
// memory's latency. Where the weights are known before the previous kernel ends, that happens before waiting
// for it: the shared expert's always, the routed ones' in `down`. What is read before the wait was written
// two kernels earlier or before: a kernel releases its successor only after its own wait.
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/linear/tile_product.cuh"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/moe/swiglu.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = kExpertWarps * 32;

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

// Rounds of up to 8 tokens over two stripes; `finish(done, count, sums)` runs in every thread, threads below
// 128 holding row i / 8, token i % 8. `wait`: after the first weights were asked for. TOGETHER: both stripes
// in one pass, which loads activations once; wide formats have no registers for it.
template <MatrixFormat F, class Op, bool TOGETHER, class Finish>
__device__ __forceinline__ void run_rounds(const TiledMatrix (&m)[2], const std::int64_t (&row_tile)[2],
                                           const ProductInput& in, int first, int count, bool wait,
                                           float* scratch, const Finish& finish) {
  constexpr int kAtOnce = TOGETHER ? 2 : 1;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  StripeStart<F, kAtOnce> start;
  const auto load = [&](int from) {
    if constexpr (TOGETHER)
      start.load(m, row_tile, warp, lane);
    else
      start.load({from == 0 ? m[0] : m[1]}, {from == 0 ? row_tile[0] : row_tile[1]}, warp, lane);
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
    for (int from = 0; from < 2; from += kAtOnce) {
      if (done > 0 || from > 0) load(from);
      float acc[kAtOnce][1][4] = {};
      multiply_stripes<F, Op, 1, kAtOnce, false>(start, m[0].tiles_k, in, first + done, here, warp,
                                                 kExpertWarps, lane, acc);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) store_part(acc[k][0], from + k, warp, kExpertWarps, lane, scratch);
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
    run_rounds<MatrixFormat::kBF16, OperandBf16, false>(m, row_tile, in, 0, count, true, scratch, finish);
  else if (in.scales != nullptr)
    run_rounds<MatrixFormat::kFP8, OperandF16, false>(m, row_tile, in, 0, count, true, scratch, finish);
  else
    run_rounds<MatrixFormat::kFP8, OperandBf16, false>(m, row_tile, in, 0, count, true, scratch, finish);
}
template <MatrixFormat F>
constexpr bool kTogether = F == MatrixFormat::kFP4 || F == MatrixFormat::kNVFP4;

template <MatrixFormat Routed, class RoutedOp>
__global__ void __launch_bounds__(kThreads, 5) up_kernel(const __grid_constant__ ExpertArguments a) {
  __shared__ float scratch[2 * kExpertWarps * 128];
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
  run_rounds<Routed, RoutedOp, kTogether<Routed>>(m, row_tile, in, a.direct_ids != nullptr ? 0 : slot.first,
                                                  slot.count, false, scratch, finish);
}

template <MatrixFormat Routed, class RoutedOp>
__global__ void __launch_bounds__(kThreads, 5) down_kernel(const __grid_constant__ ExpertArguments a) {
  __shared__ float scratch[2 * kExpertWarps * 128];
  const bool shared = blockIdx.y == 0;
  const Slot slot = shared ? shared_slot(a) : routed_slot(a, static_cast<int>(blockIdx.y) - 1);
  if (slot.count == 0) {
    wait_for_predecessor();  // see the head of this file
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
  if (shared) return run_shared(a.shared_format, m, row_tile, in, slot.count, scratch, finish);
  run_rounds<Routed, RoutedOp, kTogether<Routed>>(m, row_tile, in, slot.first, slot.count, true, scratch,
                                                  finish);
}

// Routed experts in ascending id, then the shared one, one rounding.
__global__ void sum_kernel(ExpertArguments a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<std::int64_t>(a.tokens) * a.width) return;
  const std::int64_t t = i / a.width, c = i % a.width;
  float sum = 0.0f;
  for (int k = 0; k < a.chosen; ++k) {
    const std::int64_t pair = t * a.chosen + k;
    sum += load_bf16(a.partial, (a.direct_ids != nullptr ? pair : a.list.place[pair]) * a.width + c);
  }
  sum += load_bf16(a.partial, (static_cast<std::int64_t>(a.tokens) * a.chosen + t) * a.width + c);
  store_bf16(a.out, i, sum);
}

// One thread an element, 16 lanes a group. grid.y is a slot.
__global__ void nvfp4_kernel(ExpertArguments a, const BF16* x, bool by_place, int cols, bool of_w2,
                             std::uint16_t* out) {
  wait_for_predecessor();
  release_successor();
  const int count = a.list.count[blockIdx.y];
  if (count == 0) return;
  const DeviceExpert& expert = a.list.weights[blockIdx.y];
  const float input_scale = of_w2 ? expert.w2.input_scale : expert.w1.input_scale;
  const int first = a.list.first[blockIdx.y];
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < static_cast<std::int64_t>(count) * cols; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t place = first + i / cols, column = i % cols;
    const float v = to_float(x[(by_place ? place : a.list.tokens[place]) * cols + column]);
    const unsigned active = __activemask();
    float amax = fabsf(v);
    for (int step = 8; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(active, amax, step));
    const float block = e4m3_to_float(float_to_e4m3(amax / 6.0f / input_scale)), scale = block * input_scale;
    // Without input_scale: code times block scale is exact in BF16 (post_factor).
    out[place * cols + column] =
        to_bf16(scale > 0.0f ? e2m1_value(float_to_e2m1(v / scale)) * block : 0.0f).bits;
  }
}

Launch over_slots(const ExpertArguments& a, std::int64_t rows_per_cta, std::int64_t rows, cudaStream_t stream,
                  const char* name) {
  return {dim3(static_cast<unsigned>((rows + rows_per_cta - 1) / rows_per_cta),
               static_cast<unsigned>(a.list.slots + 1)),
          dim3(kThreads),
          0,
          stream,
          true,
          name};
}

// Calls f<Format, Operand>() for the routed experts' format.
template <class F>
void with_routed_format(MatrixFormat format, bool codes, const F& f) {
  switch (format) {
    case MatrixFormat::kBF16:
      return f.template operator()<MatrixFormat::kBF16, OperandBf16>();
    case MatrixFormat::kFP8:
      return codes ? f.template operator()<MatrixFormat::kFP8, OperandF16>()
                   : f.template operator()<MatrixFormat::kFP8, OperandBf16>();
    case MatrixFormat::kFP4:
      return codes ? f.template operator()<MatrixFormat::kFP4, OperandF16>()
                   : f.template operator()<MatrixFormat::kFP4, OperandBf16>();
    case MatrixFormat::kNVFP4:
      return codes ? f.template operator()<MatrixFormat::kNVFP4, OperandF16>()
                   : f.template operator()<MatrixFormat::kNVFP4, OperandBf16>();
    case MatrixFormat::kF32:
      require(false, "experts in BF16, FP8, FP4 or NVFP4");
  }
}

}  // namespace

void launch_expert_up(const ExpertArguments& a, cudaStream_t stream) {
  with_routed_format(a.routed_format, a.routed_scales != nullptr, [&]<MatrixFormat F, class Op>() {
    launch(over_slots(a, 16, a.inner, stream, "expert_up"), up_kernel<F, Op>, a);
  });
}

void launch_expert_down(const ExpertArguments& a, cudaStream_t stream) {
  with_routed_format(a.routed_format, a.routed_v_scales != nullptr, [&]<MatrixFormat F, class Op>() {
    launch(over_slots(a, 32, a.width, stream, "expert_down"), down_kernel<F, Op>, a);
  });
}

void launch_expert_sum(const ExpertArguments& a, cudaStream_t stream) {
  const std::int64_t total = static_cast<std::int64_t>(a.tokens) * a.width;
  launch({dim3(static_cast<unsigned>((total + 255) / 256)), dim3(256), 0, stream, true, "expert_sum"},
         sum_kernel, a);
}

void launch_expert_nvfp4(const ExpertArguments& a, const void* x, bool by_place, std::int32_t cols,
                         bool of_w2, std::uint16_t* out, cudaStream_t stream) {
  launch({dim3(8, static_cast<unsigned>(a.list.slots)), dim3(256), 0, stream, true, "expert_nvfp4"},
         nvfp4_kernel, a, static_cast<const BF16*>(x), by_place, cols, of_w2, out);
}

}  // namespace pivot::cuda
