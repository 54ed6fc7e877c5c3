// h'[k] = bf(post[k] o + sum_j C[j][k] h[j]);  m = (fn . h') g;  x = rms(bf(sum_j pre[j] h'[j]), norm).
//
// Bytes: h read and written once, fn (1.57 MB at d = 4096) once per group of 8 tokens. Two kernels: `mix`
// spreads the 24 x 4d product over the card and leaves partial sums; `finish`, one CTA a token, adds them in
// a fixed order. Only `pre` is needed before the sublayer: Sinkhorn runs in a warp of its own beside the
// norm. Weights are asked for before waiting for the previous kernel, and the streams of `finish` before the
// partial sums are added: a step of one token waits for two memory latencies, not five.
#include "ops/cuda/hyper_connection/hyper_connection.h"

#include <algorithm>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kMixColumns = 64;  // columns of one CTA, times 4 streams = 256 threads
constexpr int kFinishWarps = 16;
constexpr int kFinishThreads = kFinishWarps * 32;

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

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Lane j*4+k of 16 holds C[j][k]; every lane of the warp takes part in the shuffles.
__device__ float sinkhorn(float c, int iters, float eps) {
  const auto row_sum = [](float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  };
  const auto column_sum = [](float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    return v + __shfl_xor_sync(0xffffffffu, v, 8);
  };
  float maximum = fmaxf(c, __shfl_xor_sync(0xffffffffu, c, 1));
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
  c = expf(c - maximum);
  c = c / row_sum(c) + eps;
  c = c / (column_sum(c) + eps);
  for (int i = 1; i < iters; ++i) {
    c = c / (row_sum(c) + eps);
    c = c / (column_sum(c) + eps);
  }
  return c;
}

// One CTA a token (or a row of the head): 16 warps for the stream sum and the norm, one for the coefficients.
// A thread owns the same columns throughout, four at a time.
constexpr int kPieceColumns = kFinishThreads * 4;

template <int ROWS, int kPieces>
__global__ void __launch_bounds__(kFinishThreads + 32)
    finish_kernel(const __grid_constant__ SeamArguments a, int mix_ctas, const std::int32_t* rows) {
  __shared__ float mix[ROWS + 1], pre[kStreams], scratch[kFinishWarps];
  const int width = a.shape.width, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 norm[kPieces] = {};
  float base = 0.0f, scale = 0.0f;
  if (warp < kFinishWarps) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int i = k * kFinishThreads * 4 + threadIdx.x * 4;
      if (i < width) norm[k] = __ldg(reinterpret_cast<const float4*>(a.norm + i));
    }
    if (threadIdx.x < kStreams) {
      base = __ldg(a.base + threadIdx.x);
      scale = __ldg(a.scale);
    }
  } else if constexpr (ROWS == kSeamRows) {
    base = __ldg(a.base + kStreams + min(lane, kSeamRows - kStreams - 1));  // post, then comb
    scale = __ldg(a.scale + (lane < kStreams ? 1 : 2));
  }
  wait_for_predecessor();
  release_successor();
  const int t = rows == nullptr ? blockIdx.x : rows[blockIdx.x];
  const BF16* h = static_cast<const BF16*>(a.h) + static_cast<std::int64_t>(t) * kStreams * width;
  uint2 streams[kPieces][kStreams] = {};
  if (warp < kFinishWarps)
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int i = k * kFinishThreads * 4 + threadIdx.x * 4;
      if (i < width)
