// Laboratory: index scores and top-k as they were until 2026-12-01, the reference of indexer.cu in this
// folder.
//
// Scores: 16 keys a warp, every head tile's fragments from shared memory for each of them. Top-k: radix
// select in digits of 11, 11 and 10 bits; one CTA, or a cluster that keeps the row in shared memory.
#include <cooperative_groups.h>

#include <algorithm>

#include "indexer_before.h"
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/placement/schedule.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda::before {
namespace {

// The choices that these kernels were launched by.
constexpr int kClusterEntries = 262144, kTopkBins = 2048, kTopkStaticBytes = 20 * 1024;
constexpr std::int64_t topk_share(std::int64_t entries) {
  return ((entries + kTopkClusterCtas - 1) / kTopkClusterCtas + 31) / 32 * 32;
}
constexpr std::int64_t topk_shared_bytes(std::int64_t entries) {
  return (topk_share(entries) + 3 * kTopkBins) * 4;
}
int topk_ctas(std::int64_t entries, std::int64_t shared_bytes) {
  const bool fits = topk_shared_bytes(entries) + kTopkStaticBytes <= shared_bytes;
  return entries > 8192 && entries <= kClusterEntries && fits ? kTopkClusterCtas : 1;
}

// Dims [t D/4, +D/4) of one key as BF16 pairs: D/8 registers. FP4 keys pair dim i with dim i + 4 of each
// eight, other keys neighbours.
template <int D>
__device__ __forceinline__ void load_key(const RowLayout& layout, const RowAddress& row, int t,
                                         std::uint32_t (&out)[D / 8]) {
  constexpr int kDims = D / 4;
  if (layout.format == RowFormat::kIndexFp4) {
    // Element i of a word pairs with element i + 4 after a shift: BF16 pairs of code times 2^-126. Both
    // factors that follow are powers of two, and so exact: 2^126, then the group's scale (2^-127 is a BF16
    // subnormal).
    const std::uint32_t scale = row.scales[t * kDims / kIndexFp4Group];
    const std::uint32_t factor = (scale == 0 ? 0x40u : scale == 255 ? 0x7fffu : scale << 7) * 0x00010001u;
#pragma unroll
    for (int w = 0; w < kDims / 8; ++w) {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(row.data + t * kDims / 2 + 4 * w);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const std::uint32_t moved = codes * (1u << (12 - 4 * p));  // nibbles p and p + 4 on top of the halves
        const std::uint32_t pair = ((moved >> 6) & 0x01c001c0u) | (moved & 0x80008000u);
        out[4 * w + p] = mul_bf16x2(mul_bf16x2(pair, 0x7e807e80u), factor);
      }
    }
  } else if (layout.format == RowFormat::kIndexFp8) {
    const float scale = *reinterpret_cast<const float*>(row.scales);
#pragma unroll
    for (int w = 0; w < kDims / 4; ++w) {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(row.data + t * kDims + 4 * w);
#pragma unroll
      for (int p = 0; p < 2; ++p)
        out[2 * w + p] = pack_bf16x2(e4m3_to_float((codes >> (16 * p)) & 0xffu) * scale,
                                     e4m3_to_float((codes >> (16 * p + 8)) & 0xffu) * scale);
    }
  } else {
#pragma unroll
    for (int w = 0; w < kDims / 2; ++w)
      out[w] = *reinterpret_cast<const std::uint32_t*>(row.data + 2 * (t * kDims + 2 * w));
  }
}

// The eight dims that pair so with those of a key: what a step of 16 wants of them in its first and second
// half, for steps 2w and 2w + 1 of a lane's eight dims w.
struct QueryEight {
  uint2 first, second;
};
__device__ __forceinline__ QueryEight query_eight(uint4 v, bool fp4) {
  if (!fp4) return {{v.x, v.y}, {v.z, v.w}};
  return {{__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632)},
          {__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)}};
}

}  // namespace

