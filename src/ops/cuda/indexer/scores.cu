// score[t][j] = sum_h w[t][h] relu(q[t][h] . k_j), fp32.
//
// Bytes: one packed key (68 B in FP4) per entry and query; FLOP: 2 * 64 * 128 a key. FP4 keys ask about as
// much of mma.sync as of memory, wider ones of memory alone. Keys are operand A, heads are the columns; relu,
// weight and the sum over heads stay in registers. K order: lane t%4 owns dims [t dim/4, (t+1) dim/4) of both
// operands. A warp takes 32 keys, so that a fragment of the query read from shared memory serves two
// products; 16 where the row would otherwise leave warps without keys. A key's score does not depend on that.
// Rows with at most topk visible entries are skipped on the device: the selection is all of them.
#include <algorithm>

#include "ops/cuda/device/bulk_transfer.cuh"
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/indexer/key_fragment.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
// CTAs on a multiprocessor: BF16 keys take more registers, and more bytes on their way a warp.
constexpr int ctas_of(RowFormat format) { return format == RowFormat::kBf16 ? 3 : 4; }

__device__ __forceinline__ float relu(float x) {  // NaN stays NaN and is ranked as such
  float r;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(r) : "f"(x));
  return r;
}

// The rows of `KEYS` neighbouring keys from a multiple of KEYS on: one page's where pages hold multiples
// of 32.
template <int KEYS>
class TileRows {
 public:
  __device__ __forceinline__ TileRows(const PagedView& keys, int table, int first, int visible)
      : keys_(keys), table_(table), first_(first), last_(visible - 1) {
    if (whole()) start_ = paged_row(keys, table, first);
  }
  // Of key first + i, or of the last visible one.
  __device__ __forceinline__ RowAddress row(int i) const {
    if (!whole()) return paged_row(keys_, table_, min(first_ + i, last_));
    const int j = min(i, last_ - first_);
    return {start_.data + j * keys_.layout.data_bytes, start_.scales + j * keys_.layout.scale_bytes};
  }
  // Asks the L2 for all of them; changes nothing else, so it may come before the wait for the predecessor.
  __device__ __forceinline__ void prefetch(int lane) const {
    if (!whole()) return;
    if (lane == 0) bulk_prefetch(start_.data, KEYS * keys_.layout.data_bytes);
    if (lane == 1 && keys_.layout.scale_bytes != 0)
      bulk_prefetch(start_.scales, KEYS * keys_.layout.scale_bytes);
  }

 private:
  __device__ __forceinline__ bool whole() const { return keys_.page_rows % 32 == 0; }
  const PagedView& keys_;
  RowAddress start_{};
  int table_, first_, last_;
};

// Query fragments as the mma wants them: [head tile][pair of steps][lane]; then the head weights. Loads go
// out together.
template <RowFormat FORMAT, int D>
__device__ __forceinline__ void fill_query(const IndexArguments& a, int token, int head_tiles,
                                           uint4* fragments, float* weights) {
  constexpr int kPairs = D / 32, kTile = kPairs * 32, kStep = kThreads / kTile, kBatch = 8;
  const int lane = threadIdx.x % 32, pair = threadIdx.x % kTile / 32, head = lane / 4;
  const BF16* q = static_cast<const BF16*>(a.index_q) +
                  (static_cast<std::int64_t>(token) * a.heads + head) * D + lane % 4 * (D / 4) + pair * 8;
  for (int first = threadIdx.x / kTile; first < head_tiles; first += kBatch * kStep) {
    const BF16* from = q + first * (8 * D);
    uint4* to = fragments + first * kTile + threadIdx.x % kTile;
    const int left = (a.heads - head + 7) / 8 - first;  // tiles in which this lane has a head
    uint4 v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      v[b] = uint4{};
      if (b * kStep < left) v[b] = *reinterpret_cast<const uint4*>(from + b * kStep * (8 * D));
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const QueryEight eight = query_eight(v[b], FORMAT == RowFormat::kIndexFp4);
      if (first + b * kStep < head_tiles)
        to[b * kStep * kTile] = uint4{eight.first.x, eight.first.y, eight.second.x, eight.second.y};
    }
  }
  for (int i = threadIdx.x; i < head_tiles * 8; i += kThreads)
    weights[i] = i < a.heads ? a.index_weights[static_cast<std::int64_t>(token) * a.heads + i] : 0.0f;
}