#pragma unroll
        for (int j = 0; j < kStreams; ++j) streams[k][j] = *reinterpret_cast<const uint2*>(h + j * width + i);
    }
  const float* partials = a.partials + static_cast<std::int64_t>(t) * mix_ctas * (ROWS + 1);
  for (int r = warp; r <= ROWS; r += kFinishWarps + 1) {
    float s = 0.0f;
    for (int c = lane; c < mix_ctas; c += 32) s += partials[r * mix_ctas + c];
    s = warp_sum(s);
    if (lane == 0) mix[r] = s;
  }
  __syncthreads();
  const float g = 1.0f / sqrtf(mix[ROWS] / static_cast<float>(kStreams * width) + a.shape.norm_eps);
  if (threadIdx.x < kStreams)
    pre[threadIdx.x] = sigmoid(mix[threadIdx.x] * g * scale + base) + a.shape.hc_eps;
  __syncthreads();
  if (warp == kFinishWarps) {
    if constexpr (ROWS == kSeamRows) {
      // Lanes 0..3 hold the coefficients of post, 4..19 those of comb.
      const float coefficient = mix[kStreams + min(lane, kSeamRows - kStreams - 1)] * g * scale + base;
      if (lane < kStreams) a.post[t * kStreams + lane] = 2.0f * sigmoid(coefficient);
      const float c = sinkhorn(__shfl_sync(0xffffffffu, coefficient, kStreams + lane % 16),
                               a.shape.sinkhorn_iters, a.shape.hc_eps);
      if (lane < 16) a.comb[t * 16 + lane] = c;
    }
    return;
  }
  float y[kPieces][4], square = 0.0f;
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const uint2 raw = streams[k][j];
      sum[0] += pre[j] * __uint_as_float(raw.x << 16);
      sum[1] += pre[j] * __uint_as_float(raw.x & 0xffff0000u);
      sum[2] += pre[j] * __uint_as_float(raw.y << 16);
      sum[3] += pre[j] * __uint_as_float(raw.y & 0xffff0000u);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[k][i] = round_bf16(sum[i]);
      square += y[k][i] * y[k][i];
    }
  }
  square = warp_sum(square);
  if (lane == 0) scratch[warp] = square;
  asm volatile("bar.sync 1, %0;" ::"n"(kFinishThreads) : "memory");
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kFinishWarps; ++w) total += scratch[w];
  const float factor = 1.0f / sqrtf(total / static_cast<float>(width) + a.shape.norm_eps);
  const std::int64_t out = static_cast<std::int64_t>(blockIdx.x) * width;
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {  // a warp's 128 columns are one FP8 group
    const int i = k * kFinishThreads * 4 + threadIdx.x * 4;
    if (i >= width) break;  // the same for the whole warp
    const float v[4] = {round_bf16(y[k][0] * factor * norm[k].x), round_bf16(y[k][1] * factor * norm[k].y),
                        round_bf16(y[k][2] * factor * norm[k].z), round_bf16(y[k][3] * factor * norm[k].w)};
    *reinterpret_cast<uint2*>(static_cast<BF16*>(a.x) + out + i) =
        uint2{pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3])};
    if (a.x_values == nullptr) continue;
    float amax = 0.0f;
#pragma unroll
    for (float value : v) amax = fmaxf(amax, fabsf(value));
    const std::uint8_t byte = fp8_group_scale(group_amax(amax, 32));
    *reinterpret_cast<uint2*>(a.x_values + out + i) = quantize_fp8x4(v, byte);
    if (lane == 0) a.x_scales[(out + i) / 128] = e8m0_to_float(byte);
  }
}

template <int ROWS>
void launch_mix(const SeamArguments& a, std::int64_t tokens, cudaStream_t stream) {
  constexpr int kTogether = 8;
  const auto ctas = static_cast<unsigned>(a.shape.width / kMixColumns);
  if (tokens < 16)
    launch({dim3(ctas, static_cast<unsigned>(tokens)), dim3(256), 0, stream, true, "hc_mix"},
           mix_kernel<ROWS, 1>, a, static_cast<int>(tokens));
  else
    launch({dim3(ctas, static_cast<unsigned>((tokens + kTogether - 1) / kTogether)), dim3(256), 0, stream,
            true, "hc_mix"},
           mix_kernel<ROWS, kTogether>, a, static_cast<int>(tokens));
}

}  // namespace

namespace {
template <int ROWS>
void launch_finish(const SeamArguments& a, std::int64_t ctas, const std::int32_t* rows, cudaStream_t stream,
                   const char* name) {
  const Launch how{dim3(static_cast<unsigned>(ctas)), dim3(kFinishThreads + 32), 0, stream, true, name};
  const int mix_ctas = a.shape.width / kMixColumns;
  require(a.shape.width <= kMaxSeamWidth, "hidden_size up to 8192");
  if (a.shape.width <= kPieceColumns)
    launch(how, finish_kernel<ROWS, 1>, a, mix_ctas, rows);
  else if (a.shape.width <= 2 * kPieceColumns)
    launch(how, finish_kernel<ROWS, 2>, a, mix_ctas, rows);
  else
    launch(how, finish_kernel<ROWS, 4>, a, mix_ctas, rows);
}
}  // namespace

std::int64_t seam_partial_floats(std::int64_t tokens, std::int64_t width) {
  return tokens * (width / kMixColumns) * (kSeamRows + 1);
}

void launch_seam(const SeamArguments& a, std::int64_t tokens, cudaStream_t stream) {
  launch_mix<kSeamRows>(a, tokens, stream);
  launch_finish<kSeamRows>(a, tokens, nullptr, stream, "hc_finish");
}

void launch_head(const SeamArguments& a, std::int64_t tokens, const std::int32_t* rows, std::int64_t num_rows,
                 cudaStream_t stream) {
  launch_mix<kStreams>(a, tokens, stream);
  if (num_rows > 0) launch_finish<kStreams>(a, num_rows, rows, stream, "hc_head");
}

}  // namespace pivot::cuda