namespace {

constexpr int kScoreWarps = 4;

template <int D>
__global__ void __launch_bounds__(kScoreWarps * 32) score_kernel(IndexArguments a) {
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
  if (visible <= a.topk || static_cast<int>(blockIdx.x) * kScoreWarps * 16 >= visible) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const BF16* q = static_cast<const BF16*>(a.index_q) + static_cast<std::int64_t>(token) * a.heads * D;
  // Eight dims, two steps, at a time.
  const bool fp4 = a.keys.layout.format == RowFormat::kIndexFp4;
  for (int i = threadIdx.x; i < kSteps / 2 * head_tiles * 32; i += kScoreWarps * 32) {
    const int pair = i / (head_tiles * 32), tile = i / 32 % head_tiles, l = i % 32;
    const int head = tile * 8 + l / 4;
    uint4 v{};
    if (head < a.heads) v = *reinterpret_cast<const uint4*>(q + head * D + (l % 4) * (D / 4) + pair * 8);
    const QueryEight eight = query_eight(v, fp4);
    fragments[(2 * pair * head_tiles + tile) * 32 + l] = eight.first;
    fragments[((2 * pair + 1) * head_tiles + tile) * 32 + l] = eight.second;
  }
  for (int i = threadIdx.x; i < head_tiles * 8; i += kScoreWarps * 32)
    weights[i] = i < a.heads ? a.index_weights[static_cast<std::int64_t>(token) * a.heads + i] : 0.0f;
  __syncthreads();
  float* out = a.scores + token * a.score_stride;
  for (int first = (blockIdx.x * kScoreWarps + warp) * 16; first < visible;
       first += gridDim.x * kScoreWarps * 16) {
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
                   dim3(kScoreWarps * 32),
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

namespace {

constexpr int kThreads = 1024;
constexpr int kBins = kTopkBins;

__device__ __forceinline__ std::uint32_t order_key(float x) {
  if (!(x == x)) return 0;  // NaN: below -inf, whose key is 0x007fffff
  if (x == 0.0f) x = 0.0f;  // -0 ties with +0
  const std::uint32_t u = __float_as_uint(x);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

constexpr int kHeld =
    8;  // keys a thread can hold: entry of slot j of lane l in warp w is w * share + 32 j + l

// The key of entry begin + 32 j + lane of the warp's share: from `held` while the share fits, else from
// memory.
template <bool HELD>
struct Keys {
  const float* scores;
  std::uint32_t held[HELD ? kHeld : 1];
  __device__ __forceinline__ std::uint32_t at(int j, int i) const {
    if constexpr (HELD)
      return held[j];
    else
      return order_key(scores[i]);
  }
};

struct FindScratch {
  int warp_sums[32];
  int bin, rest;
};

// The search for the k-th largest key, a digit a pass; the same in every thread.
struct Digits {
  int wanted;  // rank, among the keys with this prefix, of the k-th largest
  std::uint32_t prefix = 0, mask = 0;
  int shift = 21;

  __device__ explicit Digits(int k) : wanted(k) {}
  __device__ __forceinline__ void count(std::uint32_t key, int* bins) const {
    if ((key & mask) == prefix) atomicAdd(&bins[(key >> shift) & (shift == 0 ? 1023u : 2047u)], 1);
  }
  // `high` and `low`: the counts of bins 2047 - 2i and 2046 - 2i in thread i of 1024. (The last digit fills
  // the lower 1024 bins.)
  __device__ __forceinline__ void advance(int high, int low, FindScratch& scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own = high + low;
    int before = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += other;
    }
    if (lane == 31) scratch.warp_sums[warp] = before;
    __syncthreads();
    before += __reduce_add_sync(0xffffffffu, lane < warp ? scratch.warp_sums[lane] : 0) - own;
    if (before < wanted && wanted <= before + own) {
      const bool in_high = wanted <= before + high;
      scratch.bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x) - (in_high ? 0 : 1);
      scratch.rest = wanted - before - (in_high ? 0 : high);
    }
    __syncthreads();
    prefix |= static_cast<std::uint32_t>(scratch.bin) << shift;
    wanted = scratch.rest;
    mask |= (shift == 0 ? 1023u : 2047u) << shift;
    shift = shift == 21 ? 10 : 0;
    __syncthreads();
  }
};

template <bool HELD>
__device__ void topk_row_of(const float* scores, int n, int k, std::int32_t* selected, std::int32_t* count) {
  __shared__ int bins[kBins];
  __shared__ int warp_above[32], warp_equal[32];
  __shared__ FindScratch find;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int share = ((n + 31) / 32 + 31) / 32 * 32;
  const int begin = min(n, warp * share), end = min(n, begin + share);
  Keys<HELD> keys{scores, {}};
  if constexpr (HELD) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = begin + 32 * j + lane;
      keys.held[j] = i < end ? order_key(scores[i]) : 0;
    }
  }
  // Calls f(slot, entry) for the lane's entries.
  const auto each = [&](const auto& f) {
    if constexpr (HELD) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j)
        if (begin + 32 * j + lane < end) f(j, begin + 32 * j + lane);
    } else {
      for (int i = begin + lane; i < end; i += 32) f(0, i);
    }
  };
  Digits digits{k};
  for (int pass = 0; pass < 3; ++pass) {
    for (int i = tid; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    each([&](int j, int i) { digits.count(keys.at(j, i), bins); });
    __syncthreads();
    digits.advance(bins[kBins - 1 - 2 * tid], bins[kBins - 2 - 2 * tid], find);
  }
  const std::uint32_t prefix = digits.prefix;
  const int wanted = digits.wanted;
  // prefix is the k-th key; `wanted` entries equal to it are taken, the lowest indices first.
  int above = 0, equal = 0;
  each([&](int j, int i) {
    const std::uint32_t key = keys.at(j, i);
    above += key > prefix;
    equal += key == prefix;
  });
  for (int step = 16; step > 0; step /= 2) {
    above += __shfl_xor_sync(0xffffffffu, above, step);
    equal += __shfl_xor_sync(0xffffffffu, equal, step);
  }
  if (lane == 0) {
    warp_above[warp] = above;
    warp_equal[warp] = equal;
  }
  __syncthreads();
  int above_before = 0, equal_before = 0;
  for (int w = 0; w < warp; ++w) {
    above_before += warp_above[w];
    equal_before += warp_equal[w];
  }
  const auto write = [&](int slot, int i) {  // the 32 entries from i on
    const int j = i + lane;
    const std::uint32_t key = j < end ? keys.at(slot, j) : 0;
    const unsigned is_above = __ballot_sync(0xffffffffu, j < end && key > prefix);
    const unsigned is_equal = __ballot_sync(0xffffffffu, j < end && key == prefix);
    const unsigned below = (1u << lane) - 1;
    const int my_above = above_before + __popc(is_above & below),
              my_equal = equal_before + __popc(is_equal & below);
    if ((is_above >> lane & 1) != 0) selected[my_above + min(my_equal, wanted)] = j;
    if ((is_equal >> lane & 1) != 0 && my_equal < wanted) selected[my_above + my_equal] = j;
    above_before += __popc(is_above);
    equal_before += __popc(is_equal);
  };
  if constexpr (HELD) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
      if (begin + 32 * j < end) write(j, begin + 32 * j);
  } else {
    for (int i = begin; i < end; i += 32) write(0, i);
  }
  if (tid == 0) *count = k;
}

