// h'[k] = bf(post[k] o + sum_j C[j][k] h[j]);  m = (fn . h') g;  x = rms(bf(sum_j pre[j] h'[j]), norm).
//
// Bytes: h read and written once, fn (1.57 MB at d = 4096) once per group of 8 tokens. Two kernels: `mix`
// spreads the 24 x 4d product over the card and leaves partial sums; `finish`, one CTA a token, adds them in
// a fixed order. Only `pre` is needed before the sublayer: `post` and Sinkhorn are left to a later kernel
// (tail.cuh), or run in a warp of their own beside the norm. Weights are asked for before waiting for the
// previous kernel, and the streams of `finish` before the partial sums are added: a step of one token waits
// for two memory latencies, not five.
#include "ops/cuda/hyper_connection/hyper_connection.h"

#include <algorithm>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/hyper_connection/finish.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kMixColumns = 64;  // columns of one CTA, times 4 streams = 256 threads

__device__ __forceinline__ float round_operand(float x, HyperPrecision precision) {
  if (precision == HyperPrecision::kBf16) return round_bf16(x);
  if (precision == HyperPrecision::kTf32) {
    const std::uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7f800000u) == 0x7f800000u) return x;
    return __uint_as_float((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
  }
  return x;
}

// Sums 32 values over the warp; lane l gets the sum of value l. 31 shuffles where 32 sums would take 160.
template <int STEP>
__device__ __forceinline__ void fold_halves(float (&v)[32]) {
  const bool upper = (threadIdx.x & STEP) != 0;
#pragma unroll
  for (int i = 0; i < STEP; ++i) {
    const float low = v[i], high = v[i + STEP];
    const float other = __shfl_xor_sync(0xffffffffu, upper ? low : high, STEP);
    v[i] = (upper ? high : low) + other;
  }
}
__device__ __forceinline__ float transposed_warp_sum(float (&v)[32]) {
  fold_halves<16>(v);
  fold_halves<8>(v);
  fold_halves<4>(v);
  fold_halves<2>(v);
  fold_halves<1>(v);
  return v[0];
}

// A weight load that stays where it is written.
__device__ __forceinline__ float load_early(const float* p) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}

// What a thread of `mix` reads of one token.
struct MixInput {
  float h[kStreams], comb[kStreams], post, out;

  __device__ __forceinline__ void load(const SeamArguments& a, std::int64_t t, int stream, int column) {
    const BF16* row = static_cast<const BF16*>(a.h) + t * kStreams * a.shape.width;
    if (a.sublayer_out == nullptr) {
      h[0] = to_float(row[stream * a.shape.width + column]);
      return;
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      h[j] = to_float(row[j * a.shape.width + column]);
      comb[j] = a.comb[(t * kStreams + j) * kStreams + stream];
    }
    post = a.post[t * kStreams + stream];
    out = load_bf16(a.sublayer_out, t * a.shape.width + column);
  }
};

