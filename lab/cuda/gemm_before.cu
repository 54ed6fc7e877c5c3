// Laboratory: the prefill product as it was until 2026-12-01, the reference of gemm.cu in this folder.
//
// y[t][n] = sum_k W[n][k] x[t][k] for many tokens t, weights in their checkpoint codes.
//
// FLOP: 2 N K T; bytes: the codes once per 128 tokens (from L2 after the first), x once per 128 rows. Bound
// by the tensor cores. A CTA of two warpgroups takes 128 rows and 128 tokens. A warp decodes its 16 rows of
// codes to exact BF16 in registers, where wgmma takes its left operand from; the right one comes from shared
// memory, three stages of 128 columns. The tiled layout puts a warp's codes where the instruction wants them,
// so weights never pass through shared memory, and a decoded fragment serves 128 tokens. For w1 and w3 of an
// expert one warpgroup takes 64 rows of each, and SwiGLU is the epilogue.
//
// Operands are exact (e4m3 x 2^k, e2m1 x 2^k, e2m1 x e4m3 fit BF16), so only fp32 summation order differs
// from the oracle: k ascending, as the instruction adds.
#include "gemm_before.h"

#include <algorithm>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/linear/tile_product.cuh"
#include "ops/cuda/moe/swiglu.cuh"
#include "ops/cuda/placement/schedule.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda::before {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 128;  // of a CTA
constexpr int kRows = 128;    // of a CTA
constexpr int kStages = 3;
constexpr int kAtomBytes = kTokens * 128;                   // 64 columns of every token
constexpr int kStageBytes = 2 * kAtomBytes;                 // 128 columns
constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // atoms start at multiples of 1024

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Rows of 128 bytes, 16-byte pieces XORed with the row number mod 8; eight rows are 1024 bytes.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t shared) {
  return static_cast<std::uint64_t>((shared & 0x3ffffu) >> 4) | std::uint64_t{1} << 16 |
         std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
#define PIVOT_D8(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
// d += a b: a 64 x 16 from registers (16 rows a warp), b 16 x 128 from shared memory.
__device__ __forceinline__ void wgmma(float (&d)[64], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                      std::uint32_t a3, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%"
      "27,"
      "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%"
      "53,"
      "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
      : PIVOT_D8(0), PIVOT_D8(8), PIVOT_D8(16), PIVOT_D8(24), PIVOT_D8(32), PIVOT_D8(40), PIVOT_D8(48),
        PIVOT_D8(56)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
#undef PIVOT_D8

__device__ __forceinline__ std::uint32_t power_of_two_pair(std::uint32_t e8m0) {  // as BF16 pair
  return (e8m0 == 0 ? 0x40u : e8m0 << 7) * 0x00010001u;
}

// The left operand of steps 2q and 2q + 1 of a tile of 128 columns.
template <MatrixFormat F>
__device__ __forceinline__ void decode_steps(const TileFragments<F>& w, int q, int lane,
                                             std::uint32_t (&a)[8]) {
  if constexpr (F == MatrixFormat::kBF16) {
    const uint4 lo = w.codes[2 * q], hi = w.codes[2 * q + 1];
    a[0] = lo.x, a[1] = hi.x, a[2] = lo.y, a[3] = hi.y;
    a[4] = lo.z, a[5] = hi.z, a[6] = lo.w, a[7] = hi.w;
  } else if constexpr (F == MatrixFormat::kFP8) {
    const uint4 lo = w.codes[q / 2 * 2], hi = w.codes[q / 2 * 2 + 1];
    const std::uint32_t l[2] = {q % 2 == 0 ? lo.x : lo.z, q % 2 == 0 ? lo.y : lo.w};
    const std::uint32_t h[2] = {q % 2 == 0 ? hi.x : hi.z, q % 2 == 0 ? hi.y : hi.w};
    const std::uint32_t scale = power_of_two_pair(w.scales[0] >> 23);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      a[4 * j] = mul_bf16x2(expand_fp8_bf16(l[j], 0), scale);
      a[4 * j + 1] = mul_bf16x2(expand_fp8_bf16(h[j], 0), scale);
      a[4 * j + 2] = mul_bf16x2(expand_fp8_bf16(l[j], 1), scale);
      a[4 * j + 3] = mul_bf16x2(expand_fp8_bf16(h[j], 1), scale);
    }
  } else {
    const uint4 low = w.codes[0], high = w.codes[1];
    const std::uint32_t lo = q == 0 ? low.x : q == 1 ? low.y : q == 2 ? low.z : low.w;
    const std::uint32_t hi = q == 0 ? high.x : q == 1 ? high.y : q == 2 ? high.z : high.w;
    std::uint32_t l[4], h[4];
    expand_fp4_bf16(lo, l);
    expand_fp4_bf16(hi, h);
    std::uint32_t s_lo, s_hi;
    if constexpr (F == MatrixFormat::kFP4) {
      s_lo = power_of_two_pair((w.scales[0] >> (8 * q)) & 0xffu);
      s_hi = power_of_two_pair((w.scales[1] >> (8 * q)) & 0xffu);
    } else {
      const int byte = (2 * q + lane % 4 / 2) & 3;
      const std::uint32_t c_lo = (w.scales[q / 2] >> (8 * byte)) & 0xffu;
      const std::uint32_t c_hi = (w.scales[2 + q / 2] >> (8 * byte)) & 0xffu;
      s_lo = expand_fp8_bf16(c_lo | c_lo << 8, 0);
      s_hi = expand_fp8_bf16(c_hi | c_hi << 8, 0);
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      a[2 * p] = mul_bf16x2(mul_bf16x2(l[p], 0x7e807e80u), s_lo);
      a[2 * p + 1] = mul_bf16x2(mul_bf16x2(h[p], 0x7e807e80u), s_hi);
    }
  }
}

// One CTA's product: the warp's stripe is `row_tile` of `m`; token i of the tile is row rows[i] of x (or
// first + i). The accumulator of lane l: rows l/4 and l/4 + 8 of the stripe, tokens 8j + 2(l%4) + {0, 1}.
template <MatrixFormat F>
__device__ __forceinline__ void multiply(const TiledMatrix& m, std::int64_t row_tile, const std::uint16_t* x,
                                         std::int64_t stride, const std::int32_t* rows, int first, int count,
                                         std::uint32_t shared, float (&acc)[64]) {
  const int lane = threadIdx.x % 32, tiles = m.tiles_k;
  // Thread i copies piece i % 16 of tokens i / 16 + 16 n.
  const int piece = threadIdx.x % 16;
  const std::uint16_t* source[kTokens / 16];
#pragma unroll
  for (int n = 0; n < kTokens / 16; ++n) {
    const int token = first + min(static_cast<int>(threadIdx.x) / 16 + 16 * n, count - 1);
    source[n] = x + static_cast<std::int64_t>(rows == nullptr ? token : rows[token]) * stride + piece * 8;
  }
  const std::uint32_t token0 = threadIdx.x / 16;
  const std::uint32_t target = piece / 8 * kAtomBytes + token0 * 128 + ((piece % 8) ^ (token0 % 8)) * 16;
  const auto fetch = [&](int kt) {
    if (kt < tiles) {
      const std::uint32_t stage = shared + kt % kStages * kStageBytes + target;
#pragma unroll
      for (int n = 0; n < kTokens / 16; ++n) copy_async16(stage + n * 16 * 128, source[n] + kt * 128);
    }
    copy_async_commit();
  };
  StripePlace<F> at(m, row_tile * tiles, lane);
  TileFragments<F> tile;
  tile.load(at);
  fetch(0);
  fetch(1);
#pragma unroll
  for (float& v : acc) v = 0.0f;
#pragma unroll 1
  for (int kt = 0; kt < tiles; ++kt) {
    copy_async_wait<1>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();  // this stage is there, and everybody is done with the one before it
    fetch(kt + 2);
    TileFragments<F> next = tile;
    at.advance(1);
    if (kt + 1 < tiles) next.load(at);
    const std::uint64_t stage = descriptor(shared + kt % kStages * kStageBytes);
    std::uint32_t a[2][8];
    wgmma_fence();
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if (q >= 2) wgmma_wait<1>();  // the registers of step q - 2
      decode_steps<F>(tile, q, lane, a[q % 2]);
      wgmma_fence();
      // 32 bytes a step inside an atom, an atom each 64 columns; the address counts 16 bytes.
      const std::uint64_t b = stage + q / 2 * (kAtomBytes / 16) + q % 2 * 4;
      wgmma(acc, a[q % 2][0], a[q % 2][1], a[q % 2][2], a[q % 2][3], b);
      wgmma(acc, a[q % 2][4], a[q % 2][5], a[q % 2][6], a[q % 2][7], b + 2);
      wgmma_commit();
    }
    wgmma_wait<0>();
    tile = next;
  }
  copy_async_wait<0>();
  __syncthreads();  // shared memory is free for the epilogue
}
#endif

