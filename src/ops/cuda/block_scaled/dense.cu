// y[t][n] = sum_k W[n][k] x[t][k] for FP8 matrices that share K, on sm_120a.
//
// FLOP: 2 N K T; bytes: codes once per CTA column of tokens (from L2 after the first), 1 a value. Bound by
// weight bytes up to about 128 tokens, then by the tensor cores. A CTA takes 64 rows and 8 or 32 tokens, or
// 128 rows and 128 tokens.
#include <algorithm>

#include "ops/cuda/block_scaled/block_scaled.h"
#include "ops/cuda/block_scaled/multiply.cuh"
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

struct DeviceJob {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  BlockInput input;
  void* out;
  std::int64_t out_stride;
  std::int32_t tiles_k, rows, first_cta;
  bool out_bf16;
};
struct JobList {
  DeviceJob job[kMaxBlockJobs];
  int count;
};

// grid (CTA rows of all jobs, token tiles)
template <BlockSize S>
__global__ void __launch_bounds__(BlockProduct<BlockKind::kFp8, S>::kThreads)
    block_dense_kernel(const __grid_constant__ JobList jobs, int tokens) {
  if constexpr (kBlockScaledMma) {
    using Product = BlockProduct<BlockKind::kFp8, S>;
    extern __shared__ __align__(16) std::uint8_t stages[];
    int j = 0;
    while (j + 1 < jobs.count && static_cast<int>(blockIdx.x) >= jobs.job[j + 1].first_cta) ++j;
    const DeviceJob& job = jobs.job[j];
    const int first_tile = (static_cast<int>(blockIdx.x) - job.first_cta) * Product::kRowTiles;
    const int first = static_cast<int>(blockIdx.y) * Product::kTokens,
              count = min(Product::kTokens, tokens - first);
    const BlockRows rows{{job.codes, job.scales, first_tile},
                         {job.codes, job.scales, first_tile + Product::kRowWarps},
                         (job.rows + 15) / 16 - 1,
                         job.tiles_k};
    typename Product::Sums acc;
    Product product(rows, stages);
    product.template run<true>({job.input.codes, job.input.scales, job.input.row_bytes,
                                job.input.row_scale_bytes, nullptr, first, count},
                               stages, acc);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < Product::kTokenTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = (first_tile + warp_row_tile<S>(warp, m)) * 16 + accumulator_row(lane, i);
          const int token = warp_first_token<S>(warp) + accumulator_token(lane, n, i);
          if (row >= job.rows || token >= count) continue;
          const std::int64_t at = (first + token) * job.out_stride + row;
          if (job.out_bf16)
            store_bf16(job.out, at, acc[m][n][i]);
          else
            static_cast<float*>(job.out)[at] = acc[m][n][i];
        }
  }
}

template <BlockSize S>
void launch_size(JobList& list, std::span<const BlockJob> jobs, std::int64_t tokens, cudaStream_t stream) {
  constexpr BlockTile kTile = block_tile(BlockKind::kFp8, S);
  int ctas = 0;
  for (int j = 0; j < list.count; ++j) {
    list.job[j].first_cta = ctas;
    ctas +=
        static_cast<int>((jobs[static_cast<std::size_t>(j)].weights.rows + kTile.rows() - 1) / kTile.rows());
  }
  const dim3 grid(static_cast<unsigned>(ctas),
                  static_cast<unsigned>((tokens + kTile.tokens() - 1) / kTile.tokens()));
  launch({grid, dim3(static_cast<unsigned>(kTile.threads())), block_shared_bytes(BlockKind::kFp8, S), stream,
          true, "block_dense"},
         block_dense_kernel<S>, list, static_cast<int>(tokens));
}

}  // namespace

void launch_block_dense(std::span<const BlockJob> jobs, std::int64_t tokens, cudaStream_t stream) {
  require(!jobs.empty() && jobs.size() <= kMaxBlockJobs, "1 to 8 block-scaled jobs");
  JobList list{};
  for (const BlockJob& job : jobs) {
    const Matrix& w = job.weights;
    require(w.format == MatrixFormat::kFP8 && w.scale_format == ScaleFormat::kE8M0 &&
                w.cols == jobs[0].weights.cols,
            "FP8 jobs under powers of two with the same number of columns");
    require(job.column % 512 == 0, "a first column that is a multiple of 512");
    DeviceJob& d = list.job[list.count++];
    d.codes = reinterpret_cast<const std::uint8_t*>(w.codes);
    d.scales = reinterpret_cast<const std::uint8_t*>(w.scales);
    d.input = job.input;
    d.input.codes += job.column;
    d.input.scales += job.column / 128;
    d.out = job.out;
    d.out_stride = job.out_stride;
    d.tiles_k = static_cast<std::int32_t>(w.cols / 128);
    d.rows = static_cast<std::int32_t>(w.rows);
    d.out_bf16 = job.out_bf16;
  }
  switch (dense_block_size(tokens)) {
    case BlockSize::kSmall:
      return launch_size<BlockSize::kSmall>(list, jobs, tokens, stream);
    case BlockSize::kMedium:
      return launch_size<BlockSize::kMedium>(list, jobs, tokens, stream);
    case BlockSize::kWide:
      return launch_size<BlockSize::kWide>(list, jobs, tokens, stream);
  }
}

}  // namespace pivot::cuda