// grid (d / 64, token groups). Thread (stream, column). partials[t][ROWS + 1][cta], the last row the sum of
// squares. The next token's values are on their way while one is reduced.
template <int ROWS, int TOKENS>
__global__ void __launch_bounds__(256) mix_kernel(const __grid_constant__ SeamArguments a, int tokens) {
  __shared__ float sums[2][8][32];
  static_assert(ROWS < 32);
  const int width = a.shape.width;
  const int stream = threadIdx.x / kMixColumns, column = blockIdx.x * kMixColumns + threadIdx.x % kMixColumns;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float fn[ROWS];  // asked for all at once: a rounding in between would make each load wait for the last
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    fn[r] = load_early(a.fn + static_cast<std::int64_t>(r) * kStreams * width + stream * width + column);
  wait_for_predecessor();
  release_successor();
  if (a.precision != HyperPrecision::kF32)
#pragma unroll
    for (int r = 0; r < ROWS; ++r) fn[r] = round_operand(fn[r], a.precision);
  const int first = blockIdx.y * TOKENS, count = min(TOKENS, tokens - first);
  MixInput now;
  now.load(a, first, stream, column);
  for (int i = 0; i < count; ++i) {
    const std::int64_t t = first + i;
    MixInput next = now;
    if (TOKENS > 1 && i + 1 < count) next.load(a, t + 1, stream, column);
    float value = now.h[0];
    if (a.sublayer_out != nullptr) {
      float mixed = 0.0f;
#pragma unroll
      for (int j = 0; j < kStreams; ++j) mixed += now.comb[j] * now.h[j];
      value = round_bf16(now.post * now.out + mixed);
      __syncthreads();  // every stream has read the old rows
      static_cast<BF16*>(a.h)[(t * kStreams + stream) * width + column] = to_bf16(value);
    }
    const float u = round_operand(value, a.precision);
    float products[32];
#pragma unroll
    for (int r = 0; r < 32; ++r)
      products[r] = r < ROWS ? fn[r < ROWS ? r : 0] * u : r == ROWS ? value * value : 0.0f;
    sums[i % 2][warp][lane] = transposed_warp_sum(products);
    __syncthreads();
    if (threadIdx.x <= ROWS) {
      float s = 0.0f;
#pragma unroll
      for (int w = 0; w < 8; ++w) s += sums[i % 2][w][threadIdx.x];
      a.partials[(t * (ROWS + 1) + threadIdx.x) * gridDim.x + blockIdx.x] = s;
    }
    now = next;
  }
}

// The same for long steps: the products are tiles of 64 tokens x 24 rows over 256 values of K in shared
// memory, where mix_kernel spends five shuffles and their selects on each value.
constexpr int kManyTokens = 64;
constexpr int kManyStride = 260;  // floats of a row: four words past a multiple of 32 keep float4 reads apart
constexpr int kManyShared = ((kManyTokens + kSeamRows) * kManyStride +
                             kManyTokens * (kSeamRows + 1 + kStreams + kStreams * kStreams)) *
                            4;

