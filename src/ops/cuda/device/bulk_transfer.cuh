// Copies of whole pieces of memory by the bulk copy engine, and the barriers that tell when their bytes are
// there (sm_90 and later); inside a cluster one copy fills several CTAs.
#pragma once

#include "ops/cuda/device/ptx.cuh"

namespace pivot::cuda {

// `arrivals` a phase: one where whoever asks for the copies is the only one. The fence makes the barrier
// known to the copy engine; other threads may wait on it after a barrier of theirs.
__device__ __forceinline__ void bulk_barrier_init(std::uint32_t barrier, int arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bulk_barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// The phase ends when this many bytes have come.
__device__ __forceinline__ void bulk_barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters ----

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Every thread of every CTA of the cluster; what one wrote before it is visible to all after it.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// The address, for the whole cluster, of what lies at `shared` in the CTA of rank `rank`.
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t shared, std::uint32_t rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
// One arrival at a barrier of any CTA of the cluster, by the lanes for which `mine`. Says that memory may be
// overwritten, not that something was written: no wider release, which would wait for every load on its way.
__device__ __forceinline__ void cluster_barrier_arrive(std::uint32_t barrier_of_cluster, bool mine) {
  asm volatile(
      "{\n"
      ".reg .pred mine;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "@mine mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(barrier_of_cluster),
      "r"(static_cast<std::uint32_t>(mine))
      : "memory");
}
// From global memory to the same place of every CTA in the mask, whose own barriers count the bytes. `bytes`
// and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_copy_to_all(std::uint32_t shared, const void* global, int bytes,
                                                 std::uint32_t barrier, std::uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(ranks)
      : "memory");
}
// Asks the L2 for memory; size and address as for a copy.
__device__ __forceinline__ void bulk_prefetch(const void* global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

}  // namespace pivot::cuda
