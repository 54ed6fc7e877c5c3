// The search for the k largest of a row by the CTAs of a cluster, or by one CTA.
//
// Every CTA has a contiguous share of the row and every warp a contiguous piece of the share. A pass maps the
// candidates, the entries among which the k-th largest is known to lie, to 1024 bins by a monotone function,
// adds up the bins of all CTAs and keeps the bin that holds it. As soon as a bin has at most kCandidates
// entries these are compared with each other; when all candidates are equal, ties decide.
//
// The first passes map by (x - lowest) * scale, which spreads scores of whatever exponent over the bins, so
// that one pass is nearly always enough and its atomics seldom meet. fp32 rounding is monotone, so no smaller
// entry gets a larger bin. Where that does not help (an outlier far away, NaN, infinities) later passes map
// by the order-preserving key instead, whose range shrinks by 2^10 a pass: the search ends for every row.
// Nothing is collected that could overflow (faults B02, D2).
#pragma once

#include <cooperative_groups.h>

#include <cfloat>

#include "ops/cuda/placement/schedule.h"

namespace pivot::cuda {

inline constexpr int kTopkThreads = 1024, kTopkWarps = kTopkThreads / 32;
inline constexpr int kTopkBins = 1024;
inline constexpr int kTopkCandidates = 64;

// Keys order as the entries do: NaN below every number, -0 equal to +0.
__device__ __forceinline__ std::uint32_t order_key(float x) {
  if (!(x == x)) return 0;                            // below -inf, whose key is 0x007fffff
  const std::uint32_t u = __float_as_uint(x + 0.0f);  // -0 becomes +0
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
// Of a number's key.
__device__ __forceinline__ float key_value(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}
inline constexpr std::uint32_t kLowestFiniteKey = 0x00800000u, kHighestFiniteKey = 0xff7fffffu;

// NaN where one of them is.
__device__ __forceinline__ float nan_or_min(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float nan_or_max(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// Entries with keys in [low, high] to bins.
struct TopkMap {
  std::uint32_t low, high;
  float base, scale;
  int shift;
  bool linear;

  // REQUIRES: low < high.
  __device__ __forceinline__ void set(std::uint32_t lowest, std::uint32_t highest, bool try_linear) {
    low = lowest;
    high = highest;
    base = key_value(lowest);
    const float range = key_value(highest) - base;
    linear = try_linear && lowest >= kLowestFiniteKey && highest <= kHighestFiniteKey && range <= FLT_MAX;
    scale = fminf((kTopkBins - 1) / range, FLT_MAX);  // finite, so that 0 * scale is 0
    shift = max(0, 22 - __clz(static_cast<int>(highest - lowest)));
  }
  // The bin of x in the low bits: 2^23 plus the nearest integer.
  __device__ __forceinline__ float place(float x) const { return (x - base) * scale + 0x1p23f; }
  static __device__ __forceinline__ int bin_at(float place) {
    return static_cast<int>(__float_as_uint(place) & (kTopkBins - 1));
  }
  __device__ __forceinline__ int bin(std::uint32_t key) const {
    return linear ? bin_at(place(key_value(key))) : static_cast<int>((key - low) >> shift);
  }
  __device__ __forceinline__ bool holds(std::uint32_t key) const { return key >= low && key <= high; }
};

// What a CTA of a row keeps in shared memory; [rank] is what CTA `rank` of the cluster has put there.
struct TopkScratch {
  int bins[2][kTopkBins];  // of even and odd passes
  uint2 range[kTopkClusterCtas][kTopkWarps];
  int sums[kTopkClusterCtas][kTopkWarps];  // of 32 bins each
  std::uint32_t list[kTopkCandidates];     // the candidates' keys, those of CTA 0 first
  int listed;                              // of this CTA
  // After a pass: the bin that holds the k-th largest, its rank among the entries there, and how many they
  // are.
  int bin, wanted, candidates;
  int above[kTopkClusterCtas];  // entries of each CTA in higher bins, of all passes
  int count[kTopkClusterCtas];  // candidates of each CTA
  // After the candidates have been compared: the k-th largest key, and how many entries equal to it are
  // chosen.
  std::uint32_t key;
  int equals;
  int warp_above[kTopkWarps], warp_equal[kTopkWarps];
};

// The search of one CTA of R for the k largest of n > k entries.
template <int R>
class TopkSearch {
 public:
  __device__ __forceinline__ TopkSearch(TopkScratch& scratch, const float* scores, int n, int k,
                                        std::int32_t* selected)
      : s_(scratch), scores_(scores), selected_(selected), wanted_(k) {
    if constexpr (R > 1) rank_ = static_cast<int>(cooperative_groups::this_cluster().block_rank());
    const int share = ((n + R - 1) / R + 31) / 32 * 32;
    const int begin = min(n, rank_ * share), end = min(n, begin + share);
    const int piece = (share / 32 + 31) / 32 * 32;
    first_ = min(end, begin + warp_ * piece);
    last_ = min(end, first_ + piece);
    if (static_cast<int>(threadIdx.x) < R) {
      const int from = min(n, static_cast<int>(threadIdx.x) * share);
      s_.above[threadIdx.x] = 0;
      s_.count[threadIdx.x] = min(n, from + share) - from;
    }
    if (threadIdx.x == 0) {
      s_.listed = 0;
      s_.wanted = k;
    }
    clear_bins(0);
  }

  // Reads the row once and keeps a warp's piece in registers: SLOTS entries a lane.
  template <int SLOTS>
  __device__ __forceinline__ void run_held() {
    static_assert(SLOTS <= 32);
    float x[SLOTS];
#pragma unroll
    for (int j = 0; j < SLOTS; ++j) x[j] = at(j) < last_ ? scores_[at(j)] : 0.0f;
    float lowest = __uint_as_float(0x7f800000u), highest = __uint_as_float(0xff800000u);
#pragma unroll
    for (int j = 0; j < SLOTS; ++j)
      if (at(j) < last_) {
        lowest = nan_or_min(lowest, x[j]);
        highest = nan_or_max(highest, x[j]);
      }
    const uint2 range = range_of_row(order_key(lowest), order_key(highest));
    if (range.x < kLowestFiniteKey || range.y > kHighestFiniteKey) {
      map_.set(0, 0xffffffffu, false);
      return go_on(*this, 0, true);
    }
    if (range.x == range.y) return write_equal(*this, range.x);
    map_.set(range.x, range.y, true);
    if (!map_.linear) return go_on(*this, 0, true);
    clear_bins(1);
#pragma unroll
    for (int j = 0; j < SLOTS; ++j)
      if (at(j) < last_) {
        x[j] = map_.place(x[j]);
        atomicAdd(&s_.bins[0][TopkMap::bin_at(x[j])], 1);
      }
    close_pass(0);
    if (s_.candidates > kTopkCandidates) return go_on(*this, 1, false);
    const float border = 0x1p23f + static_cast<float>(bin_);
    unsigned above = 0, near = 0;  // a bit a slot
#pragma unroll
    for (int j = 0; j < SLOTS; ++j)
      if (at(j) < last_) {
        above |= x[j] > border ? 1u << j : 0u;
        near |= x[j] == border ? 1u << j : 0u;
      }
    for (unsigned rest = near; rest != 0; rest &= rest - 1) list(order_key(scores_[at(__ffs(rest) - 1)]));
    close_list();
    unsigned equal = 0;
    for (unsigned rest = near; rest != 0; rest &= rest - 1) {
      const std::uint32_t key = order_key(scores_[at(__ffs(rest) - 1)]);
      if (key > s_.key) above |= rest & (0 - rest);
      if (key == s_.key) equal |= rest & (0 - rest);
    }
    Position to = position(__popc(above), __popc(equal), s_.key, true);
    for (unsigned rest = __reduce_or_sync(~0u, above | equal); rest != 0; rest &= rest - 1) {
      const int j = __ffs(rest) - 1;
      write(at(j), (above >> j & 1u) != 0, (equal >> j & 1u) != 0, s_.equals, to);
    }
  }

  // Reads the row from memory, or rather the L2, in every pass.
  __device__ __forceinline__ void run_from_memory() { go_on(*this, 0, false); }

 private:
  struct Position {  // in the selection, of a warp's next entry
    int above, equal;
  };

  __device__ __forceinline__ int at(int slot) const { return first_ + 32 * slot + lane_; }
  // f(entry, whether it is the warp's) in whole warps.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    for (int i = first_; i < last_; i += 32) f(i + lane_, i + lane_ < last_);
  }
  __device__ __forceinline__ void clear_bins(int pass) {
    s_.bins[pass & 1][threadIdx.x] = 0;
    static_assert(kTopkThreads == kTopkBins);
  }
  static __device__ __forceinline__ void all_arrive() {
    if constexpr (R > 1)
      cooperative_groups::this_cluster().sync();
    else
      __syncthreads();
  }
  // `value` to where `place` is in the shared memory of every CTA; by lanes below R.
  template <class T>
  static __device__ __forceinline__ void publish(T* place, T value, int target) {
    if constexpr (R > 1)
      *cooperative_groups::this_cluster().map_shared_rank(place, target) = value;
    else
      *place = value;
  }

  // The lowest and highest key of all.
  __device__ __forceinline__ uint2 range_of_row(std::uint32_t lowest, std::uint32_t highest) {
    lowest = __reduce_min_sync(~0u, lowest);
    highest = __reduce_max_sync(~0u, highest);
    if (lane_ < R) publish(&s_.range[rank_][warp_], uint2{lowest, highest}, lane_);
    all_arrive();
    uint2 range = s_.range[0][lane_];
#pragma unroll
    for (int r = 1; r < R; ++r) {
      const uint2 other = s_.range[r][lane_];
      range = uint2{min(range.x, other.x), max(range.y, other.y)};
    }
    return uint2{__reduce_min_sync(~0u, range.x), __reduce_max_sync(~0u, range.y)};
  }

  // After the CTA's atomics: the bin of the k-th largest, in bin_ and wanted_.
  __device__ __forceinline__ void close_pass(int pass) {
    const int* bins = s_.bins[pass & 1];
    __syncthreads();
    const int sum = __reduce_add_sync(~0u, bins[threadIdx.x]);
    if (lane_ < R) publish(&s_.sums[rank_][warp_], sum, lane_);
    all_arrive();
    if (warp_ == 0) find_bin(bins);
    __syncthreads();
    bin_ = s_.bin;
    wanted_ = s_.wanted;
  }
  // Sum of `value` over this lane and those after it.
  __device__ __forceinline__ int sum_from_here(int value) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_down_sync(~0u, value, step);
      if (lane_ + step < 32) value += other;
    }
    return value;
  }
  // The last lane that reaches `wanted` from the end; takes from `wanted` what lies beyond it.
  __device__ __forceinline__ int last_reaching(int own, int& wanted) const {
    const int from_here = sum_from_here(own);
    const int lane = 31 - __clz(static_cast<int>(__ballot_sync(~0u, from_here >= wanted)));
    wanted -= __shfl_sync(~0u, from_here - own, lane);
    return lane;
  }
  __device__ __forceinline__ void find_bin(const int* bins) {
    int wanted = s_.wanted, sums[R], counts[R], total = 0;
#pragma unroll
    for (int r = 0; r < R; ++r) total += sums[r] = s_.sums[r][lane_];
    const int group = last_reaching(total, wanted);
    const int* mine = bins + 32 * group + lane_;
    total = 0;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if constexpr (R > 1)
        counts[r] = *cooperative_groups::this_cluster().map_shared_rank(mine, r);
      else
        counts[r] = *mine;
      total += counts[r];
    }
    const int place = last_reaching(total, wanted);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int above =
          __reduce_add_sync(~0u, (lane_ > group ? sums[r] : 0) + (lane_ > place ? counts[r] : 0));
      if (lane_ == place) {
        s_.above[r] += above;
        s_.count[r] = counts[r];
      }
    }
    __syncwarp();  // every lane has read s_.wanted
    if (lane_ == place) {
      s_.bin = 32 * group + place;
      s_.wanted = wanted;
      s_.candidates = total;
    }
  }

  // One of at most kTopkCandidates keys; to all CTAs.
  __device__ __forceinline__ void list(std::uint32_t key) {
    int place = atomicAdd(&s_.listed, 1);
    for (int r = 0; r < rank_; ++r) place += s_.count[r];
#pragma unroll
    for (int r = 0; r < R; ++r) publish(&s_.list[place], key, r);
  }
  // When all are listed: the k-th largest, by comparing each with all.
  __device__ __forceinline__ void close_list() {
    all_arrive();
    const int count = s_.candidates;
    for (int i = warp_; i < count; i += kTopkWarps) {
      const std::uint32_t key = s_.list[i];
      int above = 0, equal = 0, before = 0;
#pragma unroll
      for (int from = 0; from < kTopkCandidates; from += 32) {
        const int other = from + lane_;
        const std::uint32_t its = other < count ? s_.list[other] : 0;
        above += __popc(__ballot_sync(~0u, other < count && its > key));
        equal += __popc(__ballot_sync(~0u, other < count && its == key));
        before += __popc(__ballot_sync(~0u, other < i && its == key));
      }
      if (lane_ == 0 && before == 0 && above < wanted_ && wanted_ <= above + equal) {
        s_.key = key;
        s_.equals = wanted_ - above;
      }
    }
    __syncthreads();
  }

  // Where the warp's first entry goes, given the entries of each lane above and equal to the k-th key.
  __device__ __forceinline__ Position position(int above, int equal, std::uint32_t key, bool listed) {
    above = __reduce_add_sync(~0u, above);
    equal = __reduce_add_sync(~0u, equal);
    if (lane_ == 0) {
      s_.warp_above[warp_] = above;
      s_.warp_equal[warp_] = equal;
    }
    __syncthreads();
    Position to{__reduce_add_sync(~0u, lane_ < warp_ ? s_.warp_above[lane_] : 0),
                __reduce_add_sync(~0u, lane_ < warp_ ? s_.warp_equal[lane_] : 0)};
    if constexpr (R > 1) {  // and the CTAs before this one
      int candidates = 0;
      for (int r = 0; r < rank_; ++r) {
        to.above += s_.above[r];
        candidates += s_.count[r];
      }
      if (!listed) {
        to.equal += candidates;
      } else {
#pragma unroll
        for (int from = 0; from < kTopkCandidates; from += 32) {
          const int i = from + lane_;
          to.above += __popc(__ballot_sync(~0u, i < candidates && s_.list[i] > key));
          to.equal += __popc(__ballot_sync(~0u, i < candidates && s_.list[i] == key));
        }
      }
    }
    return to;
  }
  // 32 neighbours, in whole warps: those above the k-th key and the first `equals` of those equal to it.
  __device__ __forceinline__ void write(int i, bool above, bool equal, int equals, Position& to) {
    const unsigned is_above = __ballot_sync(~0u, above), is_equal = __ballot_sync(~0u, equal);
    const unsigned below = (1u << lane_) - 1;
    const int my_above = to.above + __popc(is_above & below), my_equal = to.equal + __popc(is_equal & below);
    if (above) selected_[my_above + min(my_equal, equals)] = i;
    if (equal && my_equal < equals) selected_[my_above + my_equal] = i;
    to.above += __popc(is_above);
    to.equal += __popc(is_equal);
  }

  // From pass `pass` on; `mapped`: its range is known and map_ set. Before a later pass map_ and bin_ are
  // those of the pass before.
  __device__ __forceinline__ void run_from_memory(int pass, bool mapped) {
    constexpr int kLinearPasses = 2;
    for (;; ++pass, mapped = false) {
      if (!mapped) {
        std::uint32_t lowest = 0xffffffffu, highest = 0;
        each([&](int i, bool valid) {
          if (!valid) return;
          const std::uint32_t key = order_key(scores_[i]);
          if (pass > 0 && !(map_.holds(key) && map_.bin(key) == bin_)) return;
          lowest = min(lowest, key);
          highest = max(highest, key);
        });
        const uint2 range = range_of_row(lowest, highest);
        if (range.x == range.y) return write_from_memory(range.x, wanted_, false);
        map_.set(range.x, range.y, pass < kLinearPasses);
      }
      clear_bins(pass + 1);
      each([&](int i, bool valid) {
        const std::uint32_t key = valid ? order_key(scores_[i]) : 0;
        if (valid && map_.holds(key)) atomicAdd(&s_.bins[pass & 1][map_.bin(key)], 1);
      });
      close_pass(pass);
      if (s_.candidates <= kTopkCandidates) break;
    }
    each([&](int i, bool valid) {
      const std::uint32_t key = valid ? order_key(scores_[i]) : 0;
      if (valid && map_.holds(key) && map_.bin(key) == bin_) list(key);
    });
    close_list();
    write_from_memory(s_.key, s_.equals, true);
  }

  __device__ __forceinline__ void write_from_memory(std::uint32_t kth, int equals, bool listed) {
    int above = 0, equal = 0;
    each([&](int i, bool valid) {
      const std::uint32_t key = valid ? order_key(scores_[i]) : 0;
      above += valid && key > kth;
      equal += valid && key == kth;
    });
    Position to = position(above, equal, kth, listed);
    each([&](int i, bool valid) {
      const std::uint32_t key = valid ? order_key(scores_[i]) : 0;
      write(i, valid && key > kth, valid && key == kth, equals, to);
    });
  }

  // Rare: kept out of the code that all rows run through. They take a copy, so that the search itself can
  // stay in registers.
  static __device__ __noinline__ void go_on(TopkSearch search, int pass, bool mapped) {
    search.run_from_memory(pass, mapped);
  }
  static __device__ __noinline__ void write_equal(TopkSearch search, std::uint32_t kth) {
    search.write_from_memory(kth, search.wanted_, false);
  }

  TopkScratch& s_;
  const float* scores_;
  std::int32_t* selected_;
  TopkMap map_;
  int bin_ = 0, wanted_;
  int rank_ = 0, first_, last_;
  int warp_ = static_cast<int>(threadIdx.x) / 32, lane_ = static_cast<int>(threadIdx.x) % 32;
};

}  // namespace pivot::cuda