// grid (d / 64, token groups); partials as of mix_kernel. First a thread takes two columns of all streams of
// every eighth token, four tokens on their way at a time; then warp w multiplies 64 tokens, two a lane, with
// rows 6 (w % 4) + 0..5 over half w / 4 of the columns.
__global__ void __launch_bounds__(256, 2)
    mix_many_kernel(const __grid_constant__ SeamArguments a, int tokens) {
  extern __shared__ __align__(16) float many[];
  float* values = many;                                    // [64][260]: stream * 64 + column
  float* weights = values + kManyTokens * kManyStride;     // [24][260]
  float* halves = weights + kSeamRows * kManyStride;       // [64][25]
  float* comb = halves + kManyTokens * (kSeamRows + 1);    // [64][16]
  float* post = comb + kManyTokens * kStreams * kStreams;  // [64][4]
  const int width = a.shape.width, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column0 = blockIdx.x * kMixColumns;
#pragma unroll 8
  for (int r = 0; r < kSeamRows; ++r)
    weights[r * kManyStride + threadIdx.x] =
        round_operand(__ldg(a.fn + static_cast<std::int64_t>(r) * kStreams * width +
                            threadIdx.x / kMixColumns * width + column0 + threadIdx.x % kMixColumns),
                      a.precision);
  wait_for_predecessor();
  release_successor();
  const int first = blockIdx.y * kManyTokens, count = min(kManyTokens, tokens - first);
  if (a.sublayer_out != nullptr) {
    for (int i = threadIdx.x; i < count * kStreams * kStreams; i += 256)
      comb[i] = a.comb[static_cast<std::int64_t>(first) * kStreams * kStreams + i];
    if (static_cast<int>(threadIdx.x) < count * kStreams)
      post[threadIdx.x] = a.post[static_cast<std::int64_t>(first) * kStreams + threadIdx.x];
    __syncthreads();
  }
  constexpr int kAtOnce = 4, kStep = 8;
  for (int i0 = warp; i0 < kManyTokens; i0 += kAtOnce * kStep) {
    std::uint32_t h[kAtOnce][kStreams] = {}, out[kAtOnce] = {};
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = i0 + n * kStep;
      if (i >= count) continue;
      const auto* row = reinterpret_cast<const std::uint32_t*>(
          static_cast<const BF16*>(a.h) + static_cast<std::int64_t>(first + i) * kStreams * width + column0);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) h[n][j] = row[j * width / 2 + lane];
      if (a.sublayer_out != nullptr)
        out[n] = reinterpret_cast<const std::uint32_t*>(static_cast<const BF16*>(a.sublayer_out) +
                                                        static_cast<std::int64_t>(first + i) * width +
                                                        column0)[lane];
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = i0 + n * kStep;
      float2 old[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
        old[j] = {__uint_as_float(h[n][j] << 16), __uint_as_float(h[n][j] & 0xffff0000u)};
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        float2 value = old[k];
        if (a.sublayer_out != nullptr && i < count) {
          float2 mixed{0.0f, 0.0f};
#pragma unroll
          for (int j = 0; j < kStreams; ++j) {
            const float c = comb[i * kStreams * kStreams + j * kStreams + k];
            mixed.x += c * old[j].x;
            mixed.y += c * old[j].y;
          }
          const float p = post[i * kStreams + k];
          const std::uint32_t pair = pack_bf16x2(p * __uint_as_float(out[n] << 16) + mixed.x,
                                                 p * __uint_as_float(out[n] & 0xffff0000u) + mixed.y);
          value = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
          reinterpret_cast<std::uint32_t*>(static_cast<BF16*>(a.h) +
                                           static_cast<std::int64_t>(first + i) * kStreams * width +
                                           column0)[k * width / 2 + lane] = pair;
        }
        *reinterpret_cast<float2*>(values + i * kManyStride + k * kMixColumns + 2 * lane) = value;
      }
    }
  }
  __syncthreads();
  constexpr int kRowsEach = 6, kHalf = 128;
  const int row0 = warp % 4 * kRowsEach, k0 = warp / 4 * kHalf;
  float sum[2][kRowsEach] = {}, square[2] = {};
#pragma unroll 2
  for (int k = 0; k < kHalf; k += 4) {
    float4 u[2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
      u[j] = *reinterpret_cast<const float4*>(values + (lane + 32 * j) * kManyStride + k0 + k);
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      const float4 w = *reinterpret_cast<const float4*>(weights + (row0 + r) * kManyStride + k0 + k);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        sum[j][r] = __fmaf_rn(
            u[j].w, w.w, __fmaf_rn(u[j].z, w.z, __fmaf_rn(u[j].y, w.y, __fmaf_rn(u[j].x, w.x, sum[j][r]))));
    }
    if (row0 == 0)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        square[j] = __fmaf_rn(
            u[j].w, u[j].w,
            __fmaf_rn(u[j].z, u[j].z, __fmaf_rn(u[j].y, u[j].y, __fmaf_rn(u[j].x, u[j].x, square[j]))));
  }
  if (k0 > 0)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float* mine = halves + (lane + 32 * j) * (kSeamRows + 1);
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r) mine[row0 + r] = sum[j][r];
      if (row0 == 0) mine[kSeamRows] = square[j];
    }
  __syncthreads();
  if (k0 > 0) return;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane + 32 * j;
    if (i >= count) continue;
    const float* other = halves + i * (kSeamRows + 1);
    float* out = a.partials + static_cast<std::int64_t>(first + i) * (kSeamRows + 1) * gridDim.x + blockIdx.x;
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) out[(row0 + r) * gridDim.x] = sum[j][r] + other[row0 + r];
    if (row0 == 0) out[kSeamRows * gridDim.x] = square[j] + other[kSeamRows];
  }
}

constexpr int kFinishWarps = 16;