__device__ void topk_row(const float* scores, int n, int k, std::int32_t* selected, std::int32_t* count) {
  n = max(n, 0);
  if (n <= k) {
    for (int i = threadIdx.x; i < k; i += kThreads) selected[i] = i < n ? i : -1;
    if (threadIdx.x == 0) *count = n;
    return;
  }
  if (n <= kHeld * kThreads)
    topk_row_of<true>(scores, n, k, selected, count);
  else
    topk_row_of<false>(scores, n, k, selected, count);
}

// A row of one cluster. `shared`: `capacity` keys, then three histograms.
__device__ void topk_row_of_cluster(const float* scores, int n, int k, std::int32_t* selected,
                                    std::int32_t* count, std::uint32_t* shared, int capacity) {
  namespace cg = cooperative_groups;
  __shared__ FindScratch find;
  __shared__ int warp_above[32], warp_equal[32];
  __shared__ int cta_above, cta_equal;
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  std::uint32_t* keys = shared;
  int* bins = reinterpret_cast<int*>(shared + capacity);
  const int share = ((n + kTopkClusterCtas - 1) / kTopkClusterCtas + 31) / 32 * 32;
  const int begin = min(n, rank * share), mine = min(n, begin + share) - begin;
  for (int i = tid; i < 3 * kBins; i += kThreads) bins[i] = 0;
  for (int i = tid * 4; i < mine; i += kThreads * 4) {  // rows start at multiples of 16 bytes, shares too
    const float4 v = *reinterpret_cast<const float4*>(scores + begin + i);
    *reinterpret_cast<uint4*>(keys + i) =
        uint4{order_key(v.x), order_key(v.y), order_key(v.z), order_key(v.w)};
  }
  __syncthreads();
  Digits digits{k};
  for (int pass = 0; pass < 3; ++pass) {
    int* own = bins + pass * kBins;
    for (int i = tid; i < mine; i += kThreads) digits.count(keys[i], own);
    cluster.sync();
    int high = 0, low = 0;
#pragma unroll
    for (int r = 0; r < kTopkClusterCtas; ++r) {
      const int2 pair = *reinterpret_cast<const int2*>(cluster.map_shared_rank(own, r) + kBins - 2 - 2 * tid);
      high += pair.y;
      low += pair.x;
    }
    digits.advance(high, low, find);
  }
  const std::uint32_t prefix = digits.prefix;
  const int wanted = digits.wanted;
  // Warps own contiguous pieces of the share.
  const int piece = (share / 32 + 31) / 32 * 32, first = min(mine, warp * piece),
            last = min(mine, first + piece);
  int above = 0, equal = 0;
  for (int i = first + lane; i < last; i += 32) {
    above += keys[i] > prefix;
    equal += keys[i] == prefix;
  }
  above = __reduce_add_sync(0xffffffffu, above);
  equal = __reduce_add_sync(0xffffffffu, equal);
  if (lane == 0) {
    warp_above[warp] = above;
    warp_equal[warp] = equal;
  }
  __syncthreads();
  if (warp == 0) {
    const int all_above = __reduce_add_sync(0xffffffffu, warp_above[lane]);
    const int all_equal = __reduce_add_sync(0xffffffffu, warp_equal[lane]);
    if (lane == 0) {
      cta_above = all_above;
      cta_equal = all_equal;
    }
  }
  cluster.sync();
  int above_before = __reduce_add_sync(0xffffffffu, lane < warp ? warp_above[lane] : 0);
  int equal_before = __reduce_add_sync(0xffffffffu, lane < warp ? warp_equal[lane] : 0);
  for (int r = 0; r < rank; ++r) {
    above_before += *cluster.map_shared_rank(&cta_above, r);
    equal_before += *cluster.map_shared_rank(&cta_equal, r);
  }
  for (int i = first; i < last; i += 32) {
    const int at = i + lane;
    const std::uint32_t key = at < last ? keys[at] : 0;
    const unsigned is_above = __ballot_sync(0xffffffffu, at < last && key > prefix);
    const unsigned is_equal = __ballot_sync(0xffffffffu, at < last && key == prefix);
    const unsigned below = (1u << lane) - 1;
    const int my_above = above_before + __popc(is_above & below),
              my_equal = equal_before + __popc(is_equal & below);
    if ((is_above >> lane & 1) != 0) selected[my_above + min(my_equal, wanted)] = begin + at;
    if ((is_equal >> lane & 1) != 0 && my_equal < wanted) selected[my_above + my_equal] = begin + at;
    above_before += __popc(is_above);
    equal_before += __popc(is_equal);
  }
  if (rank == 0 && tid == 0) *count = k;
  cluster.sync();  // the others may still read this CTA's counts
}