// Adds HEADS head tiles to the sums of the keys g and g + 8 of each 16. `fragments` and `weights` are the
// lane's of the first tile. The products of different tiles alternate, so that none waits for the one before
// it.
template <bool BF16_SCORES, int HEADS, int D, int TILES>
__device__ __forceinline__ void add_heads(const std::uint32_t (&key)[TILES][2][D / 8], const uint4* fragments,
                                          const float* weights, float (&sum)[TILES][2]) {
  constexpr int kPairs = D / 32;
  float c[HEADS][TILES][4] = {};
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint4 b[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) b[h] = fragments[(h * kPairs + pair) * 32];
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int h = 0; h < HEADS; ++h)
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          const int i = 4 * pair + 2 * step;
          OperandBf16::mma(c[h][m], key[m][0][i], key[m][1][i], key[m][0][i + 1], key[m][1][i + 1],
                           step == 0 ? b[h].x : b[h].z, step == 0 ? b[h].y : b[h].w);
        }
  }
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const float2 w = *reinterpret_cast<const float2*>(weights + h * 8);
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float d = c[h][m][2 * half + i];
          if constexpr (BF16_SCORES) d = round_bf16(d);
          d = (i == 0 ? w.x : w.y) * relu(d);
          sum[m][half] += BF16_SCORES ? round_bf16(d) : d;
        }
  }
}

// The scores of a CTA's keys, TILES times 16 a warp at a time.
template <RowFormat FORMAT, int D, bool BF16_SCORES, int TILES>
__device__ __forceinline__ void score_row(const IndexArguments& a, int token, int table, int visible,
                                          uint4* fragments) {
  constexpr int kKeys = 16 * TILES, kPairs = D / 32, kTogether = 4 / TILES;
  // Whether the codes of a warp's next keys fit its registers beside the operands; others wait in the L2.
  constexpr bool kAhead = FORMAT == RowFormat::kIndexFp4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int head_tiles = (a.heads + 7) / 8;
  float* weights = reinterpret_cast<float*>(fragments + head_tiles * kPairs * 32);
  float* out = a.scores + token * a.score_stride;
  const int stride = static_cast<int>(gridDim.x) * kWarps * kKeys;
  int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * kKeys;

  KeyCodes<FORMAT, D> codes[TILES][2];  // keys g and g + 8 of each 16
  const auto fetch = [&](const TileRows<kKeys>& rows) {
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        codes[m][half] = fetch_key<FORMAT, D>(rows.row(16 * m + 8 * half + g), t);
  };
  if (first < visible) fetch(TileRows<kKeys>(a.keys, table, first, visible));
  fill_query<FORMAT, D>(a, token, head_tiles, fragments, weights);
  __syncthreads();

  for (; first < visible; first += stride) {
    std::uint32_t key[TILES][2][D / 8];
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        decode_key<FORMAT, D>(codes[m][half], key[m][half]);
        if constexpr (FORMAT == RowFormat::kBf16) {
          // The operand's registers alternate between two keys, those of a load do not. With a zero that the
          // compiler does not see through words move once, and not before every product.
#pragma unroll
          for (std::uint32_t& word : key[m][half]) word ^= blockIdx.z;
        }
      }
    if (first + stride < visible) {
      const TileRows<kKeys> next(a.keys, table, first + stride, visible);
      if constexpr (kAhead)
        fetch(next);
      else
        next.prefetch(lane);
    }
    float sum[TILES][2] = {};
    int tile = 0;
    for (; tile + kTogether <= head_tiles; tile += kTogether)
      add_heads<BF16_SCORES, kTogether, D>(key, fragments + tile * (kPairs * 32) + lane,
                                           weights + tile * 8 + 2 * t, sum);
#pragma unroll 1
    for (; tile < head_tiles; ++tile)
      add_heads<BF16_SCORES, 1, D>(key, fragments + tile * (kPairs * 32) + lane, weights + tile * 8 + 2 * t,
                                   sum);
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float s = sum[m][half];
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        s += __shfl_xor_sync(0xffffffffu, s, 2);
        if constexpr (BF16_SCORES) s = round_bf16(s);
        const int j = first + 16 * m + 8 * half + g;
        if (t == 0 && j < visible) out[j] = s;
      }
    if constexpr (!kAhead)
      if (first + stride < visible) fetch(TileRows<kKeys>(a.keys, table, first + stride, visible));
  }
}

