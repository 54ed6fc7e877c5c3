// The k largest of a row, exactly: ties to the lower index, NaN below every number, ascending indices out.
//
// Bytes: 4 an entry, read once. Rows of up to 8192 entries are one CTA's, longer ones a cluster's of 8 CTAs,
// which exchange no more than ranges, sums of bins and a few candidates: three barriers of the cluster in
// nearly every row. Up to 32 entries a thread stay in registers, a row of 262,144; what is longer is read
// from the L2 in each pass. Which of the two a launch gets follows from the longest row there can be
// (topk_ctas); in a cluster a short row is its first CTA's. Rows with at most k entries are written out
// without being read. topk_search.cuh describes the search.
#include <type_traits>

#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/indexer/topk_search.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

struct Row {
  const float* scores;
  int entries, k;
  std::int32_t* selected;
  std::int32_t* count;
};

__device__ __forceinline__ Row row_of(const IndexArguments& a, std::int64_t t) {
  return {a.scores + t * a.score_stride, (a.batch.positions[t] + 1) / 4, a.topk, a.selected + t * a.topk,
          a.count + t};
}
__device__ __forceinline__ Row row_of(const TopkRows& a, std::int64_t t) {
  return {a.scores + (a.row == nullptr ? t : a.row[t]) * a.stride,
          max(0, a.lengths == nullptr ? a.length : a.lengths[t]), a.topk, a.selected + t * a.topk,
          a.count + t};
}

template <int R, int SLOTS>
__device__ __forceinline__ void search(TopkScratch& scratch, const Row& row) {
  TopkSearch<R> search(scratch, row.scores, row.entries, row.k, row.selected);
  if constexpr (SLOTS > 0)
    search.template run_held<SLOTS>();
  else
    search.run_from_memory();
}

__device__ __forceinline__ void take_all(const Row& row) {
  for (int i = threadIdx.x; i < row.k; i += kTopkThreads) row.selected[i] = i < row.entries ? i : -1;
  if (threadIdx.x == 0) *row.count = row.entries;
}

// REQUIRES: at most kTopkOneCta entries where LONG is false.
template <bool LONG>
__device__ __forceinline__ void select_in_cta(TopkScratch& scratch, const Row& row) {
  static_assert(kTopkOneCta <= 8 * kTopkThreads);
  if (row.entries <= row.k) return take_all(row);
  if (threadIdx.x == 0) *row.count = row.k;
  if (row.entries <= 2 * kTopkThreads) return search<1, 2>(scratch, row);
  if (!LONG || row.entries <= 8 * kTopkThreads) return search<1, 8>(scratch, row);
  if constexpr (LONG) {
    if (row.entries <= 32 * kTopkThreads) return search<1, 32>(scratch, row);
    search<1, 0>(scratch, row);
  }
}
__device__ __forceinline__ void select_in_cluster(TopkScratch& scratch, const Row& row, int rank) {
  constexpr int kEach = kTopkClusterCtas * kTopkThreads;  // one entry a thread
  if (row.entries <= row.k || row.entries <= kTopkOneCta) {
    if (rank == 0) select_in_cta<false>(scratch, row);
    return;
  }
  if (rank == 0 && threadIdx.x == 0) *row.count = row.k;
  if (row.entries <= 4 * kEach) return search<kTopkClusterCtas, 4>(scratch, row);
  if (row.entries <= 16 * kEach) return search<kTopkClusterCtas, 16>(scratch, row);
  if (row.entries <= 32 * kEach) return search<kTopkClusterCtas, 32>(scratch, row);
  search<kTopkClusterCtas, 0>(scratch, row);
}

// A step's rows are known before the wait; others may be a kernel's.
template <class Arguments>
__device__ __forceinline__ Row wait_for_row(const Arguments& a, std::int64_t t) {
  if constexpr (std::is_same_v<Arguments, IndexArguments>) {
    const Row row = row_of(a, t);
    wait_for_predecessor();
    release_successor();
    return row;
  } else {
    wait_for_predecessor();
    release_successor();
    return row_of(a, t);
  }
}

template <class Arguments>
__global__ void __launch_bounds__(kTopkThreads) topk_kernel(const __grid_constant__ Arguments a) {
  __shared__ TopkScratch scratch;
  select_in_cta<true>(scratch, wait_for_row(a, blockIdx.x));
}

template <class Arguments>
__global__ void __launch_bounds__(kTopkThreads) topk_cluster_kernel(const __grid_constant__ Arguments a) {
  __shared__ TopkScratch scratch;
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.barrier_arrive();
  const Row row = wait_for_row(a, blockIdx.x / kTopkClusterCtas);
  cluster.barrier_wait();  // all CTAs are there: others may write to their shared memory
  select_in_cluster(scratch, row, static_cast<int>(cluster.block_rank()));
}

template <class Arguments>
void launch_rows(const Arguments& a, std::int64_t rows, std::int64_t longest, bool clusters,
                 cudaStream_t stream) {
  const int ctas = topk_ctas(longest, clusters);
  Launch how{dim3(static_cast<unsigned>(rows * ctas)), dim3(kTopkThreads), 0, stream, true, "topk"};
  how.cluster = static_cast<unsigned>(ctas);
  launch(how, ctas > 1 ? topk_cluster_kernel<Arguments> : topk_kernel<Arguments>, a);
}

}  // namespace

void launch_topk(const IndexArguments& a, bool clusters, cudaStream_t stream) {
  launch_rows(a, a.batch.num_tokens, a.score_stride, clusters, stream);
}

void launch_topk_rows(const TopkRows& a, bool clusters, cudaStream_t stream) {
  launch_rows(a, a.rows, a.lengths == nullptr ? a.length : a.stride, clusters, stream);
}

}  // namespace pivot::cuda
