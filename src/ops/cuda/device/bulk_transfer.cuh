// Copies of whole pieces of memory by the bulk copy engine, and the barriers that tell when their bytes are
// there (sm_90 and later).
#pragma once

#include "ops/cuda/device/ptx.cuh"

namespace pivot::cuda {

// For one arrival a phase: whoever asks for the copies. The fence makes the barrier known to the copy engine;
// other threads may wait on it after a barrier of theirs.
__device__ __forceinline__ void bulk_barrier_init(std::uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
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
// `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_copy(std::uint32_t shared, const void* global, int bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace pivot::cuda
