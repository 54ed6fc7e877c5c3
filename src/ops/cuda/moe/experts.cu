// v = bf(silu(min(g, L)) clamp(u, -L, L) w) with g = bf(w1 x), u = bf(w3 x);  y_e = bf(w2 Q(v));  out =
// bf(sum_e y_e + shared).
//
// Bytes: every touched expert once; FLOP: 6 d I a pair. grid.y is a slot of the work list (the last one the
// shared expert), so a step of one token launches chosen + 1 slots, and slots that the step does not use end
// at once. A CTA takes 16 rows of w1 and the same of w3, so SwiGLU is its epilogue. Pairs beyond 8 of an
// expert take another round over the same weights, which are then in L2.
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/linear/tile_product.cuh"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = kExpertWarps * 32;

__device__ __forceinline__ TiledMatrix tiled(const Matrix& m) {
  return {reinterpret_cast<const std::uint8_t*>(m.codes), reinterpret_cast<const std::uint8_t*>(m.scales),
          static_cast<std::int32_t>(m.cols / 128)};
}
template <MatrixFormat Routed>
__device__ __forceinline__ float post_factor(bool shared, const Matrix& m) {
  return Routed == MatrixFormat::kNVFP4 && !shared ? m.global_scale : 1.0f;
}

// The slot's rows: [first, first + count) of the work list, or all tokens for the shared expert.
struct Slot {
  bool shared;
  int first, count;
};
__device__ __forceinline__ Slot slot_of(const ExpertArguments& a, int y) {
  return {y == a.list.slots, a.list.first[y], a.list.count[y]};
}

// The shared expert is FP8 or BF16 whatever the routed ones are; only these variants are compiled into a
// kernel.
template <MatrixFormat Routed, class RoutedOp>
__device__ __forceinline__ void multiply_expert(bool shared, MatrixFormat shared_format, const TiledMatrix& m,
                                                int row_tile, const ProductInput& in, int first, int count,
                                                int warp, int warps, int lane, float (&acc)[1][4]) {
  const auto run = [&]<MatrixFormat F, class Op>() {
    multiply_stripe<F, Op, 1>(m, row_tile, in, first, count, warp, warps, lane, acc, [] {});
  };
  if (!shared) return run.template operator()<Routed, RoutedOp>();
  if (shared_format == MatrixFormat::kBF16)
    return run.template operator()<MatrixFormat::kBF16, OperandBf16>();
  if (in.scales != nullptr) return run.template operator()<MatrixFormat::kFP8, OperandF16>();
  run.template operator()<MatrixFormat::kFP8, OperandBf16>();
}

