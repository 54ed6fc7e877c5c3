// The k largest of a row, exactly: ties to the lower index, NaN below every number, ascending indices out.
//
// Scores map to unsigned keys that order as the scores do; three histogram passes (11 + 11 + 10 bits) find
// the k-th key, then each warp counts and writes its contiguous share in order, taking as many equal keys as
// are missing. No candidate buffer exists, so nothing can overflow (faults B02, D2). Rows with at most k
// entries are written out without being read.
//
// Bytes: 4 an entry, read once. Rows of up to 8192 entries are one CTA's and stay in its registers. Longer
// ones are a cluster's of 8 CTAs, each keeping its contiguous eighth in shared memory and reading the others'
// histograms through it: up to 262,144 entries. Rows beyond that are read by one CTA five times, all but the
// first from L2. The choice follows from the longest row there can be (topk_ctas), a short row in a long
// table is one CTA's.
#include <cooperative_groups.h>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/placement/schedule.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
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
    how.shared_bytes = static_cast<std::size_t>(topk_shared_bytes(entries));
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

}  // namespace pivot::cuda
