// v = bf(silu(min(g, L)) clamp(u, -L, L) w) with g = bf(w1 x), u = bf(w3 x);  y_e = bf(w2 Q(v));  out =
// bf(sum_e y_e + shared).
//
// Bytes: every touched expert once; FLOP: 6 d I a pair. grid.y = 0 is the shared expert, then the slots of
// the work list, so a step of one token launches chosen + 1 slots, and slots that the step does not use end
// at once. A CTA takes 16 rows of w1 and the same of w3, so SwiGLU is its epilogue, or 32 rows of w2, one
// stripe of 16 after the other. Pairs beyond 8 of an expert take another
// round over the same weights, which are then in L2.
//
// A warp's first tiles are asked for before the previous kernel ends where they are known by then: the shared
// expert's always, the routed ones' in `down`. What is read before the wait was written two kernels earlier
// or before: a kernel releases its successor only after its own wait.
#include "ops/cuda/hyper_connection/tail.cuh"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/moe/expert_halves.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = kExpertWarps * 32;

// Weights straight into registers, a tile a warp at a time: with so few registers all CTAs of a step of one
// token are on the card at once, which is worth more than a second tile on its way or a second stripe that
// shares the activations (both measured).
template <MatrixFormat F>
constexpr int kCtas = F == MatrixFormat::kFP4     ? 7
                      : F == MatrixFormat::kNVFP4 ? 6
                                                  : 5;  // of a multiprocessor

template <MatrixFormat Routed, class RoutedOp>
__global__ void __launch_bounds__(kThreads, kCtas<Routed>)
    up_kernel(const __grid_constant__ ExpertArguments a) {
  __shared__ __align__(16) float scratch[2 * kExpertWarps * 128];
  if (static_cast<int>(blockIdx.y) > a.list.slots) {
    if (blockIdx.x == 0) run_seam_tail(a.tail);
    return;
  }
  expert_up<Routed, RoutedOp>(a, scratch);
}

template <MatrixFormat Routed, class RoutedOp>
__global__ void __launch_bounds__(kThreads, kCtas<Routed>)
    down_kernel(const __grid_constant__ ExpertArguments a) {
  __shared__ __align__(16) float scratch[2 * kExpertWarps * 128];
  expert_down<Routed, RoutedOp>(a, scratch);
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
  Launch how = over_slots(a, 16, a.inner, stream, "expert_up");
  if (a.tail.tokens > 0) ++how.grid.y;
  with_routed_format(a.routed_format, a.routed_scales != nullptr,
                     [&]<MatrixFormat F, class Op>() { launch(how, up_kernel<F, Op>, a); });
}

void launch_expert_down(const ExpertArguments& a, cudaStream_t stream) {
  with_routed_format(a.routed_format, a.routed_v_scales != nullptr, [&]<MatrixFormat F, class Op>() {
    const Launch how = over_slots(a, 32, a.width, stream, "expert_down");
    launch(how, down_kernel<F, Op>, a);
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
