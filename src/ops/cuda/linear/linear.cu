// y[t][n] = sum_k W[n][k] x[t][k] for merged matrices that share K.
//
// Bytes: every weight once per group of 32 tokens; FLOP: 2 N K T. Bound by weight bytes up to about 32
// tokens. Schedule: one CTA per 16 rows and up to 32 tokens; its warps split K and are summed in warp order
// (tile_product.cuh).
#include "ops/cuda/linear/linear.h"

#include <algorithm>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/hyper_connection/tail.cuh"
#include "ops/cuda/linear/tile_product.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

struct DeviceJob {
  TiledMatrix matrix;
  ProductInput input;
  MatrixFormat format;
  std::int32_t rows;
  std::int32_t first_cta;
  bool out_bf16;
  float post;  // NVFP4 global scale
  void* out;
  std::int64_t out_stride;
};
struct JobList {
  DeviceJob job[kMaxJobs];
  int count, ctas;

  __device__ __forceinline__ const DeviceJob& of(int cta) const {
    int j = 0;
    while (j + 1 < count && cta >= job[j + 1].first_cta) ++j;
    return job[j];
  }
};

template <int NT>
__global__ void __launch_bounds__(512, NT == 1 ? 2 : 1)
    linear_kernel(const __grid_constant__ JobList jobs, int tokens, const __grid_constant__ SeamTail tail) {
  __shared__ __align__(16) float scratch[16 * 128];
  if (static_cast<int>(blockIdx.x) == jobs.ctas) return run_seam_tail(tail);
  const DeviceJob& job = jobs.of(static_cast<int>(blockIdx.x));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int row_tile = static_cast<int>(blockIdx.x) - job.first_cta;
  const int first = blockIdx.y * NT * 8;
  const int count = min(NT * 8, tokens - first);
  float acc[NT][4] = {};
  multiply_stripe_any<NT>(job.format, job.matrix, row_tile, job.input, first, count, warp, warps, lane, acc,
                          [] {
                            wait_for_predecessor();
                            release_successor();
                          });
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    __syncthreads();
    store_part(acc[n], 0, warp, warps, lane, scratch);
    __syncthreads();
    const float sum = sum_parts(0, warps, scratch) * job.post;
    const int row = row_tile * 16 + static_cast<int>(threadIdx.x) / 8;
    const int token = 8 * n + static_cast<int>(threadIdx.x) % 8;
    if (threadIdx.x >= 128 || row >= job.rows || token >= count) continue;
    const std::int64_t at = (first + token) * job.out_stride + row;
    if (job.out_bf16)
      store_bf16(job.out, at, sum);
    else
      static_cast<float*>(job.out)[at] = sum;
  }
}

// Stripes of few tiles, where a CTA each would spend its time on starting and summing: a CTA takes one after
// the other, and asks for the next one's tiles before it sums. FP8 codes, up to 8 tokens; bits as of
// linear_kernel.
constexpr int kNarrowWarps = 4, kNarrowCtas = 8;  // of a multiprocessor
__global__ void __launch_bounds__(kNarrowWarps * 32, kNarrowCtas)
    narrow_kernel(const __grid_constant__ JobList jobs, int tokens) {
  __shared__ __align__(16) float scratch[2][kNarrowWarps * 128];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int at = static_cast<int>(blockIdx.x);
  StripeStart<MatrixFormat::kFP8> start;
  const auto load = [&] {
    const DeviceJob& job = jobs.of(at);
    start.load(job.matrix, at - job.first_cta, warp, lane);
  };
  load();
  wait_for_predecessor();
  release_successor();
  for (int turn = 0; at < jobs.ctas; ++turn) {
    const DeviceJob& job = jobs.of(at);
    const int row_tile = at - job.first_cta;
    float acc[1][4] = {};
    multiply_stripe<MatrixFormat::kFP8, OperandF16, 1, true>(start, job.matrix.tiles_k, job.input, 0, tokens,
                                                             warp, kNarrowWarps, lane, acc);
    at += static_cast<int>(gridDim.x);
    if (at < jobs.ctas) load();
    float* parts = scratch[turn % 2];  // the other one may still be read
    store_part(acc[0], 0, warp, kNarrowWarps, lane, parts);
    __syncthreads();
    const float sum = sum_parts(0, kNarrowWarps, parts);
    const int row = row_tile * 16 + static_cast<int>(threadIdx.x) / 8,
              token = static_cast<int>(threadIdx.x) % 8;
    if (row >= job.rows || token >= tokens) continue;
    if (job.out_bf16)
      store_bf16(job.out, token * job.out_stride + row, sum);
    else
      static_cast<float*>(job.out)[token * job.out_stride + row] = sum;
  }
}

