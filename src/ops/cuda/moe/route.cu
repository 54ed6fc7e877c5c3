// p = sqrt(softplus(z)); the `chosen` largest of p + bias (or the token's table row); weights p / sum p *
// scale.
//
// Scores by all threads of a token's CTA; then one warp takes the largest `chosen` times, ties to the lower
// id. The work list is one CTA: counts, prefix sums and stable grouping, so the order of pairs is the same in
// every run.
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kPerLane = kMaxExperts / 32;
constexpr int kRouteThreads = 256;

__device__ __forceinline__ float sqrt_softplus(float z) { return sqrtf(z > 20.0f ? z : log1pf(expf(z))); }

// Monotonous in the score; NaN counts as -inf. Never 0 for a number, so that a taken entry loses against
// every other.
__device__ __forceinline__ std::uint32_t selection_key(float s) {
  if (!(s == s)) s = -INFINITY;
  if (s == 0.0f) s = 0.0f;
  const std::uint32_t u = __float_as_uint(s);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float selection_of_key(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// One CTA a token: every thread scores experts, the first warp chooses.
__global__ void __launch_bounds__(kRouteThreads) route_kernel(const __grid_constant__ RouteArguments a) {
  __shared__ std::uint32_t keys[kMaxExperts];
  __shared__ float scores[kMaxExperts];
  const int t = blockIdx.x, lane = threadIdx.x % 32;
  float bias[kMaxExperts / kRouteThreads] = {};
  if (a.bias != nullptr)
#pragma unroll
    for (int i = 0; i < kMaxExperts / kRouteThreads; ++i)
      if (i * kRouteThreads + static_cast<int>(threadIdx.x) < a.experts)
        bias[i] = __ldg(a.bias + i * kRouteThreads + threadIdx.x);
  wait_for_predecessor();
  release_successor();
  const float* z = a.logits + static_cast<std::int64_t>(t) * a.experts;
#pragma unroll
  for (int i = 0; i < kMaxExperts / kRouteThreads; ++i) {
    const int e = i * kRouteThreads + static_cast<int>(threadIdx.x);
    // Keys order as the scores do; 0 stands for NaN and for entries beyond the experts.
    if (e < a.experts) scores[e] = sqrt_softplus(z[e]);
    keys[e] = e < a.experts ? selection_key(scores[e] + bias[i]) : 0;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  std::int32_t id = 0x7fffffff;  // lane i < chosen keeps choice i
  float margin = INFINITY;
  if (a.bias == nullptr) {
    if (lane < a.chosen) id = a.table[static_cast<std::int64_t>(a.token_ids[t]) * a.chosen + lane];
  } else {
    std::uint32_t key[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) key[i] = i * 32 < a.experts ? keys[i * 32 + lane] : 0;
    std::uint32_t last = 0;
    for (int c = 0; c <= a.chosen; ++c) {  // one more than chosen, for the margin
      std::uint32_t mine = 0;
      int mine_at = 0;
#pragma unroll
      for (int i = kPerLane - 1; i >= 0; --i)
        if (key[i] >= mine) {  // the lowest id among equals
          mine = key[i];
          mine_at = i;
        }
      const std::uint32_t best = __reduce_max_sync(0xffffffffu, mine);
      const int best_id = static_cast<int>(__reduce_min_sync(
          0xffffffffu, mine == best ? static_cast<unsigned>(mine_at * 32 + lane) : 0x7fffffffu));
      if (c == a.chosen) {
        margin = selection_of_key(last) - selection_of_key(best);
        break;
      }
      last = best;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (i * 32 + lane == best_id) key[i] = 0;
      if (lane == c) id = best_id;
    }
  }
  // Ascending ids: rank of each among the chosen.
  int rank = 0;
  for (int i = 0; i < a.chosen; ++i) {
    const int other = __shfl_sync(0xffffffffu, id, i);
    rank += other < id;
  }
  const bool live = lane < a.chosen;
  const float p = live ? scores[id] : 0.0f;
  // The sum runs in ascending id order, as the oracle's.
  float sum = 0.0f;
  for (int r = 0; r < a.chosen; ++r) {
    const unsigned holder = __ballot_sync(0xffffffffu, live && rank == r);
    sum += __shfl_sync(0xffffffffu, p, __ffs(holder) - 1);
  }
  if (live) {
    a.ids[t * a.chosen + rank] = id;
    a.weights[t * a.chosen + rank] = (a.normalize ? p / sum : p) * a.route_scale;
  }
  if (a.margin != nullptr && lane == 0) a.margin[t] = margin;
}

constexpr int kListThreads = 1024;
constexpr int kFewPairs = 1024;

__device__ __forceinline__ void put(const WorkList& list, int place, int pair, int chosen) {
  list.pairs[place] = pair;
  list.tokens[place] = pair / chosen;
  list.place[pair] = place;
}

__global__ void __launch_bounds__(kListThreads)
    work_list_kernel(const std::int32_t* ids, int tokens, int chosen, int experts, const DeviceExpert* table,
                     WorkList list) {
  __shared__ int counts[kMaxExperts], starts[kMaxExperts + 1], slot_of[kMaxExperts + 1];
  wait_for_predecessor();
  release_successor();
  const int total = tokens * chosen, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < experts; e += kListThreads) counts[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < total; p += kListThreads) atomicAdd(&counts[ids[p]], 1);
  __syncthreads();
  // Exclusive sums of counts (low 20 bits) and of used experts (above), by one warp, 16 experts a lane.
  if (warp == 0) {
    constexpr int kEach = kMaxExperts / 32;
    std::uint32_t own = 0;
    for (int i = 0; i < kEach; ++i) {
      const int e = lane * kEach + i;
      if (e < experts)
        own += static_cast<std::uint32_t>(counts[e]) | static_cast<std::uint32_t>(counts[e] > 0) << 20;
    }
    std::uint32_t before = own;
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += other;
    }
    if (lane == 31) slot_of[experts] = static_cast<int>(before >> 20);
    before -= own;
    for (int i = 0; i < kEach; ++i) {
      const int e = lane * kEach + i;
      if (e >= experts) break;
      starts[e] = static_cast<int>(before & 0xfffffu);
      slot_of[e] = static_cast<int>(before >> 20);
      before += static_cast<std::uint32_t>(counts[e]) | static_cast<std::uint32_t>(counts[e] > 0) << 20;
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kListThreads)
    if (counts[e] > 0) {
      list.expert[slot_of[e]] = e;
      list.first[slot_of[e]] = starts[e];
      list.count[slot_of[e]] = counts[e];
      list.weights[slot_of[e]] = table[e];
    }
  for (int s = slot_of[experts] + threadIdx.x; s < list.slots; s += kListThreads) list.count[s] = 0;
  if (total <= kFewPairs) {  // stable grouping: each warp scans all pairs for its experts
    for (int e = warp; e < experts; e += kListThreads / 32) {
      if (counts[e] == 0) continue;
      int at = starts[e];
      for (int p0 = 0; p0 < total; p0 += 32) {
        const int p = p0 + lane;
        const unsigned mine = __ballot_sync(0xffffffffu, p < total && ids[p] == e);
        if ((mine >> lane & 1) != 0) put(list, at + __popc(mine & ((1u << lane) - 1)), p, chosen);
        at += __popc(mine);
      }
    }
    return;
  }
  // Many pairs: each warp groups a contiguous share, from where the shares before it end. next[w][e]: pairs
  // of expert e in share w, then its first free place.
  extern __shared__ int next[];
  const int share = (total + 31) / 32, begin = min(total, warp * share), end = min(total, begin + share);
  int* mine = next + warp * experts;
  for (int e = lane; e < experts; e += 32) mine[e] = 0;
  __syncwarp();
  for (int p = begin + lane; p < end; p += 32) atomicAdd(&mine[ids[p]], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kListThreads) {
    int at = starts[e];
    for (int w = 0; w < 32; ++w) {
      const int here = next[w * experts + e];
      next[w * experts + e] = at;
      at += here;
    }
  }
  __syncthreads();
  for (int p0 = begin; p0 < end; p0 += 32) {
    const int p = p0 + lane, e = p < end ? ids[p] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, e);
    if (e >= 0) put(list, mine[e] + __popc(same & ((1u << lane) - 1)), p, chosen);
    __syncwarp();
    if (e >= 0 && __ffs(same) - 1 == lane) mine[e] += __popc(same);
    __syncwarp();
  }
}

// Prefix sums of the token tiles of every slot.
__global__ void __launch_bounds__(kMaxExperts)
    tile_list_kernel(const std::int32_t* count, int slots, int tile_tokens, std::int32_t* tiles) {
  __shared__ int sums[kMaxExperts / 32];
  wait_for_predecessor();
  release_successor();
  const int s = threadIdx.x, warp = s / 32, lane = s % 32;
  const int own = s < slots ? (count[s] + tile_tokens - 1) / tile_tokens : 0;
  int before = own;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) sums[warp] = before;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += sums[w];
  if (s == 0) tiles[0] = 0;
  if (s < slots) tiles[s + 1] = before;
}

}  // namespace

