// Both halves of the routed experts, and the first one of the shared expert, for many tokens (product.cuh).
//
// A warp of the first half takes eight rows of w1 and the same eight of w3: they are the low and the high
// rows of its stripe, so g and u of a hidden column meet in one thread and SwiGLU needs no exchange.
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/gemm/launch.cuh"
#include "ops/cuda/gemm/results.cuh"

namespace pivot::cuda {
namespace {

struct ExpertsJob {
  const std::int32_t* num_tiles;  // null: `tokens` tokens of one expert in tiles of `tile_tokens`
  const ExpertTile* tiles;
  const DeviceExpert* weights;  // of each slot
  const std::uint16_t* x;
  const float* place_weights;  // null: 1
  std::uint16_t* out;          // by place
  std::int64_t panel_rows;
  std::int32_t tokens, tile_tokens;
  std::int32_t out_stride, row_tiles, units, panels;
  float limit;
  bool input_scale;  // NVFP4 activations leave their scale to the sums
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ __forceinline__ TiledMatrix tiled_matrix(const Matrix& m, int panels) {
  return {reinterpret_cast<const std::uint8_t*>(m.codes), reinterpret_cast<const std::uint8_t*>(m.scales),
          panels / 2};
}

template <MatrixFormat F, bool UP>
struct ExpertsWork {
  static constexpr MatrixFormat kFormat = F;
  static constexpr bool kTwo = UP;
  static constexpr int kTokenStep = token_step(F, true);
  struct Item {
    const std::uint16_t* panels;
    std::int32_t row, count, slot, place, row_tile;
    bool valid;
  };

  const ExpertsJob& job;
  int num_items;