struct DenseJob {
  TiledMatrix matrix;
  const std::uint16_t* x;
  std::int64_t x_stride;
  void* out;
  std::int64_t out_stride;
  float post;
  std::int32_t first_cta;
  bool out_bf16;
};
constexpr int kMaxGemmJobs = 8;
struct DenseJobs {
  DenseJob job[kMaxGemmJobs];
  int count;
};

[[maybe_unused]] __device__ __forceinline__ std::uint32_t aligned_shared(const void* p) {
  return (shared_address(p) + 1023u) & ~1023u;
}

// grid (row tiles of all jobs, token tiles)
template <MatrixFormat F>
__global__ void __launch_bounds__(kThreads, 2)
    dense_kernel(const __grid_constant__ DenseJobs jobs, int tokens) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char raw[];
  const std::uint32_t shared = aligned_shared(raw);
  wait_for_predecessor();
  release_successor();
  int j = 0;
  while (j + 1 < jobs.count && static_cast<int>(blockIdx.x) >= jobs.job[j + 1].first_cta) ++j;
  const DenseJob& job = jobs.job[j];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t row_tile = (static_cast<int>(blockIdx.x) - job.first_cta) * (kRows / 16) + warp;
  const int first = blockIdx.y * kTokens, count = min(kTokens, tokens - first);
  float acc[64];
  multiply<F>(job.matrix, row_tile, job.x, job.x_stride, nullptr, first, count, shared, acc);
  const std::int64_t row = row_tile * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 16; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = 8 * i + 2 * (lane % 4) + k % 2;
      if (token >= count) continue;
      const std::int64_t at = (first + token) * job.out_stride + row + k / 2 * 8;
      const float v = acc[4 * i + k] * job.post;
      if (job.out_bf16)
        store_bf16(job.out, at, v);
      else
        static_cast<float*>(job.out)[at] = v;
    }