// The cluster's rows: short ones by its first CTA alone.
__device__ void topk_cluster_row(const float* scores, int n, int k, std::int32_t* selected,
                                 std::int32_t* count, std::uint32_t* shared, int capacity) {
  if (n > k && n > kHeld * kThreads)
    return topk_row_of_cluster(scores, n, k, selected, count, shared, capacity);
  if (cooperative_groups::this_cluster().block_rank() == 0) topk_row(scores, n, k, selected, count);
}

__global__ void __launch_bounds__(kThreads) topk_step_cluster_kernel(IndexArguments a, int capacity) {
  extern __shared__ __align__(16) std::uint32_t cluster_shared[];
  wait_for_predecessor();
  release_successor();
  const std::int64_t t = blockIdx.x / kTopkClusterCtas;
  topk_cluster_row(a.scores + t * a.score_stride, (a.batch.positions[t] + 1) / 4, a.topk,
                   a.selected + t * a.topk, a.count + t, cluster_shared, capacity);
}

__device__ __forceinline__ const float* scores_of(const TopkRows& a, std::int64_t t) {
  return a.scores + (a.row == nullptr ? t : a.row[t]) * a.stride;
}
__device__ __forceinline__ int length_of(const TopkRows& a, std::int64_t t) {
  return a.lengths == nullptr ? a.length : a.lengths[t];
}

