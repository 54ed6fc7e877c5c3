// Products of a warpgroup (sm_90a): operands that lie in shared memory in rows of 128 bytes, whose pieces of
// 16 bytes are XORed with the row number mod 8, and the instructions that multiply them.
//
// wgmma runs beside the warps that issue it: an instruction reads its left operand's registers and its sums
// until a wait for its group has returned, and nobody may touch them before. wgmma_fence() stands between
// writing registers and the instruction that reads them.
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

// Descriptors. K along the row of 128 bytes (64 BF16), 8 rows of M or N are 1024 bytes and start at a
// multiple of that. Only the low word depends on the address, in units of 16 bytes: the next 16 of K are 2.
__device__ __forceinline__ std::uint32_t wgmma_descriptor_low(std::uint32_t shared) {
  return (shared & 0x3ffffu) >> 4 | 1u << 16;
}
__device__ __forceinline__ std::uint64_t wgmma_descriptor(std::uint32_t low) {
  return std::uint64_t{0x40000040u} << 32 | low;
}
__device__ __forceinline__ std::uint64_t wgmma_k_major(std::uint32_t shared) {
  return wgmma_descriptor(wgmma_descriptor_low(shared));
}
// N along the row of 128 bytes, 8 rows of K are 1024 bytes, the next 64 of N `panel_bytes` on.
__device__ __forceinline__ std::uint64_t wgmma_n_major(std::uint32_t shared, std::uint32_t panel_bytes) {
  return wgmma_descriptor((shared & 0x3ffffu) >> 4 | (panel_bytes >> 4) << 16);
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
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

// Two sums as a pair of BF16, to nearest even; a NaN becomes the one that the instruction makes.
__device__ __forceinline__ std::uint32_t round_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// ---- sums += a b, a: 64 x 16 ----

// clang-format off
#define PIVOT_REGISTERS_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PIVOT_REGISTERS_1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PIVOT_REGISTERS_2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PIVOT_REGISTERS_3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PIVOT_REGISTERS_4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define PIVOT_REGISTERS_5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PIVOT_REGISTERS_6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define PIVOT_REGISTERS_7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on
#define PIVOT_SUMS_4(i) "+f"(sums[i]), "+f"(sums[(i) + 1]), "+f"(sums[(i) + 2]), "+f"(sums[(i) + 3])
#define PIVOT_SUMS(i) PIVOT_SUMS_4(i), PIVOT_SUMS_4((i) + 4), PIVOT_SUMS_4((i) + 8), PIVOT_SUMS_4((i) + 12)
#define PIVOT_ALL(...) __VA_ARGS__
// a in registers, b 16 x N with K along the row: Wgmma<N>::add.
template <int N>
struct Wgmma;
#define PIVOT_WGMMA(N, REGISTERS, SUMS, A0, A1, A2, A3, B)                                               \
  template <>                                                                                            \
  struct Wgmma<N> {                                                                                      \
    static __device__ __forceinline__ void add(float (&sums)[N / 2], std::uint32_t a0, std::uint32_t a1, \
                                               std::uint32_t a2, std::uint32_t a3, std::uint64_t b) {    \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS "}, {%" #A0    \
                   ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", 1, 1, 1, 0;"                                  \
                   : SUMS                                                                                \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                                        \
    }                                                                                                    \
  };
// clang-format off
PIVOT_WGMMA(32, PIVOT_REGISTERS_0, PIVOT_ALL(PIVOT_SUMS(0)), 16, 17, 18, 19, 20)
PIVOT_WGMMA(64, PIVOT_REGISTERS_0 "," PIVOT_REGISTERS_1, PIVOT_ALL(PIVOT_SUMS(0), PIVOT_SUMS(16)), 32, 33, 34, 35, 36)
PIVOT_WGMMA(96, PIVOT_REGISTERS_0 "," PIVOT_REGISTERS_1 "," PIVOT_REGISTERS_2, PIVOT_ALL(PIVOT_SUMS(0), PIVOT_SUMS(16), PIVOT_SUMS(32)), 48, 49, 50, 51, 52)
PIVOT_WGMMA(128, PIVOT_REGISTERS_0 "," PIVOT_REGISTERS_1 "," PIVOT_REGISTERS_2 "," PIVOT_REGISTERS_3, PIVOT_ALL(PIVOT_SUMS(0), PIVOT_SUMS(16), PIVOT_SUMS(32), PIVOT_SUMS(48)), 64, 65, 66, 67, 68)
PIVOT_WGMMA(160, PIVOT_REGISTERS_0 "," PIVOT_REGISTERS_1 "," PIVOT_REGISTERS_2 "," PIVOT_REGISTERS_3 "," PIVOT_REGISTERS_4, PIVOT_ALL(PIVOT_SUMS(0), PIVOT_SUMS(16), PIVOT_SUMS(32), PIVOT_SUMS(48), PIVOT_SUMS(64)), 80, 81, 82, 83, 84)
PIVOT_WGMMA(192, PIVOT_REGISTERS_0 "," PIVOT_REGISTERS_1 "," PIVOT_REGISTERS_2 "," PIVOT_REGISTERS_3 "," PIVOT_REGISTERS_4 "," PIVOT_REGISTERS_5, PIVOT_ALL(PIVOT_SUMS(0), PIVOT_SUMS(16), PIVOT_SUMS(32), PIVOT_SUMS(48), PIVOT_SUMS(64), PIVOT_SUMS(80)), 96, 97, 98, 99, 100)
PIVOT_WGMMA(224, PIVOT_REGISTERS_0 "," PIVOT_REGISTERS_1 "," PIVOT_REGISTERS_2 "," PIVOT_REGISTERS_3 "," PIVOT_REGISTERS_4 "," PIVOT_REGISTERS_5 "," PIVOT_REGISTERS_6, PIVOT_ALL(PIVOT_SUMS(0), PIVOT_SUMS(16), PIVOT_SUMS(32), PIVOT_SUMS(48), PIVOT_SUMS(64), PIVOT_SUMS(80), PIVOT_SUMS(96)), 112, 113, 114, 115, 116)
PIVOT_WGMMA(256, PIVOT_REGISTERS_0 "," PIVOT_REGISTERS_1 "," PIVOT_REGISTERS_2 "," PIVOT_REGISTERS_3 "," PIVOT_REGISTERS_4 "," PIVOT_REGISTERS_5 "," PIVOT_REGISTERS_6 "," PIVOT_REGISTERS_7, PIVOT_ALL(PIVOT_SUMS(0), PIVOT_SUMS(16), PIVOT_SUMS(32), PIVOT_SUMS(48), PIVOT_SUMS(64), PIVOT_SUMS(80), PIVOT_SUMS(96), PIVOT_SUMS(112)), 128, 129, 130, 131, 132)
// clang-format on
// a in registers, b 16 x 128 with N along the row; of the sums those from FIRST on.
template <int FIRST>
__device__ __forceinline__ void wgmma_64x128_n_major(float (&sums)[128], const std::uint32_t (&a)[4],
                                                     std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" PIVOT_REGISTERS_0
               "," PIVOT_REGISTERS_1 "," PIVOT_REGISTERS_2 "," PIVOT_REGISTERS_3
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : PIVOT_SUMS(FIRST), PIVOT_SUMS(FIRST + 16), PIVOT_SUMS(FIRST + 32), PIVOT_SUMS(FIRST + 48)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// a and b 16 x 32 in shared memory, both with K along the row.
__device__ __forceinline__ void wgmma_64x32_shared(float (&sums)[16], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" PIVOT_REGISTERS_0
               "}, %16, %17, 1, 1, 1, 0, 0;"
               : PIVOT_SUMS(0)
               : "l"(a), "l"(b));
}
#undef PIVOT_WGMMA
#undef PIVOT_ALL
#undef PIVOT_SUMS
#undef PIVOT_SUMS_4
#undef PIVOT_REGISTERS_0
#undef PIVOT_REGISTERS_1
#undef PIVOT_REGISTERS_2
#undef PIVOT_REGISTERS_3
#undef PIVOT_REGISTERS_4
#undef PIVOT_REGISTERS_5
#undef PIVOT_REGISTERS_6
#undef PIVOT_REGISTERS_7

#endif

}  // namespace pivot::cuda