#endif
}

// grid (row tiles, most token tiles there can be). UP: 64 rows of w1 and of w3, SwiGLU; else 128 rows of w2.
template <MatrixFormat F, bool UP>
__global__ void __launch_bounds__(kThreads, 2)
    experts_kernel(const __grid_constant__ ExpertArguments a, const std::uint16_t* x,
                   const std::int32_t* tiles) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char raw[];
  const std::uint32_t shared = aligned_shared(raw);
  wait_for_predecessor();
  release_successor();
  const int tile = blockIdx.y;
  if (tile >= tiles[a.list.slots]) return;
  const int slot = slot_of_tile(tiles, a.list.slots, tile);
  const DeviceExpert& expert = a.list.weights[slot];
  const int first = a.list.first[slot] + (tile - tiles[slot]) * kTokens;
  const int count = min(kTokens, a.list.first[slot] + a.list.count[slot] - first);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Matrix& m = UP ? (warp < 4 ? expert.w1 : expert.w3) : expert.w2;
  const TiledMatrix matrix{reinterpret_cast<const std::uint8_t*>(m.codes),
                           reinterpret_cast<const std::uint8_t*>(m.scales),
                           static_cast<std::int32_t>(m.cols / 128)};
  const float post = F != MatrixFormat::kNVFP4 ? 1.0f
                     : a.routed_rows_per_place ? m.global_scale * m.input_scale
                                               : m.global_scale;
  const std::int64_t row_tile = UP ? static_cast<std::int64_t>(blockIdx.x) * 4 + warp % 4
                                   : static_cast<std::int64_t>(blockIdx.x) * 8 + warp;
  float acc[64];
  multiply<F>(matrix, row_tile, x, UP ? a.width : a.inner,
              UP && !a.routed_rows_per_place ? a.list.tokens : nullptr, first, count, shared, acc);
  const std::int64_t row = row_tile * 16 + lane / 4;
  if constexpr (UP) {
    // u of the second warpgroup meets g of the first: [row in tile][token], fp32.
    float* exchange = reinterpret_cast<float*>(raw);
    if (warp >= 4)
#pragma unroll
      for (int i = 0; i < 16; ++i)
#pragma unroll
        for (int k = 0; k < 2; ++k)
          *reinterpret_cast<float2*>(exchange + (warp % 4 * 16 + lane / 4 + 8 * k) * (kTokens + 8) + 8 * i +
                                     2 * (lane % 4)) =
              float2{acc[4 * i + 2 * k] * post, acc[4 * i + 2 * k + 1] * post};
    __syncthreads();
    if (warp >= 4) return;
#pragma unroll
    for (int i = 0; i < 16; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int token = 8 * i + 2 * (lane % 4) + k % 2;
        if (token >= count) continue;
        const float g = round_bf16(acc[4 * i + k] * post);
        const float u = round_bf16(exchange[(warp * 16 + lane / 4 + k / 2 * 8) * (kTokens + 8) + token]);
        const float v = swiglu(g, u, a.limit, a.route_weights[a.list.pairs[first + token]]);
        store_bf16(a.hidden, static_cast<std::int64_t>(first + token) * a.inner + row + k / 2 * 8, v);
      }
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int token = 8 * i + 2 * (lane % 4) + k % 2;
        if (token < count)
          store_bf16(a.partial, static_cast<std::int64_t>(first + token) * a.width + row + k / 2 * 8,
                     acc[4 * i + k] * post);
      }
  }
