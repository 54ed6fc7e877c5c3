// Products of a warpgroup (sm_90a): operands that lie in shared memory in rows of 128 bytes, whose pieces of
// 16 bytes are XORed with the row number mod 8, and the instructions that multiply them.
//
// Accumulator of thread i (warp i / 32 % 4, g = lane / 4, t = lane % 4): d[4j + k] is row 16 warp + g + 8 (k
// / 2), column 8j + 2t + k % 2. Operand A from registers has the same rows: a0, a1 columns 2t + {0, 1} of
// rows g and g + 8, a2, a3 columns 8 more. So an accumulator packed to BF16 in order is the A of the next
// product.
#pragma once

#include <cstdint>

#include "ops/cuda/device/ptx.cuh"

namespace pivot::cuda {

// Byte within a matrix of 128-byte rows where piece `piece` (of 16 bytes) of row `row` lies.
__host__ __device__ constexpr std::uint32_t swizzled(std::uint32_t row, std::uint32_t piece) {
  return row * 128 + ((piece ^ row % 8) * 16);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// K along the row of 128 bytes (64 BF16), 8 rows of M or N are 1024 bytes. The next 16 of K: 32 bytes on.
__device__ __forceinline__ std::uint64_t wgmma_k_major(std::uint32_t shared) {
  return static_cast<std::uint64_t>((shared & 0x3ffffu) >> 4) | std::uint64_t{1} << 16 |
         std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}
// N along the row of 128 bytes, 8 rows of K are 1024 bytes, the next 64 of N `panel_bytes` on.
__device__ __forceinline__ std::uint64_t wgmma_n_major(std::uint32_t shared, std::uint32_t panel_bytes) {
  return static_cast<std::uint64_t>((shared & 0x3ffffu) >> 4) |
         static_cast<std::uint64_t>(panel_bytes >> 4) << 16 | std::uint64_t{1024 >> 4} << 32 |
         std::uint64_t{1} << 62;
}
__device__ __forceinline__ void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// What this thread wrote to shared memory becomes visible to the products of those it synchronises with.
__device__ __forceinline__ void fence_operands() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Registers of a thread of this warpgroup from here on.
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#define PIVOT_D8(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
// d += a b: a 64 x 16, b 16 x 32, both with K along the row.
__device__ __forceinline__ void wgmma_shared(float (&d)[16], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 0;"
      : PIVOT_D8(0), PIVOT_D8(8)
      : "l"(a), "l"(b));
}
// d += a b: a 64 x 16, b 16 x 64, both with K along the row.
__device__ __forceinline__ void wgmma_shared(float (&d)[32], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "%32, %33, 1, 1, 1, 0, 0;"
      : PIVOT_D8(0), PIVOT_D8(8), PIVOT_D8(16), PIVOT_D8(24)
      : "l"(a), "l"(b));
}
// d += a b: a 64 x 16 from registers, b 16 x 64 with K along the row.
__device__ __forceinline__ void wgmma_64x64(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
      : PIVOT_D8(0), PIVOT_D8(8), PIVOT_D8(16), PIVOT_D8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// d += a b: a 64 x 16 from registers, b 16 x 256 with N along the row.
__device__ __forceinline__ void wgmma_64x256_n_major(float (&d)[128], const std::uint32_t (&a)[4],
                                                     std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
      "{%128,%129,%130,%131}, %132, 1, 1, 1, 1;"
      : PIVOT_D8(0), PIVOT_D8(8), PIVOT_D8(16), PIVOT_D8(24), PIVOT_D8(32), PIVOT_D8(40), PIVOT_D8(48),
        PIVOT_D8(56), PIVOT_D8(64), PIVOT_D8(72), PIVOT_D8(80), PIVOT_D8(88), PIVOT_D8(96), PIVOT_D8(104),
        PIVOT_D8(112), PIVOT_D8(120)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef PIVOT_D8

#endif

}  // namespace pivot::cuda