__global__ void __launch_bounds__(kThreads) topk_rows_cluster_kernel(TopkRows a, int capacity) {
  extern __shared__ __align__(16) std::uint32_t cluster_shared[];
  wait_for_predecessor();
  release_successor();
  const std::int64_t t = blockIdx.x / kTopkClusterCtas;
  topk_cluster_row(scores_of(a, t), length_of(a, t), a.topk, a.selected + t * a.topk, a.count + t,
                   cluster_shared, capacity);
}

__global__ void __launch_bounds__(kThreads) topk_step_kernel(IndexArguments a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t t = blockIdx.x;
  topk_row(a.scores + t * a.score_stride, (a.batch.positions[t] + 1) / 4, a.topk, a.selected + t * a.topk,
           a.count + t);
}

__global__ void __launch_bounds__(kThreads) topk_rows_kernel(TopkRows a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t t = blockIdx.x;
  topk_row(scores_of(a, t), length_of(a, t), a.topk, a.selected + t * a.topk, a.count + t);
}

}  // namespace

namespace {
Launch topk_launch(std::int64_t rows, int ctas, std::int64_t entries, cudaStream_t stream) {
  Launch how{dim3(static_cast<unsigned>(rows * ctas)), dim3(kThreads), 0, stream, true, "topk"};
  if (ctas > 1) {
    how.cluster = static_cast<unsigned>(ctas);
    // More than 48 KB, so that the launch asks the driver for it: static memory counts, too.
    how.shared_bytes = std::max<std::size_t>(static_cast<std::size_t>(topk_shared_bytes(entries)), 49 * 1024);
  }
  return how;
}
}  // namespace

void launch_topk(const IndexArguments& a, std::int64_t cluster_bytes, cudaStream_t stream) {
  const int ctas = topk_ctas(a.score_stride, cluster_bytes);
  const Launch how = topk_launch(a.batch.num_tokens, ctas, a.score_stride, stream);
  if (ctas > 1)
    launch(how, topk_step_cluster_kernel, a, static_cast<int>(topk_share(a.score_stride)));
  else
    launch(how, topk_step_kernel, a);
}

void launch_topk_rows(const TopkRows& a, std::int64_t cluster_bytes, cudaStream_t stream) {
  require(a.stride % 4 == 0, "rows of scores that start at multiples of 16 bytes");
  const std::int64_t longest = a.lengths == nullptr ? a.length : a.stride;
  const int ctas = topk_ctas(longest, cluster_bytes);
  const Launch how = topk_launch(a.rows, ctas, longest, stream);
  if (ctas > 1)
    launch(how, topk_rows_cluster_kernel, a, static_cast<int>(topk_share(longest)));
  else
    launch(how, topk_rows_kernel, a);
}

}  // namespace pivot::cuda::before
