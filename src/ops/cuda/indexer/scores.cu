// score[t][j] = sum_h w[t][h] relu(q[t][h] . k_j), fp32.
//
// Bytes: one packed key (68 B in FP4) per entry and query; FLOP: 2 * 64 * 128 a key. Memory bound with tensor
// cores (128 FLOP/B against a ridge above 180 in BF16). Keys are operand A (16 a warp), heads are the
// columns; relu, weight and the sum over heads stay in registers. K order: lane t%4 owns dims [t dim/4, (t+1)
// dim/4) of both operands. Rows with at most topk visible entries are skipped on the device: the selection is
// all of them.
#include <algorithm>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/indexer/key_fragment.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kWarps = 4;

template <int D>
__global__ void __launch_bounds__(kWarps * 32) score_kernel(IndexArguments a) {
  // Query fragments [step][head tile][lane] as the mma wants them, and the head weights.
  extern __shared__ uint2 fragments[];
  constexpr int kSteps = D / 16;
  const int head_tiles = (a.heads + 7) / 8;
  float* weights = reinterpret_cast<float*>(fragments + kSteps * head_tiles * 32);
  const int token = blockIdx.y;
  const SequenceSpan span = a.batch.spans[a.batch.span_of[token]];  // the step's description: not a kernel's
  const int visible = (a.batch.positions[token] + 1) / 4;
  wait_for_predecessor();
  release_successor();
  if (visible <= a.topk || static_cast<int>(blockIdx.x) * kWarps * 16 >= visible) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const BF16* q = static_cast<const BF16*>(a.index_q) + static_cast<std::int64_t>(token) * a.heads * D;
  // Eight dims, two steps, at a time.
  const bool fp4 = a.keys.layout.format == RowFormat::kIndexFp4;
  for (int i = threadIdx.x; i < kSteps / 2 * head_tiles * 32; i += kWarps * 32) {
    const int pair = i / (head_tiles * 32), tile = i / 32 % head_tiles, l = i % 32;
    const int head = tile * 8 + l / 4;
    uint4 v{};
    if (head < a.heads) v = *reinterpret_cast<const uint4*>(q + head * D + (l % 4) * (D / 4) + pair * 8);
    const QueryEight eight = query_eight(v, fp4);
    fragments[(2 * pair * head_tiles + tile) * 32 + l] = eight.first;
    fragments[((2 * pair + 1) * head_tiles + tile) * 32 + l] = eight.second;
  }
  for (int i = threadIdx.x; i < head_tiles * 8; i += kWarps * 32)
    weights[i] = i < a.heads ? a.index_weights[static_cast<std::int64_t>(token) * a.heads + i] : 0.0f;
  __syncthreads();
  float* out = a.scores + token * a.score_stride;
  for (int first = (blockIdx.x * kWarps + warp) * 16; first < visible; first += gridDim.x * kWarps * 16) {
    std::uint32_t low[D / 8], high[D / 8];
    const int j0 = min(first + g, visible - 1), j1 = min(first + g + 8, visible - 1);
    load_key<D>(a.keys.layout, paged_row(a.keys, span.table, j0), t, low);
    load_key<D>(a.keys.layout, paged_row(a.keys, span.table, j1), t, high);
    float sum0 = 0.0f, sum1 = 0.0f;
    for (int tile = 0; tile < head_tiles; ++tile) {
      float c[4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint2 b = fragments[(step * head_tiles + tile) * 32 + lane];
        OperandBf16::mma(c, low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1], b.x, b.y);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float w = weights[tile * 8 + 2 * t + i];
        float d0 = c[i], d1 = c[2 + i];
        if (a.bf16_scores) {
          d0 = round_bf16(d0);
          d1 = round_bf16(d1);
        }
        // A comparison instead of max(), so that NaN stays NaN and is ranked as such.
        d0 = w * (d0 < 0.0f ? 0.0f : d0);
        d1 = w * (d1 < 0.0f ? 0.0f : d1);
        sum0 += a.bf16_scores ? round_bf16(d0) : d0;
        sum1 += a.bf16_scores ? round_bf16(d1) : d1;
      }
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      sum0 += __shfl_xor_sync(0xffffffffu, sum0, step);
      sum1 += __shfl_xor_sync(0xffffffffu, sum1, step);
    }
    if (a.bf16_scores) {
      sum0 = round_bf16(sum0);
      sum1 = round_bf16(sum1);
    }
    if (t == 0 && first + g < visible) out[first + g] = sum0;
    if (t == 0 && first + g + 8 < visible) out[first + g + 8] = sum1;
  }
}

}  // namespace

void launch_index_scores(const IndexArguments& a, int multiprocessors, cudaStream_t stream) {
  const std::int64_t tokens = a.batch.num_tokens;
  const int ctas = static_cast<int>(std::max<std::int64_t>(1, 4 * multiprocessors / tokens));
  const int head_tiles = (a.heads + 7) / 8;
  const std::size_t shared = static_cast<std::size_t>(a.dim / 16 * head_tiles * 32) * sizeof(uint2) +
                             static_cast<std::size_t>(head_tiles) * 32;
  const Launch how{dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(tokens)),
                   dim3(kWarps * 32),
                   shared,
                   stream,
                   true,
                   "index_scores"};
  switch (a.dim) {
    case 128:
      return launch(how, score_kernel<128>, a);
    case 64:
      return launch(how, score_kernel<64>, a);
    default:
      require(false, "index_head_dim 128 or 64");
  }
}

}  // namespace pivot::cuda
