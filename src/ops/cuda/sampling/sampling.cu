// A token from each row of logits: argmax, or a draw after temperature, top-k, top-p and min-p (decision.h).
//
// Bytes: 4 a logit, read from L2 once (greedy), twice (in id order) or three times (in order of preference);
// 517 KB a row of 129,280. FLOP: an exp() in double a candidate. Latency bound: every row is cut into
// segments of 2048 ids so that a single row fills 64 CTAs, and so that consumer cards, which have two
// double-precision lanes a multiprocessor, finish it in about 12 us. Three kernels, four with top-k or top-p:
//   1. scan    most likely id, candidates and faults of a segment
//   2. weigh   sums of weights of a segment
//   3. topk    the kMaxSortedDraw best of the row (indexer/topk.cu)
//   4. choose  one CTA a row walks down the tree, or sorts what topk left
#include "ops/cuda/sampling/sampling.h"

#include "numeric/philox.h"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kChunks = kDrawSegment / kDrawChunk;

__device__ __forceinline__ double warp_total(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ __forceinline__ std::uint64_t warp_best(std::uint64_t x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const std::uint64_t other = __shfl_xor_sync(0xffffffffu, x, step);
    x = other > x ? other : x;
  }
  return x;
}
__device__ __forceinline__ bool is_candidate(float x) { return x > -INFINITY; }  // not NaN either

// The row's most likely id and its counts, the same in every thread.
struct RowFacts {
  std::uint64_t best;
  std::int32_t faults, candidates;
};
__device__ __forceinline__ RowFacts row_facts(const DrawSegment* segments, int count) {
  __shared__ RowFacts facts;
  if (threadIdx.x < 32) {
    RowFacts mine{};
    for (int s = threadIdx.x; s < count; s += 32) {
      mine.best = segments[s].best > mine.best ? segments[s].best : mine.best;
      mine.faults += segments[s].faults;
      mine.candidates += segments[s].candidates;
    }
    mine.best = warp_best(mine.best);
    mine.faults = __reduce_add_sync(0xffffffffu, mine.faults);
    mine.candidates = __reduce_add_sync(0xffffffffu, mine.candidates);
    if (threadIdx.x == 0) facts = mine;
  }
  __syncthreads();
  return facts;
}

// Weights of the 32 ids of a chunk: this lane's, and their sums in every lane.
struct Chunk {
  double weight, kept, all;
};
__device__ __forceinline__ Chunk weigh_chunk(const float* row, int vocab, int first, float maximum,
                                             const DrawParams& p) {
  const int id = first + static_cast<int>(threadIdx.x) % 32;
  const float x = id < vocab ? row[id] : -INFINITY;
  const double weight = is_candidate(x) ? draw_weight(x, maximum, p.temperature) : 0.0;
  const double kept = weight >= static_cast<double>(p.min_p) ? weight : 0.0;
  return {kept, warp_total(kept), warp_total(weight)};
}

// grid (segments, draws)
__global__ void __launch_bounds__(kThreads) scan_kernel(const __grid_constant__ DrawArguments a) {
  __shared__ DrawSegment parts[kWarps];
  wait_for_predecessor();
  release_successor();
  const int draw = blockIdx.y, first = static_cast<int>(blockIdx.x) * kDrawSegment;
  const float* row = a.logits + static_cast<std::int64_t>(a.rows[draw]) * a.vocab;
  DrawSegment mine;
#pragma unroll
  for (int j = 0; j < kDrawSegment / kThreads; ++j) {
    const int id = first + j * kThreads + static_cast<int>(threadIdx.x);
    const float x = id < a.vocab ? row[id] : -INFINITY;
    const bool fault = !(x < INFINITY);  // NaN or +inf
    mine.faults += fault;
    if (fault || !is_candidate(x)) continue;
    ++mine.candidates;
    const std::uint64_t rank = draw_rank(__float_as_uint(x), id);
    mine.best = rank > mine.best ? rank : mine.best;
  }
  mine.best = warp_best(mine.best);
  mine.faults = __reduce_add_sync(0xffffffffu, mine.faults);
  mine.candidates = __reduce_add_sync(0xffffffffu, mine.candidates);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) {
    mine.best = parts[w].best > mine.best ? parts[w].best : mine.best;
    mine.faults += parts[w].faults;
    mine.candidates += parts[w].candidates;
  }
  a.segments[static_cast<std::int64_t>(draw) * gridDim.x + blockIdx.x] = mine;
}

// Sums of the chunks of a segment, by all warps of the CTA.
__device__ __forceinline__ void weigh_segment(const float* row, int vocab, int first, float maximum,
                                              const DrawParams& p, double* kept, double* all) {
  for (int c = static_cast<int>(threadIdx.x) / 32; c < kChunks; c += kWarps) {
    const Chunk chunk = weigh_chunk(row, vocab, first + c * kDrawChunk, maximum, p);
    if (threadIdx.x % 32 == 0) {
      kept[c] = chunk.kept;
      all[c] = chunk.all;
    }
  }
  __syncthreads();
}

// grid (segments, draws)
__global__ void __launch_bounds__(kThreads) weigh_kernel(const __grid_constant__ DrawArguments a) {
  __shared__ double kept[kChunks], all[kChunks];
  wait_for_predecessor();
  release_successor();
  const int draw = blockIdx.y;
  const DrawParams p = a.params[draw];
  DrawSegment* segments = a.segments + static_cast<std::int64_t>(draw) * gridDim.x;
  const RowFacts facts = row_facts(segments, gridDim.x);
  if (p.temperature == 0.0f || facts.faults > 0 || facts.candidates == 0) return;
  weigh_segment(a.logits + static_cast<std::int64_t>(a.rows[draw]) * a.vocab, a.vocab,
                static_cast<int>(blockIdx.x) * kDrawSegment, __uint_as_float(draw_logit_bits(facts.best)), p,
                kept, all);
  if (threadIdx.x != 0) return;
  double kept_sum = 0, all_sum = 0;
  for (int c = 0; c < kChunks; ++c) {
    kept_sum += kept[c];
    all_sum += all[c];
  }
  segments[blockIdx.x].kept = kept_sum;
  segments[blockIdx.x].all = all_sum;
}