template <MatrixFormat Routed, class RoutedOp>
__global__ void __launch_bounds__(kThreads, 8) up_kernel(ExpertArguments a) {
  __shared__ float scratch[kExpertWarps * 128];
  wait_for_predecessor();
  release_successor();
  const Slot slot = slot_of(a, blockIdx.y);
  const DeviceExpert& expert = a.list.weights[blockIdx.y];
  const TiledMatrix w1 = tiled(expert.w1), w3 = tiled(expert.w3);  // asked for together with the count
  if (slot.count == 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int warps = kExpertWarps;
  ProductInput in{slot.shared ? a.shared_x : a.routed_x, slot.shared ? a.shared_scales : a.routed_scales,
                  nullptr, a.width};
  if (!slot.shared && !a.routed_rows_per_place) in.rows = a.list.tokens;
  for (int done = 0; done < slot.count; done += 8) {
    const int count = min(8, slot.count - done);
    float gate[1][4] = {}, up[1][4] = {};
    multiply_expert<Routed, RoutedOp>(slot.shared, a.shared_format, w1, blockIdx.x, in, slot.first + done,
                                      count, warp, warps, lane, gate);
    multiply_expert<Routed, RoutedOp>(slot.shared, a.shared_format, w3, blockIdx.x, in, slot.first + done,
                                      count, warp, warps, lane, up);
    float g = round_bf16(reduce_stripe(gate[0], warp, warps, lane, scratch) *
                         post_factor<Routed>(slot.shared, expert.w1));
    float u = round_bf16(reduce_stripe(up[0], warp, warps, lane, scratch) *
                         post_factor<Routed>(slot.shared, expert.w3));
    const int row = blockIdx.x * 16 + threadIdx.x / 8, i = threadIdx.x % 8;
    if (threadIdx.x >= 128 || row >= a.inner || i >= count) continue;
    const int place = slot.first + done + i;
    const float weight = slot.shared ? 1.0f : a.route_weights[a.list.pairs[place]];
    if (a.limit > 0.0f) {
      g = fminf(g, a.limit);
      u = fminf(fmaxf(u, -a.limit), a.limit);
    }
    const float v = g / (1.0f + expf(-g)) * u * weight;
    const std::int64_t out = slot.shared ? static_cast<std::int64_t>(a.tokens) * a.chosen + place : place;
    store_bf16(a.hidden, out * a.inner + row, v);
  }
}

template <MatrixFormat Routed, class RoutedOp>
__global__ void __launch_bounds__(kThreads, 8) down_kernel(ExpertArguments a) {
  __shared__ float scratch[kExpertWarps * 128];
  wait_for_predecessor();
  release_successor();
  const Slot slot = slot_of(a, blockIdx.y);
  const DeviceExpert& expert = a.list.weights[blockIdx.y];
  const TiledMatrix w2 = tiled(expert.w2);
  if (slot.count == 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int warps = kExpertWarps;
  const ProductInput in{slot.shared ? a.shared_v : a.routed_v,
                        slot.shared ? a.shared_v_scales : a.routed_v_scales, nullptr, a.inner};
  const int stripes = (a.width + 15) / 16;
  for (int stripe = blockIdx.x; stripe < stripes; stripe += gridDim.x)
    for (int done = 0; done < slot.count; done += 8) {
      const int count = min(8, slot.count - done);
      float acc[1][4] = {};
      multiply_expert<Routed, RoutedOp>(slot.shared, a.shared_format, w2, stripe, in, slot.first + done,
                                        count, warp, warps, lane, acc);
      const float y =
          reduce_stripe(acc[0], warp, warps, lane, scratch) * post_factor<Routed>(slot.shared, expert.w2);
      const int row = stripe * 16 + threadIdx.x / 8, i = threadIdx.x % 8;
      if (threadIdx.x >= 128 || row >= a.width || i >= count) continue;
      const std::int64_t place =
          (slot.shared ? static_cast<std::int64_t>(a.tokens) * a.chosen : 0) + slot.first + done + i;
      store_bf16(a.partial, place * a.width + row, y);
    }
}

// Routed experts in ascending id, then the shared one, one rounding.
__global__ void sum_kernel(ExpertArguments a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<std::int64_t>(a.tokens) * a.width) return;
  const std::int64_t t = i / a.width, c = i % a.width;
  float sum = 0.0f;
  for (int k = 0; k < a.chosen; ++k)
    sum += load_bf16(a.partial, a.list.place[t * a.chosen + k] * static_cast<std::int64_t>(a.width) + c);
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
    const float scale = e4m3_to_float(float_to_e4m3(amax / 6.0f / input_scale)) * input_scale;
    out[place * cols + column] =
        to_bf16(scale > 0.0f ? e2m1_value(float_to_e2m1(v / scale)) * scale : 0.0f).bits;
  }
}

// `stripes`: of 16 rows that a CTA takes one after the other.
Launch over_slots(const ExpertArguments& a, std::int64_t rows, std::int64_t stripes, cudaStream_t stream,
                  const char* name) {
  return {dim3(static_cast<unsigned>((rows + 16 * stripes - 1) / (16 * stripes)),
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
    launch(over_slots(a, a.inner, 1, stream, "expert_up"), up_kernel<F, Op>, a);
  });
}

void launch_expert_down(const ExpertArguments& a, cudaStream_t stream) {
  with_routed_format(a.routed_format, a.routed_v_scales != nullptr, [&]<MatrixFormat F, class Op>() {
    launch(over_slots(a, a.width, 2, stream, "expert_down"), down_kernel<F, Op>, a);
  });
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