// One CTA a token (or a row of the head).
template <int ROWS, int PIECES>
__global__ void __launch_bounds__(kFinishWarps * 32 + 32)
    finish_kernel(const __grid_constant__ SeamArguments a, int mix_ctas, const std::int32_t* rows) {
  __shared__ typename Finish<ROWS, PIECES, kFinishWarps>::Shared shared;
  Finish<ROWS, PIECES, kFinishWarps> finish;
  finish.load_weights(a);
  wait_for_predecessor();
  release_successor();
  finish.run(a, rows == nullptr ? static_cast<int>(blockIdx.x) : rows[blockIdx.x],
             static_cast<int>(blockIdx.x), mix_ctas, shared);
}

template <int ROWS>
void launch_mix(const SeamArguments& a, std::int64_t tokens, cudaStream_t stream) {
  constexpr int kTogether = 8;
  const auto ctas = static_cast<unsigned>(a.shape.width / kMixColumns);
  if (ROWS == kSeamRows && a.many_tokens)
    return launch({dim3(ctas, static_cast<unsigned>((tokens + kManyTokens - 1) / kManyTokens)), dim3(256),
                   kManyShared, stream, true, "hc_mix_many"},
                  mix_many_kernel, a, static_cast<int>(tokens));
  const Launch each{dim3(ctas, static_cast<unsigned>(tokens)), dim3(256), 0, stream, true, "hc_mix"};
  if (tokens < 16) return launch(each, mix_kernel<ROWS, 1>, a, static_cast<int>(tokens));
  launch({dim3(ctas, static_cast<unsigned>((tokens + kTogether - 1) / kTogether)), dim3(256), 0, stream, true,
          "hc_mix"},
         mix_kernel<ROWS, kTogether>, a, static_cast<int>(tokens));
}

template <int ROWS>
void launch_finish(const SeamArguments& a, std::int64_t ctas, const std::int32_t* rows, cudaStream_t stream,
                   const char* name) {
  const Launch how{dim3(static_cast<unsigned>(ctas)), dim3(kFinishWarps * 32 + 32), 0, stream, true, name};
  constexpr int kColumns = Finish<ROWS, 1, kFinishWarps>::kPieceColumns;
  const int mix_ctas = a.shape.width / kMixColumns;
  if (a.shape.width <= kColumns)
    launch(how, finish_kernel<ROWS, 1>, a, mix_ctas, rows);
  else if (a.shape.width <= 2 * kColumns)
    launch(how, finish_kernel<ROWS, 2>, a, mix_ctas, rows);
  else
    launch(how, finish_kernel<ROWS, 4>, a, mix_ctas, rows);
}

// One warp a token.
__global__ void __launch_bounds__(128) seam_tail_kernel(const __grid_constant__ SeamTail tail) {
  run_seam_tail(tail, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

}  // namespace

std::int64_t seam_partial_floats(std::int64_t tokens, std::int64_t width) {
  return tokens * (width / kMixColumns) * (kSeamRows + 1);
}

void launch_seam_tail(const SeamTail& tail, cudaStream_t stream) {
  launch({dim3(static_cast<unsigned>((tail.tokens + 3) / 4)), dim3(128), 0, stream, true, "hc_tail"},
         seam_tail_kernel, tail);
}

void launch_seam(const SeamArguments& a, std::int64_t tokens, cudaStream_t stream) {
  require(a.shape.width <= kMaxSeamWidth, "hidden_size up to 8192");
  launch_mix<kSeamRows>(a, tokens, stream);
  launch_finish<kSeamRows>(a, tokens, nullptr, stream, "hc_finish");
}

void launch_head(const SeamArguments& a, std::int64_t tokens, const std::int32_t* rows, std::int64_t num_rows,
                 cudaStream_t stream) {
  require(a.shape.width <= kMaxSeamWidth, "hidden_size up to 8192");
  launch_mix<kStreams>(a, tokens, stream);
  if (num_rows > 0) launch_finish<kStreams>(a, num_rows, rows, stream, "hc_head");
}

}  // namespace pivot::cuda
