// The experts of experts.cu with their weights through shared memory, which the bulk copy engine fills: the
// same products in the same order, so the same bits. Off by default: never run (switch bulk_experts).
//
// Why it should pay (lab/cuda/README.md has the arithmetic): at batch 1, `up` is 896 CTAs on 660 places, each
// a chain of dependent loads, so the card is full for one wave and a third full for another; and a warp has
// nothing on its way while it multiplies. Here a CTA asks for all its weights (68 KB of w1 and w3) with 128
// instructions of one lane a warp and holds three CTAs on a multiprocessor, so that one's arithmetic and
// another's start hide behind the third's bytes.
//
// A warp owns its tiles, so nothing is shared but the sums at the end: its slots in shared memory, a barrier
// each, are filled in the order in which it multiplies, and refilled as soon as all lanes have read them.
#include "ops/cuda/device/bulk_transfer.cuh"
#include "ops/cuda/moe/bulk_order.h"
#include "ops/cuda/moe/expert_halves.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = kExpertWarps * 32;

template <MatrixFormat F>
__device__ __forceinline__ void load_shared(TileFragments<F>& tile, const std::uint8_t* codes,
                                            const std::uint8_t* scales, int lane) {
#pragma unroll
  for (int i = 0; i < TileFragments<F>::kLoads; ++i)
    tile.codes[i] = *reinterpret_cast<const uint4*>(codes + i * 512 + lane * 16);
  if constexpr (F == MatrixFormat::kFP4) {
    tile.scales[0] = *reinterpret_cast<const std::uint32_t*>(scales + lane / 4 * 4);
    tile.scales[1] = *reinterpret_cast<const std::uint32_t*>(scales + lane / 4 * 4 + 32);
  } else if constexpr (F == MatrixFormat::kNVFP4) {
    const uint2 low = *reinterpret_cast<const uint2*>(scales + lane / 4 * 8);
    const uint2 high = *reinterpret_cast<const uint2*>(scales + lane / 4 * 8 + 64);
    tile.scales[0] = low.x;
    tile.scales[1] = low.y;
    tile.scales[2] = high.x;
    tile.scales[3] = high.y;
  }
}

struct BulkRounds {
  static constexpr bool kBf16 = false;  // 4 KB a tile

  std::uint8_t* slots;  // of this warp
  int num_slots, slot_bytes;
  std::uint32_t barriers;  // of this warp, 8 bytes each

  template <MatrixFormat F, class Op, bool TOGETHER, class Finish>
  __device__ __forceinline__ void run(const TiledMatrix (&m)[2], const std::int64_t (&row_tile)[2],
                                      const ProductInput& in, int first, int count, bool wait, float* scratch,
                                      const Finish& finish) {
    constexpr int kAtOnce = TOGETHER ? 2 : 1, kPasses = 2 / kAtOnce;
    constexpr int kCodes = static_cast<int>(tile_code_bytes(F));
    // FP8 has one fp32 scale a tile, less than a bulk copy can be: it comes through L1.
    constexpr int kScales = F == MatrixFormat::kFP8 ? 0 : static_cast<int>(tile_scale_bytes(F));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles_k = m[0].tiles_k;
    const BulkOrder order = BulkOrder::of(warp, kExpertWarps, tiles_k, kPasses);
    const int total = (count + 7) / 8 * kPasses * order.tiles;
    // Fills slot n % num_slots with the n-th tile (pair) that this warp multiplies. One lane.
    const auto fill = [&](int n) {
      const BulkOrder::Item item = order.item(n);
      const int slot = n % num_slots;
      const std::uint32_t to = shared_address(slots + slot * slot_bytes), barrier = barriers + 8 * slot;
      bulk_barrier_expect(barrier, kAtOnce * (kCodes + kScales));
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const bool second = item.pass + k > 0;
        const std::int64_t tile = (second ? row_tile[1] : row_tile[0]) * tiles_k + item.tile;
        bulk_copy(to + k * kCodes, (second ? m[1].codes : m[0].codes) + tile * kCodes, kCodes, barrier);
        if constexpr (kScales > 0)
          bulk_copy(to + kAtOnce * kCodes + k * kScales,
                    (second ? m[1].scales : m[0].scales) + tile * kScales, kScales, barrier);
      }
    };
    if (lane == 0) {
      for (int s = 0; s < num_slots; ++s) bulk_barrier_init(barriers + 8 * s);
      bulk_barrier_init_fence();
      for (int n = 0; n < min(num_slots, total); ++n) fill(n);
    }
    __syncwarp();
    if (wait) {
      wait_for_predecessor();
      release_successor();
    }
    int n = 0, slot = 0;
    std::uint32_t parity = 0;
    for (int done = 0; done < count; done += 8) {
      const int here = min(8, count - done);
      const TokenOperand<F, 1> operand(in, first + done, here, lane);
      if (done > 0) __syncthreads();  // the sums of the round before have been read
#pragma unroll 1
      for (int from = 0; from < 2; from += kAtOnce) {
        float acc[kAtOnce][1][4] = {};
#pragma unroll 1
        for (int kt = warp; kt < tiles_k; kt += kExpertWarps, ++n) {
          TileFragments<F> tile[kAtOnce];
          if constexpr (F == MatrixFormat::kFP8) {
            const std::int64_t at = (from > 0 ? row_tile[1] : row_tile[0]) * tiles_k + kt;
            tile[0].scales[0] =
                __ldg(reinterpret_cast<const std::uint32_t*>(from > 0 ? m[1].scales : m[0].scales) + at);
          }
          bulk_barrier_wait(barriers + 8 * slot, parity);
          const std::uint8_t* at = slots + slot * slot_bytes;
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k)
            load_shared<F>(tile[k], at + k * kCodes, at + kAtOnce * kCodes + k * kScales, lane);
          __syncwarp();  // every lane has read the slot
          if (lane == 0 && n + num_slots < total) fill(n + num_slots);
          multiply_tile<F, Op, 1, kAtOnce>(tile, operand, kt, lane, acc);
          if (++slot == num_slots) {
            slot = 0;
            parity ^= 1;
          }
        }
        constexpr float kFactor = expansion_factor<F, Op>();
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[k][0][i] *= kFactor;
          store_part(acc[k][0], from + k, warp, kExpertWarps, lane, scratch);
        }
      }
      __syncthreads();
      const float sum[2] = {sum_parts(0, kExpertWarps, scratch), sum_parts(1, kExpertWarps, scratch)};
      finish(done, here, sum);
    }
  }
};

