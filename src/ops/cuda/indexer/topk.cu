// The k largest of a row, exactly: ties to the lower index, NaN below every number, ascending indices out.
//
// One CTA a row. Scores map to unsigned keys that order as the scores do; three histogram passes (11 + 11 +
// 10 bits) find the k-th key, then each warp counts and writes its contiguous share in order, taking as many
// equal keys as are missing. No candidate buffer exists, so nothing can overflow (faults B02, D2). Rows with
// at most k entries are written out without being read. Rows of up to 8192 entries are read once and kept in
// registers; longer ones are read five times, all but the first from L2.
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;

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

template <bool HELD>
__device__ void topk_row_of(const float* scores, int n, int k, std::int32_t* selected, std::int32_t* count) {
  __shared__ int bins[kBins];
  __shared__ int warp_above[32], warp_equal[32];
  __shared__ std::uint32_t prefix_shared;
  __shared__ int wanted_shared;
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
  std::uint32_t prefix = 0, mask = 0;
  int wanted = k;  // rank, among the keys with this prefix, of the k-th largest
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bits = pass == 2 ? 10 : 11;
    for (int i = tid; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    each([&](int j, int i) {
      const std::uint32_t key = keys.at(j, i);
      if ((key & mask) == prefix) atomicAdd(&bins[(key >> shift) & ((1u << bits) - 1)], 1);
    });
    __syncthreads();
    if (warp ==
        0) {  // the highest bin in which the wanted-th key lies: lanes take 64 bins each, from the top
      const int top = (1 << bits) / 32;
      int sum = 0;
      for (int i = 0; i < top; ++i) sum += bins[(1 << bits) - 1 - (lane * top + i)];
      int before = sum;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        if (lane >= step) before += other;
      }
      before -= sum;
      if (before < wanted && wanted <= before + sum) {
        int rest = wanted - before;
        int bin = (1 << bits) - 1 - lane * top;
        while (bins[bin] < rest) rest -= bins[bin--];
        prefix_shared = prefix | static_cast<std::uint32_t>(bin) << shift;
        wanted_shared = rest;
      }
    }
    __syncthreads();
    prefix = prefix_shared;
    wanted = wanted_shared;
    mask |= ((1u << bits) - 1) << shift;
    __syncthreads();
  }
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

__global__ void __launch_bounds__(kThreads) topk_step_kernel(IndexArguments a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t t = blockIdx.x;
  topk_row(a.scores + t * a.score_stride, (a.batch.positions[t] + 1) / 4, a.topk, a.selected + t * a.topk,
           a.count + t);
}

__global__ void __launch_bounds__(kThreads)
    topk_rows_kernel(const float* scores, std::int64_t stride, const std::int32_t* lengths, int topk,
                     std::int32_t* selected, std::int32_t* count) {
  const std::int64_t t = blockIdx.x;
  topk_row(scores + t * stride, lengths[t], topk, selected + t * topk, count + t);
}

}  // namespace

void launch_topk(const IndexArguments& a, cudaStream_t stream) {
  launch({dim3(static_cast<unsigned>(a.batch.num_tokens)), dim3(kThreads), 0, stream, true, "topk"},
         topk_step_kernel, a);
}

void launch_topk_rows(const float* scores, std::int64_t stride, const std::int32_t* lengths,
                      std::int32_t rows, std::int32_t topk, std::int32_t* selected, std::int32_t* count,
                      cudaStream_t stream) {
  launch({dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, false, "topk_rows"}, topk_rows_kernel,
         scores, stride, lengths, topk, selected, count);
}

}  // namespace pivot::cuda
