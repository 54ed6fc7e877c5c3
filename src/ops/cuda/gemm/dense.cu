// y[t][n] = sum_k W[n][k] x[t][k] for many tokens t, for the linear layers of a step (product.cuh).
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/gemm/launch.cuh"
#include "ops/cuda/gemm/results.cuh"

namespace pivot::cuda {
namespace {

struct DenseJob {
  TiledMatrix matrix;
  const std::uint16_t* x;
  void* out;
  std::int64_t out_stride;
  float post;
  std::int32_t first_unit, row_tiles;  // CTA tiles of 128 rows; a unit is one of each CTA of a cluster
  bool out_bf16;
};
constexpr int kMaxGemmJobs = 8;
struct DenseJobs {
  DenseJob job[kMaxGemmJobs];
  std::int64_t panel_rows;
  std::int32_t count, units, tokens, tile_tokens, tiles, panels;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kBand = 8;  // row units of a band (gemm_item)

template <MatrixFormat F>
struct DenseWork {
  static constexpr MatrixFormat kFormat = F;
  static constexpr bool kTwo = false;
  static constexpr int kTokenStep = token_step(F, false);
  struct Item {
    const std::uint16_t* panels;
    std::int32_t row, count, job, row_tile;
    bool valid;  // a CTA without rows of its own multiplies its neighbour's, because it fetches for it
  };
  struct Nothing {};

  const DenseJobs& jobs;

  __device__ __forceinline__ int items() const { return jobs.units * jobs.tiles; }
  __device__ __forceinline__ int panels() const { return jobs.panels; }
  __device__ __forceinline__ std::int64_t panel_rows() const { return jobs.panel_rows; }
  __device__ __forceinline__ Item item(int index, int rank) const {
    const GemmItem at = gemm_item(index, jobs.units, jobs.tiles, kBand);
    int j = 0;
    while (j + 1 < jobs.count && at.unit >= jobs.job[j + 1].first_unit) ++j;
    const DenseJob& job = jobs.job[j];
    const int row_tile = (at.unit - job.first_unit) * kGemmCluster + rank, row = at.tile * jobs.tile_tokens;
    return {job.x,
            row,
            min(jobs.tile_tokens, jobs.tokens - row),
            j,
            min(row_tile, job.row_tiles - 1),
            row_tile < job.row_tiles};
  }
  __device__ __forceinline__ Nothing bring(const Item&) const { return {}; }
  __device__ __forceinline__ LaneStripe<false> stripe(int index, int rank, int warp, int lane) const {
    const Item i = item(index, rank);
    return lane_stripe<F>(jobs.job[i.job].matrix, i.row_tile * 8 + warp, lane);
  }
  __device__ __forceinline__ const std::uint8_t* ahead(int index, int rank, int warp) const {
    const Item i = item(index, rank);
    const TiledMatrix& m = jobs.job[i.job].matrix;
    return m.codes + static_cast<std::int64_t>(i.row_tile * 8 + warp) * m.tiles_k * tile_code_bytes(F);
  }
  template <int TOKENS>
  __device__ __forceinline__ void finish(const Item& i, Nothing, const float (&sums)[TOKENS / 2],
                                         const ConsumerPlace& place) const {
    if (!i.valid) return;
    const DenseJob& job = jobs.job[i.job];
    const std::int64_t at =
        static_cast<std::int64_t>(i.row) * job.out_stride + i.row_tile * kGemmRows + place.group * 64;
    if (job.out_bf16)
      store_rows<TOKENS>(sums, job.post, static_cast<std::uint16_t*>(job.out) + at, job.out_stride, i.count,
                         place);
    else
      store_rows<TOKENS>(sums, job.post, static_cast<float*>(job.out) + at, job.out_stride, i.count, place);
  }
};
#endif

template <MatrixFormat F>
__global__ void __launch_bounds__(kGemmThreads, 1)
    dense_kernel(const __grid_constant__ DenseJobs jobs, const __grid_constant__ GemmRing ring) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char raw[];
  const GemmShared shared = begin_products(ring, raw);
  const DenseWork<F> work{jobs};
  run_products<DenseWork<F>, 64, 128, 192, 256>(work, ring, shared);
#endif
}

template <MatrixFormat F>
void launch_dense(DenseJobs& list, cudaStream_t stream) {
  static std::atomic<int> known;
  const int clusters = resident_clusters(dense_kernel<F>, known);
  const TokenTiles tiles =
      cut_tokens(list.tokens, dense_tile_tokens(list.tokens, list.units, clusters), token_step(F, false));
  list.tile_tokens = tiles.tokens;
  list.tiles = tiles.tiles;
  launch_products(dense_kernel<F>, list, tiles.tokens, static_cast<std::int64_t>(list.units) * list.tiles,
                  clusters, stream, "gemm");
}

}  // namespace

bool has_gemm(int compute_major) { return compute_major == 9; }

bool gemm_takes(const Matrix& w) {
  return w.rows % kGemmRows == 0 && (w.format != MatrixFormat::kFP8 || w.scale_format == ScaleFormat::kE8M0);
}

void launch_gemm(std::span<const GemmJob> jobs, std::int64_t tokens, cudaStream_t stream) {
  require(!jobs.empty() && jobs.size() <= kMaxGemmJobs, "1 to 8 jobs");
  DenseJobs list{};
  for (const GemmJob& job : jobs) {
    const Matrix& w = job.weights;
    require(gemm_takes(w) && w.cols == jobs[0].weights.cols && w.format == jobs[0].weights.format,
            "jobs of one format and number of columns");
    require(reinterpret_cast<std::uintptr_t>(job.out) % 16 == 0 && job.out_stride % 8 == 0,
            "results at multiples of 16 bytes");
    DenseJob& d = list.job[list.count++];
    d.matrix = {reinterpret_cast<const std::uint8_t*>(w.codes),
                reinterpret_cast<const std::uint8_t*>(w.scales),
                static_cast<std::int32_t>(w.cols / kTileCols)};
    d.x = job.x;
    d.out = job.out;
    d.out_stride = job.out_stride;
    d.post = w.format == MatrixFormat::kNVFP4 ? w.global_scale : 1.0f;
    d.first_unit = list.units;
    d.row_tiles = static_cast<std::int32_t>(w.rows / kGemmRows);
    d.out_bf16 = job.out_bf16;
    list.units += gemm_units(d.row_tiles);
  }
  list.panel_rows = operand_rows(tokens);
  list.tokens = static_cast<std::int32_t>(tokens);
  list.panels = static_cast<std::int32_t>(jobs[0].weights.cols / kGemmPanel);
  with_gemm_format(jobs[0].weights.format, [&]<MatrixFormat F>() { launch_dense<F>(list, stream); });
}

}  // namespace pivot::cuda