// grid as in experts.cu
template <MatrixFormat Routed, class RoutedOp, bool UP>
__global__ void __launch_bounds__(kThreads, 3)
    bulk_kernel(const __grid_constant__ ExpertArguments a, int num_slots, int slot_bytes) {
  extern __shared__ __align__(128) std::uint8_t slots[];
  __shared__ float scratch[2 * kExpertWarps * 128];
  __shared__ std::uint64_t barriers[kExpertWarps][kMaxBulkSlots];
  const int warp = threadIdx.x / 32;
  BulkRounds rounds{slots + warp * num_slots * slot_bytes, num_slots, slot_bytes,
                    shared_address(barriers[warp])};
  if constexpr (UP)
    expert_up<Routed, RoutedOp>(a, rounds, scratch);
  else
    expert_down<Routed, RoutedOp>(a, rounds, scratch);
}

template <MatrixFormat Routed, bool UP>
void launch_routed(const ExpertArguments& a, cudaStream_t stream) {
  const std::int64_t rows = UP ? a.inner : a.width, columns = UP ? a.width : a.inner;
  const int slots = bulk_slots(Routed, columns / kTileCols), slot_bytes = bulk_slot_bytes(Routed);
  const Launch how{dim3(static_cast<unsigned>((rows + (UP ? 15 : 31)) / (UP ? 16 : 32)),
                        static_cast<unsigned>(a.list.slots + 1)),
                   dim3(kThreads),
                   static_cast<std::size_t>(kExpertWarps) * slots * slot_bytes,
                   stream,
                   true,
                   UP ? "expert_up_bulk" : "expert_down_bulk"};
  if ((UP ? a.routed_scales : a.routed_v_scales) != nullptr)
    launch(how, bulk_kernel<Routed, OperandF16, UP>, a, slots, slot_bytes);
  else
    launch(how, bulk_kernel<Routed, OperandBf16, UP>, a, slots, slot_bytes);
}

template <bool UP>
void launch_half(const ExpertArguments& a, cudaStream_t stream) {
  require(bulk_experts_take(a.routed_format, a.shared_format),
          "FP4 or NVFP4 experts beside an FP8 shared one");
  if (a.routed_format == MatrixFormat::kFP4) return launch_routed<MatrixFormat::kFP4, UP>(a, stream);
  launch_routed<MatrixFormat::kNVFP4, UP>(a, stream);
}

}  // namespace

void launch_expert_up_bulk(const ExpertArguments& a, cudaStream_t stream) { launch_half<true>(a, stream); }
void launch_expert_down_bulk(const ExpertArguments& a, cudaStream_t stream) { launch_half<false>(a, stream); }

}  // namespace pivot::cuda