  explicit __device__ __forceinline__ ExpertsWork(const ExpertsJob& from)
      : job(from),
        num_items(from.units * (from.num_tiles != nullptr
                                    ? *from.num_tiles
                                    : (from.tokens + from.tile_tokens - 1) / from.tile_tokens)) {}
  __device__ __forceinline__ int items() const { return num_items; }
  __device__ __forceinline__ int panels() const { return job.panels; }
  __device__ __forceinline__ std::int64_t panel_rows() const { return job.panel_rows; }
  __device__ __forceinline__ Item item(int index, int rank) const {
    const int tile = index / job.units, row_tile = index % job.units * kGemmCluster + rank;
    ExpertTile at;
    if (job.num_tiles != nullptr) {
      const int4 words = *reinterpret_cast<const int4*>(job.tiles + tile);
      at = {words.x, words.y, words.z, words.w};
    } else {
      const int first = tile * job.tile_tokens;
      at = {0, first, first, min(job.tile_tokens, job.tokens - first)};
    }
    return {job.x,
            at.row,
            at.count,
            at.slot,
            at.place,
            min(row_tile, job.row_tiles - 1),
            row_tile < job.row_tiles};
  }
  __device__ __forceinline__ float2 bring(const Item& i) const {
    float2 weights{1.0f, 1.0f};
    if constexpr (UP) {
      const int thread = threadIdx.x % 128;
      if (job.place_weights != nullptr) {
        if (thread < i.count) weights.x = job.place_weights[i.place + thread];
        if (thread + 128 < i.count) weights.y = job.place_weights[i.place + thread + 128];
      }
    }
    return weights;
  }
  __device__ __forceinline__ LaneStripe<UP> stripe(int index, int rank, int warp, int lane) const {
    const Item i = item(index, rank);
    const DeviceExpert& expert = job.weights[i.slot];
    if constexpr (UP)
      return lane_stripe<F>(tiled_matrix(expert.w1, job.panels), tiled_matrix(expert.w3, job.panels),
                            i.row_tile * 4 + warp / 2, warp % 2, lane);
    else
      return lane_stripe<F>(tiled_matrix(expert.w2, job.panels), i.row_tile * 8 + warp, lane);
  }
  __device__ __forceinline__ const std::uint8_t* ahead(int index, int rank, int warp) const {
    const Item i = item(index, rank);
    const DeviceExpert& expert = job.weights[i.slot];
    const Matrix& m = !UP ? expert.w2 : warp < 4 ? expert.w1 : expert.w3;
    const std::int64_t stripe = UP ? i.row_tile * 4 + warp % 4 : i.row_tile * 8 + warp;
    return reinterpret_cast<const std::uint8_t*>(m.codes) + stripe * (job.panels / 2) * tile_code_bytes(F);
  }
  __device__ __forceinline__ float post(const Matrix& m) const {
    if constexpr (F != MatrixFormat::kNVFP4) return 1.0f;
    return job.input_scale ? m.global_scale * m.input_scale : m.global_scale;
  }
  template <int TOKENS>
  __device__ __forceinline__ void finish(const Item& i, float2 weights, const float (&sums)[TOKENS / 2],
                                         const ConsumerPlace& place) const {
    if (!i.valid) return;
    const DeviceExpert& expert = job.weights[i.slot];
    std::uint16_t* out = job.out + static_cast<std::int64_t>(i.place) * job.out_stride;
    if constexpr (UP)
      store_swiglu<TOKENS>(sums, post(expert.w1), post(expert.w3), job.limit, weights,
                           out + i.row_tile * 64 + place.group * 32, job.out_stride, i.count, place);
    else
      store_rows<TOKENS>(sums, post(expert.w2), out + i.row_tile * kGemmRows + place.group * 64,
                         job.out_stride, i.count, place);
  }
};
#endif

template <MatrixFormat F, bool UP>
__global__ void __launch_bounds__(kGemmThreads, 1)
    experts_kernel(const __grid_constant__ ExpertsJob job, const __grid_constant__ GemmRing ring) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char raw[];
  const GemmShared shared = begin_products(ring, raw);
  const ExpertsWork<F, UP> work(job);
  if constexpr (token_step(F, true) == 32)
    run_products<ExpertsWork<F, UP>, 32, 64, 96, 128, 160, 192, 224, 256>(work, ring, shared);
  else
    run_products<ExpertsWork<F, UP>, 64, 128, 192, 256>(work, ring, shared);
#endif
}

template <MatrixFormat F, bool UP>
void launch_half(ExpertsJob& job, std::int64_t tiles, int tile_tokens, cudaStream_t stream,
                 const char* name) {
  static std::atomic<int> known;
  const int clusters = resident_clusters(experts_kernel<F, UP>, known);
  if (job.num_tiles == nullptr) {  // the shared expert: all tokens
    const int most = dense_tile_tokens(job.tokens, job.units, clusters);
    const TokenTiles cut = cut_tokens(job.tokens, most, token_step(F, true));
    job.tile_tokens = tile_tokens = cut.tokens;
    tiles = cut.tiles;
  }
  launch_products(experts_kernel<F, UP>, job, tile_tokens, tiles * job.units, clusters, stream, name);
}

int most_tokens(const ExpertArguments& a) {
  return expert_tile_tokens(static_cast<std::int64_t>(a.tokens) * a.chosen, a.list.slots);
}

// What both halves of the routed experts share.
ExpertsJob routed_job(const ExpertArguments& a, const ExpertRows& rows, const std::uint16_t* x,
                      std::int32_t row_tiles, std::int32_t columns) {
  ExpertsJob job{};
  job.num_tiles = rows.num_tiles;
  job.tiles = rows.tiles;
  job.weights = a.list.weights;
  job.x = x;
  job.panel_rows = rows.rows;
  job.row_tiles = row_tiles;
  job.units = gemm_units(row_tiles);
  job.panels = columns / kGemmPanel;
  job.limit = a.limit;
  job.input_scale = a.routed_rows_per_place;
  return job;
}

// The token tiles of slot blockIdx.x, and row and weight of its places.
__global__ void __launch_bounds__(kMaxExperts)
    rows_kernel(const WorkList list, const float* route_weights, int most, int step, ExpertRows rows) {
  __shared__ int sums[2][kMaxExperts / 32];
  wait_for_predecessor();
  release_successor();
  const int slot = static_cast<int>(blockIdx.x), s = static_cast<int>(threadIdx.x), warp = s / 32,
            lane = s % 32;
  const int count = s < slot ? list.count[s] : 0;
  const int tiles = __reduce_add_sync(0xffffffffu, cut_tokens(count, most, step).tiles);
  const int padded = __reduce_add_sync(0xffffffffu, round_up(count, 8));
  if (lane == 0) {
    sums[0][warp] = tiles;
    sums[1][warp] = padded;
  }
  __syncthreads();
  int first_tile = 0, first_row = 0;
  for (int w = 0; w < kMaxExperts / 32; ++w) {
    first_tile += sums[0][w];
    first_row += sums[1][w];
  }
  const int own = list.count[slot], first = own > 0 ? list.first[slot] : 0;
  const TokenTiles cut = cut_tokens(own, most, step);
  for (int t = s; t < cut.tiles; t += kMaxExperts) {
    const int from = t * cut.tokens;
    *reinterpret_cast<int4*>(rows.tiles + first_tile + t) =
        int4{slot, first_row + from, first + from, min(cut.tokens, own - from)};
  }
  if (s == 0 && slot == list.slots - 1) *rows.num_tiles = first_tile + cut.tiles;
  for (int i = s; i < own; i += kMaxExperts) {
    rows.row[first + i] = first_row + i;
    rows.weight[first + i] = route_weights[list.pairs[first + i]];
  }
}

}  // namespace

void launch_expert_rows(const ExpertArguments& a, const ExpertRows& rows, cudaStream_t stream) {
  require(a.list.slots > 0 && a.list.slots <= kMaxExperts, "up to 512 experts");
  launch({dim3(static_cast<unsigned>(a.list.slots)), dim3(kMaxExperts), 0, stream, true, "expert_rows"},
         rows_kernel, a.list, a.route_weights, most_tokens(a), token_step(a.routed_format, true), rows);
}

void launch_gemm_experts_up(const ExpertArguments& a, const ExpertRows& rows, const std::uint16_t* x,
                            cudaStream_t stream) {
  require(a.inner % 64 == 0, "an inner width in multiples of 64");
  ExpertsJob job = routed_job(a, rows, x, a.inner / 64, a.width);
  job.place_weights = rows.weight;
  job.out = static_cast<std::uint16_t*>(a.hidden);
  job.out_stride = a.inner;
  const int most = most_tokens(a);
  const std::int64_t tiles = a.list.slots + static_cast<std::int64_t>(a.tokens) * a.chosen / most;
  with_gemm_format(a.routed_format,
                   [&]<MatrixFormat F>() { launch_half<F, true>(job, tiles, most, stream, "gemm_up"); });
}

void launch_gemm_experts_down(const ExpertArguments& a, const ExpertRows& rows, const std::uint16_t* x,
                              cudaStream_t stream) {
  require(a.width % kGemmRows == 0, "a width in multiples of 128");
  ExpertsJob job = routed_job(a, rows, x, a.width / kGemmRows, a.inner);
  job.out = static_cast<std::uint16_t*>(a.partial);
  job.out_stride = a.width;
  const int most = most_tokens(a);
  const std::int64_t tiles = a.list.slots + static_cast<std::int64_t>(a.tokens) * a.chosen / most;
  with_gemm_format(a.routed_format,
                   [&]<MatrixFormat F>() { launch_half<F, false>(job, tiles, most, stream, "gemm_down"); });
}

void launch_gemm_shared_up(const ExpertArguments& a, const std::uint16_t* x, cudaStream_t stream) {
  require(a.inner % 64 == 0, "an inner width in multiples of 64");
  ExpertsJob job{};
  job.weights = a.table + a.experts;
  job.x = x;
  job.out = static_cast<std::uint16_t*>(a.hidden) + static_cast<std::int64_t>(a.tokens) * a.chosen * a.inner;
  job.panel_rows = operand_rows(a.tokens);
  job.tokens = a.tokens;
  job.out_stride = a.inner;
  job.row_tiles = a.inner / 64;
  job.units = gemm_units(job.row_tiles);
  job.panels = a.width / kGemmPanel;
  job.limit = a.limit;
  with_gemm_format(a.shared_format,
                   [&]<MatrixFormat F>() { launch_half<F, true>(job, 0, 0, stream, "gemm_shared_up"); });
}

}  // namespace pivot::cuda