template <RowFormat FORMAT, int D, bool BF16_SCORES>
__global__ void __launch_bounds__(kThreads, ctas_of(FORMAT))
    score_kernel(const __grid_constant__ IndexArguments a) {
  extern __shared__ uint4 fragments[];
  const int token = blockIdx.y;
  const SequenceSpan span = a.batch.spans[a.batch.span_of[token]];  // the step's description: not a kernel's
  const int visible = (a.batch.positions[token] + 1) / 4;
  const bool wide = visible > static_cast<int>(gridDim.x) * kWarps * 16;
  const int keys = wide ? 32 : 16, first = static_cast<int>(blockIdx.x) * kWarps * keys;
  const bool idle = visible <= a.topk || first >= visible;
  if (!idle) {
    const int mine = first + static_cast<int>(threadIdx.x) / 32 * keys, lane = threadIdx.x % 32;
    if (mine < visible) {
      if (wide)
        TileRows<32>(a.keys, span.table, mine, visible).prefetch(lane);
      else
        TileRows<16>(a.keys, span.table, mine, visible).prefetch(lane);
    }
  }
  wait_for_predecessor();
  release_successor();
  if (idle) return;
  if (wide)
    score_row<FORMAT, D, BF16_SCORES, 2>(a, token, span.table, visible, fragments);
  else
    score_row<FORMAT, D, BF16_SCORES, 1>(a, token, span.table, visible, fragments);
}

template <RowFormat FORMAT, int D>
void launch_format(const Launch& how, const IndexArguments& a) {
  launch(how, a.bf16_scores ? score_kernel<FORMAT, D, true> : score_kernel<FORMAT, D, false>, a);
}
template <int D>
void launch_dims(const Launch& how, const IndexArguments& a) {
  switch (a.keys.layout.format) {
    case RowFormat::kIndexFp4:
      return launch_format<RowFormat::kIndexFp4, D>(how, a);
    case RowFormat::kIndexFp8:
      return launch_format<RowFormat::kIndexFp8, D>(how, a);
    default:
      return launch_format<RowFormat::kBf16, D>(how, a);
  }
}

}  // namespace

void launch_index_scores(const IndexArguments& a, int multiprocessors, cudaStream_t stream) {
  const std::int64_t tokens = a.batch.num_tokens;
  const int ctas =
      static_cast<int>(std::max<std::int64_t>(1, ctas_of(a.keys.layout.format) * multiprocessors / tokens));
  const int head_tiles = (a.heads + 7) / 8;
  const std::size_t shared = static_cast<std::size_t>(a.dim / 32 * head_tiles * 32) * sizeof(uint4) +
                             static_cast<std::size_t>(head_tiles) * 32;
  const Launch how{dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(tokens)),
                   dim3(kThreads),
                   shared,
                   stream,
                   true,
                   "index_scores"};
  switch (a.dim) {
    case 128:
      return launch_dims<128>(how, a);
    case 64:
      return launch_dims<64>(how, a);
    default:
      require(false, "index_head_dim 128 or 64");
  }
}

}  // namespace pivot::cuda