#endif
}

__global__ void __launch_bounds__(256)
    swiglu_kernel(const BF16* g, const BF16* u, std::int64_t count, float limit, BF16* out) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  out[i] = to_bf16(swiglu(to_float(g[i]), to_float(u[i]), limit, 1.0f));
}

// One warp per group of 128 columns. `lane_columns`: consecutive columns that one of four lanes owns in a
// block.
__global__ void __launch_bounds__(256)
    operand_kernel(const BF16* x, int groups, std::int64_t stride, std::int64_t total, int lane_columns,
                   bool fp8, std::uint16_t* out) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (group >= total) return;
  const std::int64_t row = group / groups, column = group % groups * 128 + lane * 4;
  uint2 raw = *reinterpret_cast<const uint2*>(x + row * stride + column);
  if (fp8) {
    const float v[4] = {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                        __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u)};
    float amax = 0.0f;
#pragma unroll
    for (float value : v) amax = fmaxf(amax, fabsf(value));
    const std::uint8_t byte = fp8_group_scale(group_amax(amax, 32));
    raw.x = pack_bf16x2(round_e4m3(v[0], byte), round_e4m3(v[1], byte));
    raw.y = pack_bf16x2(round_e4m3(v[2], byte), round_e4m3(v[3], byte));
  }
  // Column c of a block: lane t = c / lane_columns, pair m = c % lane_columns / 2 -> step m / 2, half m % 2.
  const auto place = [&](int c) {
    const int block = 4 * lane_columns, in = c % block, t = in / lane_columns, m = in % lane_columns / 2;
    return c - in + m / 2 * 16 + m % 2 * 8 + 2 * t;
  };
  std::uint16_t* to = out + row * groups * 128 + group % groups * 128;
  *reinterpret_cast<std::uint32_t*>(to + place(lane * 4)) = raw.x;
  *reinterpret_cast<std::uint32_t*>(to + place(lane * 4 + 2)) = raw.y;
}

template <class F>
void with_format(MatrixFormat format, const F& f) {
  switch (format) {
    case MatrixFormat::kBF16:
      return f.template operator()<MatrixFormat::kBF16>();
    case MatrixFormat::kFP8:
      return f.template operator()<MatrixFormat::kFP8>();
    case MatrixFormat::kFP4:
      return f.template operator()<MatrixFormat::kFP4>();
    case MatrixFormat::kNVFP4:
      return f.template operator()<MatrixFormat::kNVFP4>();
    case MatrixFormat::kF32:
      require(false, "matrices in BF16, FP8, FP4 or NVFP4");
  }
}

