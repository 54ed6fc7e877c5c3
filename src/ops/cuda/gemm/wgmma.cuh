// The warpgroup products of sm_90a, their fences and groups.
//
// wgmma runs beside the warps that issue it: an instruction reads its left operand's registers and its sums
// until a wait for its group has returned, and nobody may touch them before. wgmma_fence() stands between
// writing registers and the instruction that reads them.
#pragma once

#include <cstdint>

namespace pivot::cuda {

// The right operand in shared memory: rows of 128 bytes (64 columns of a token), 16-byte pieces XORed with
// the row number mod 8; eight rows are 1024 bytes and start at a multiple of that. Only the low word of a
// descriptor depends on the address, in units of 16 bytes: 16 columns are 2.
__device__ __forceinline__ std::uint32_t wgmma_descriptor_low(std::uint32_t shared) {
  return (shared & 0x3ffffu) >> 4 | 1u << 16;
}
__device__ __forceinline__ std::uint64_t wgmma_descriptor(std::uint32_t low) {
  return std::uint64_t{0x40000040u} << 32 | low;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// sums += a b: a is 64 x 16 in registers (16 rows a warp), b 16 x TOKENS in shared memory. Lane l of a warp
// holds of the sums rows l/4 (4i, 4i + 1) and l/4 + 8 (4i + 2, 4i + 3), tokens 8i + 2(l%4) + {0, 1}.
template <int TOKENS>
struct Wgmma;

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
#define PIVOT_WGMMA(TOKENS, REGISTERS, SUMS, A0, A1, A2, A3, B)                                            \
  template <>                                                                                              \
  struct Wgmma<TOKENS> {                                                                                   \
    static __device__ __forceinline__ void add(float (&sums)[TOKENS / 2], std::uint32_t a0,                \
                                               std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,       \
                                               std::uint64_t b) {                                          \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #TOKENS "k16.f32.bf16.bf16 {" REGISTERS "}, {%" #A0 \
                   ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", 1, 1, 1, 0;"                                    \
                   : SUMS                                                                                  \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                                          \
    }                                                                                                      \
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

}  // namespace pivot::cuda
