// p = sqrt(softplus(z)); the `chosen` largest of p + bias (or the token's table row); weights p / sum p *
// scale.
//
// Scores by all threads of a token's CTA; then one warp takes the largest `chosen` times, ties to the lower
// id. The work list: counts, prefix sums and stable grouping, so the order of pairs is the same in every run.
// Few pairs are one CTA's. Many are a cluster's, each warp of which takes a contiguous share: the time is
// that of a warp's chain of loads, and there are eight times as many warps.
#include <cooperative_groups.h>

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

struct ListScratch {
  int counts[kMaxExperts], starts[kMaxExperts + 1], slot_of[kMaxExperts + 1];
};

// From counts: where each expert's pairs begin, and its place among those that have any. Exclusive sums of
// counts (low 20 bits) and of used experts (above), by one warp, 16 experts a lane.
__device__ __forceinline__ void place_experts(ListScratch& s, int experts, int lane) {
  constexpr int kEach = kMaxExperts / 32;
  std::uint32_t own = 0;
  for (int i = 0; i < kEach; ++i) {
    const int e = lane * kEach + i;
    if (e < experts)
      own += static_cast<std::uint32_t>(s.counts[e]) | static_cast<std::uint32_t>(s.counts[e] > 0) << 20;
  }
  std::uint32_t before = own;
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) s.slot_of[experts] = static_cast<int>(before >> 20);
  before -= own;
  for (int i = 0; i < kEach; ++i) {
    const int e = lane * kEach + i;
    if (e >= experts) break;
    s.starts[e] = static_cast<int>(before & 0xfffffu);
    s.slot_of[e] = static_cast<int>(before >> 20);
    before += static_cast<std::uint32_t>(s.counts[e]) | static_cast<std::uint32_t>(s.counts[e] > 0) << 20;
  }
}
__device__ __forceinline__ void store_slots(const ListScratch& s, int experts, const DeviceExpert* table,
                                            const WorkList& list) {
  for (int e = threadIdx.x; e < experts; e += kListThreads)
    if (s.counts[e] > 0) {
      list.expert[s.slot_of[e]] = e;
      list.first[s.slot_of[e]] = s.starts[e];
      list.count[s.slot_of[e]] = s.counts[e];
      list.weights[s.slot_of[e]] = table[e];
    }
  for (int i = s.slot_of[experts] + threadIdx.x; i < list.slots; i += kListThreads) list.count[i] = 0;
}

__global__ void __launch_bounds__(kListThreads)
    work_list_kernel(const std::int32_t* ids, int tokens, int chosen, int experts, const DeviceExpert* table,
                     WorkList list) {
  __shared__ ListScratch s;
  wait_for_predecessor();
  release_successor();
  const int total = tokens * chosen, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < experts; e += kListThreads) s.counts[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < total; p += kListThreads) atomicAdd(&s.counts[ids[p]], 1);
  __syncthreads();
  if (warp == 0) place_experts(s, experts, lane);
  __syncthreads();
  store_slots(s, experts, table, list);
  for (int e = warp; e < experts; e += kListThreads / 32) {  // each warp scans all pairs for its experts
    if (s.counts[e] == 0) continue;
    int at = s.starts[e];
    for (int p0 = 0; p0 < total; p0 += 32) {
      const int p = p0 + lane;
      const unsigned mine = __ballot_sync(0xffffffffu, p < total && ids[p] == e);
      if ((mine >> lane & 1) != 0) put(list, at + __popc(mine & ((1u << lane) - 1)), p, chosen);
      at += __popc(mine);
    }
  }
}

constexpr int kListCtas = 8;  // a cluster, the whole grid

// next[w][e]: pairs of expert e in the share of this CTA's warp w, then its first free place.
__global__ void __launch_bounds__(kListThreads)
    work_list_cluster_kernel(const std::int32_t* ids, int tokens, int chosen, int experts,
                             const DeviceExpert* table, WorkList list) {
  constexpr int kWarps = kListThreads / 32;
  __shared__ ListScratch s;
  __shared__ int own[kMaxExperts];  // pairs of this CTA
  extern __shared__ int next[];
  wait_for_predecessor();
  release_successor();
  const auto cluster = cooperative_groups::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int total = tokens * chosen, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int share = (total + kListCtas * kWarps - 1) / (kListCtas * kWarps);
  const int begin = min(total, (rank * kWarps + warp) * share), end = min(total, begin + share);
  int* mine = next + warp * experts;
  for (int e = lane; e < experts; e += 32) mine[e] = 0;
  __syncwarp();
#pragma unroll 4
  for (int p = begin + lane; p < end; p += 32) atomicAdd(&mine[ids[p]], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kListThreads) {
    int sum = 0;
#pragma unroll 8
    for (int w = 0; w < kWarps; ++w) sum += next[w * experts + e];
    own[e] = sum;
  }
  cluster.sync();
  for (int e = threadIdx.x; e < experts; e += kListThreads) {
    int sum = 0, before = 0;
#pragma unroll
    for (int r = 0; r < kListCtas; ++r) {
      const int theirs = *cluster.map_shared_rank(&own[e], static_cast<unsigned>(r));
      before += r < rank ? theirs : 0;
      sum += theirs;
    }
    s.counts[e] = sum;
    int at = before;  // of this expert's pairs; its first place is added below
    for (int w = 0; w < kWarps; ++w) {
      const int here = next[w * experts + e];
      next[w * experts + e] = at;
      at += here;
    }
  }
  cluster.sync();  // nobody reads another's counts any more
  if (warp == 0) place_experts(s, experts, lane);
  __syncthreads();
  if (rank == 0) store_slots(s, experts, table, list);
  for (int p0 = begin; p0 < end; p0 += 32) {
    const int p = p0 + lane, e = p < end ? ids[p] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, e);
    if (e >= 0) put(list, s.starts[e] + mine[e] + __popc(same & ((1u << lane) - 1)), p, chosen);
    __syncwarp();
    if (e >= 0 && __ffs(static_cast<int>(same)) - 1 == lane) mine[e] += __popc(same);
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
  Launch how{dim3(1), dim3(kListThreads), 0, stream, true, "work_list"};
  if (tokens * chosen <= kFewPairs) {
    launch(how, work_list_kernel, ids, tokens, chosen, experts, table, list);
    return;
  }
  how.grid = dim3(kListCtas);
  how.cluster = kListCtas;
  how.shared_bytes = static_cast<std::size_t>(experts) * (kListThreads / 32) * sizeof(int);
  launch(how, work_list_cluster_kernel, ids, tokens, chosen, experts, table, list);
}

void launch_tile_list(const WorkList& list, std::int32_t tile_tokens, std::int32_t* tiles,
                      cudaStream_t stream) {
  require(list.slots <= kMaxExperts, "up to 512 experts");
  launch({dim3(1), dim3(kMaxExperts), 0, stream, true, "tile_list"}, tile_list_kernel,
         static_cast<const std::int32_t*>(list.count), list.slots, tile_tokens, tiles);
}

}  // namespace pivot::cuda