unsigned most_tiles(const ExpertArguments& a) {
  const std::int64_t pairs = static_cast<std::int64_t>(a.tokens) * a.chosen;
  return static_cast<unsigned>(std::min<std::int64_t>(pairs, a.list.slots + pairs / kTokens));
}

}  // namespace

bool gemm_takes(const Matrix& w) {
  return w.rows % kRows == 0 && (w.format != MatrixFormat::kFP8 || w.scale_format == ScaleFormat::kE8M0);
}

void launch_gemm_operand(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                         MatrixFormat format, bool fp8, std::uint16_t* out, cudaStream_t stream) {
  require(cols % 128 == 0 && stride % 4 == 0, "columns in groups of 128");
  const std::int64_t total = rows * (cols / 128);
  launch({dim3(static_cast<unsigned>((total + 7) / 8)), dim3(256), 0, stream, true, "gemm_operand"},
         operand_kernel, static_cast<const BF16*>(x), static_cast<int>(cols / 128), stride, total,
         format == MatrixFormat::kFP8 ? 16 : 8, fp8, out);
}

void launch_gemm(std::span<const GemmJob> jobs, std::int64_t tokens, cudaStream_t stream) {
  require(!jobs.empty() && jobs.size() <= kMaxGemmJobs, "1 to 8 jobs");
  DenseJobs list{};
  int ctas = 0;
  for (const GemmJob& job : jobs) {
    const Matrix& w = job.weights;
    require(gemm_takes(w) && w.cols == jobs[0].weights.cols && w.format == jobs[0].weights.format,
            "jobs of one format and number of columns");
    DenseJob& d = list.job[list.count++];
    d.matrix = {reinterpret_cast<const std::uint8_t*>(w.codes),
                reinterpret_cast<const std::uint8_t*>(w.scales), static_cast<std::int32_t>(w.cols / 128)};
    d.x = job.x;
    d.x_stride = job.x_stride;
    d.out = job.out;
    d.out_stride = job.out_stride;
    d.post = w.format == MatrixFormat::kNVFP4 ? w.global_scale : 1.0f;
    d.first_cta = ctas;
    d.out_bf16 = job.out_bf16;
    ctas += static_cast<int>(w.rows / kRows);
  }
  const Launch how{dim3(static_cast<unsigned>(ctas), static_cast<unsigned>((tokens + kTokens - 1) / kTokens)),
                   dim3(kThreads),
                   kSharedBytes,
                   stream,
                   true,
                   "gemm"};
  with_format(jobs[0].weights.format,
              [&]<MatrixFormat F>() { launch(how, dense_kernel<F>, list, static_cast<int>(tokens)); });
}

void launch_gemm_experts_up(const ExpertArguments& a, const std::uint16_t* x, std::int32_t* tiles,
                            cudaStream_t stream) {
  require(a.inner % 64 == 0, "an inner width in multiples of 64");
  launch_tile_list(a.list, kTokens, tiles, stream);
  const Launch how{dim3(static_cast<unsigned>(a.inner / 64), most_tiles(a)),
                   dim3(kThreads),
                   kSharedBytes,
                   stream,
                   true,
                   "gemm_up"};
  with_format(a.routed_format, [&]<MatrixFormat F>() {
    launch(how, experts_kernel<F, true>, a, x, static_cast<const std::int32_t*>(tiles));
  });
}

void launch_gemm_experts_down(const ExpertArguments& a, const std::uint16_t* x, const std::int32_t* tiles,
                              cudaStream_t stream) {
  require(a.width % kRows == 0, "a width in multiples of 128");
  const Launch how{dim3(static_cast<unsigned>(a.width / kRows), most_tiles(a)),
                   dim3(kThreads),
                   kSharedBytes,
                   stream,
                   true,
                   "gemm_down"};
  with_format(a.routed_format, [&]<MatrixFormat F>() { launch(how, experts_kernel<F, false>, a, x, tiles); });
}

void launch_swiglu(const void* g, const void* u, std::int64_t count, float limit, void* out,
                   cudaStream_t stream) {
  launch({dim3(static_cast<unsigned>((count + 255) / 256)), dim3(256), 0, stream, true, "swiglu"},
         swiglu_kernel, static_cast<const BF16*>(g), static_cast<const BF16*>(u), count, limit,
         static_cast<BF16*>(out));
}

}  // namespace pivot::cuda::before