void launch_route(const RouteArguments& a, cudaStream_t stream) {
  require(a.experts <= kMaxExperts && a.chosen <= kMaxExpertsPerToken && a.chosen < a.experts,
          "up to 512 experts, 16 a token");
  launch({dim3(static_cast<unsigned>(a.tokens)), dim3(kRouteThreads), 0, stream, true, "route"}, route_kernel,
         a);
}

void launch_work_list(const std::int32_t* ids, std::int32_t tokens, std::int32_t chosen, std::int32_t experts,
                      const DeviceExpert* table, const WorkList& list, cudaStream_t stream) {
  require(static_cast<std::int64_t>(tokens) * chosen < (1 << 20), "less than 2^20 routed pairs a step");
  const std::size_t shared =
      tokens * chosen <= kFewPairs ? 0 : static_cast<std::size_t>(experts) * 32 * sizeof(int);
  launch({dim3(1), dim3(kListThreads), shared, stream, true, "work_list"}, work_list_kernel, ids, tokens,
         chosen, experts, table, list);
}

void launch_tile_list(const WorkList& list, std::int32_t tile_tokens, std::int32_t* tiles,
                      cudaStream_t stream) {
  require(list.slots <= kMaxExperts, "up to 512 experts");
  launch({dim3(1), dim3(kMaxExperts), 0, stream, true, "tile_list"}, tile_list_kernel,
         static_cast<const std::int32_t*>(list.count), list.slots, tile_tokens, tiles);
}

}  // namespace pivot::cuda