// Descending, by all threads of the CTA.
__device__ __forceinline__ void sort_ranks(std::uint64_t* ranks) {
  for (int size = 2; size <= kMaxSortedDraw; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < kMaxSortedDraw / 2; i += kThreads) {
        const int low = i / step * 2 * step + i % step, high = low + step;
        const bool descending = (low & size) == 0;
        if ((ranks[low] < ranks[high]) == descending) {
          const std::uint64_t other = ranks[low];
          ranks[low] = ranks[high];
          ranks[high] = other;
        }
      }
    }
  __syncthreads();
}

// grid (draws)
__global__ void __launch_bounds__(kThreads)
    choose_kernel(const __grid_constant__ DrawArguments a, int num_segments) {
  __shared__ double sums[kMaxSortedDraw];
  __shared__ std::uint64_t ranks[kMaxSortedDraw];
  __shared__ double unused[kChunks];
  __shared__ int chosen;
  wait_for_predecessor();
  release_successor();
  const int draw = blockIdx.x;
  const DrawParams p = a.params[draw];
  const float* row = a.logits + static_cast<std::int64_t>(a.rows[draw]) * a.vocab;
  const DrawSegment* segments = a.segments + static_cast<std::int64_t>(draw) * num_segments;
  const RowFacts facts = row_facts(segments, num_segments);
  DrawResult result;
  if (facts.faults > 0 || facts.candidates == 0) {
    result.status = DrawStatus::kFault;
  } else if (p.temperature == 0.0f) {
    result.id = draw_id(facts.best);
  } else {
    const float maximum = __uint_as_float(draw_logit_bits(facts.best));
    const double random = philox_uniform(p.seed, p.counter);
    if (draw_is_sorted(p, facts.candidates)) {
      const int selected = a.selected_count[draw];
      for (int i = threadIdx.x; i < kMaxSortedDraw; i += kThreads) {
        const int id = i < selected ? a.selected[static_cast<std::int64_t>(draw) * kMaxSortedDraw + i] : -1;
        const float x = id >= 0 ? row[id] : -INFINITY;
        ranks[i] = is_candidate(x) ? draw_rank(__float_as_uint(x), id) : 0;
      }
      sort_ranks(ranks);
      const int count = min(facts.candidates, kMaxSortedDraw);
      for (int i = threadIdx.x; i < count; i += kThreads)
        sums[i] = draw_weight(__uint_as_float(draw_logit_bits(ranks[i])), maximum, p.temperature);
      __syncthreads();
      if (threadIdx.x == 0) {
        double all = 0;
        for (int s = 0; s < num_segments; ++s) all += segments[s].all;
        chosen = draw_sorted(sums, count, facts.candidates, all, p, random);
      }
      __syncthreads();
      if (chosen < 0)
        result.status = DrawStatus::kNeedsHost;
      else
        result.id = draw_id(ranks[chosen]);
    } else {
      double target = 0;  // of thread 0
      const auto descend = [&](int count) {
        __syncthreads();
        if (threadIdx.x == 0) chosen = draw_child(sums, count, target);
        __syncthreads();
        return chosen;
      };
      for (int s = threadIdx.x; s < num_segments; s += kThreads) sums[s] = segments[s].kept;
      __syncthreads();
      if (threadIdx.x == 0) {
        double total = 0;
        for (int s = 0; s < num_segments; ++s) total += sums[s];
        target = random * total;
      }
      int first = descend(num_segments) * kDrawSegment;
      weigh_segment(row, a.vocab, first, maximum, p, sums, unused);
      first += descend(kChunks) * kDrawChunk;
      if (threadIdx.x < 32) sums[threadIdx.x] = weigh_chunk(row, a.vocab, first, maximum, p).weight;
      result.id = first + descend(kDrawChunk);
    }
  }
  if (threadIdx.x == 0) a.results[draw] = result;
}

}  // namespace

void launch_draw(const DrawArguments& a, bool any_sorted, bool clusters, cudaStream_t stream) {
  const std::int32_t segments = draw_segments(a.vocab);
  require(a.draws > 0 && a.vocab % 4 == 0 && segments <= kMaxDrawSegments,
          "draws from rows of at most 262,144 logits, a multiple of 4");
  const dim3 grid(static_cast<unsigned>(segments), static_cast<unsigned>(a.draws));
  launch({grid, dim3(kThreads), 0, stream, true, "draw_scan"}, scan_kernel, a);
  launch({grid, dim3(kThreads), 0, stream, true, "draw_weigh"}, weigh_kernel, a);
  if (any_sorted) {
    TopkRows best;
    best.scores = a.logits;
    best.stride = a.vocab;
    best.rows = a.draws;
    best.row = a.rows;
    best.length = a.vocab;
    best.topk = kMaxSortedDraw;
    best.selected = a.selected;
    best.count = a.selected_count;
    launch_topk_rows(best, clusters, stream);
  }
  launch({dim3(static_cast<unsigned>(a.draws)), dim3(kThreads), 0, stream, true, "draw_choose"},
         choose_kernel, a, segments);
}

}  // namespace pivot::cuda