// One warp per group of 128 columns.
__global__ void quantize_fp8_kernel(const BF16* x, int groups, std::int64_t stride, std::int64_t total,
                                    std::uint16_t* values, float* scales) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (group >= total) return;
  const std::int64_t row = group / groups, column = group % groups * 128 + lane * 4;
  const uint2 raw = *reinterpret_cast<const uint2*>(x + row * stride + column);
  const float v[4] = {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                      __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u)};
  float amax = 0.0f;
#pragma unroll
  for (float value : v) amax = fmaxf(amax, fabsf(value));  // fmaxf leaves NaN out
  const std::uint8_t byte = fp8_group_scale(group_amax(amax, 32));
  *reinterpret_cast<uint2*>(values + row * groups * 128 + column) = quantize_fp8x4(v, byte);
  if (lane == 0) scales[group] = e8m0_to_float(byte);
}

}  // namespace

void launch_linear(std::span<const LinearJob> jobs, std::int64_t tokens, cudaStream_t stream,
                   const SeamTail& tail) {
  require(!jobs.empty() && jobs.size() <= kMaxJobs, "1 to 8 linear jobs");
  JobList list{};
  int ctas = 0;
  bool any_bf16 = false, all_codes = true;
  for (const LinearJob& job : jobs) {
    const Matrix& w = job.weights;
    require(w.cols == jobs[0].weights.cols && w.cols % 128 == 0,
            "linear jobs share a multiple of 128 columns");
    DeviceJob& d = list.job[list.count++];
    d.matrix = {reinterpret_cast<const std::uint8_t*>(w.codes),
                reinterpret_cast<const std::uint8_t*>(w.scales), static_cast<std::int32_t>(w.cols / 128)};
    d.input = {job.input.x, job.input.scales, nullptr, job.input.stride};
    d.format = w.format;
    any_bf16 = any_bf16 || w.format == MatrixFormat::kBF16;
    all_codes = all_codes && w.format == MatrixFormat::kFP8 && job.input.scales != nullptr;
    d.rows = static_cast<std::int32_t>(w.rows);
    d.first_cta = ctas;
    d.out_bf16 = job.out_bf16;
    d.post = w.format == MatrixFormat::kNVFP4 ? w.global_scale : 1.0f;
    d.out = job.out;
    d.out_stride = job.out_stride;
    ctas += static_cast<int>((w.rows + 15) / 16);
  }
  const int nt = token_tiles(tokens), warps = stripe_warps(list.job[0].matrix.tiles_k, any_bf16);
  list.ctas = ctas;
  if (const int most = kNarrowCtas * multiprocessors();
      all_codes && warps == kNarrowWarps && nt == 1 && ctas > most && tail.tokens == 0)
    return launch(
        {dim3(static_cast<unsigned>(most)), dim3(kNarrowWarps * 32), 0, stream, true, "linear_narrow"},
        narrow_kernel, list, static_cast<int>(tokens));
  const Launch how{dim3(static_cast<unsigned>(ctas + (tail.tokens > 0 ? 1 : 0)),
                        static_cast<unsigned>((tokens + nt * 8 - 1) / (nt * 8))),
                   dim3(static_cast<unsigned>(warps * 32)),
                   0,
                   stream,
                   true,
                   "linear"};
  switch (nt) {
    case 1:
      return launch(how, linear_kernel<1>, list, static_cast<int>(tokens), tail);
    case 2:
      return launch(how, linear_kernel<2>, list, static_cast<int>(tokens), tail);
    default:
      return launch(how, linear_kernel<4>, list, static_cast<int>(tokens), tail);
  }
}

void launch_quantize_fp8(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                         std::uint16_t* values, float* scales, cudaStream_t stream) {
  require(cols % 128 == 0 && stride % 4 == 0, "FP8 activations come in groups of 128");
  const std::int64_t groups = rows * (cols / 128);
  launch({dim3(static_cast<unsigned>((groups + 7) / 8)), dim3(256), 0, stream, true, "quantize_fp8"},
         quantize_fp8_kernel, static_cast<const BF16*>(x), static_cast<int>(cols / 128), stride, groups,
         values, scales);
}

}  // namespace pivot::cuda
