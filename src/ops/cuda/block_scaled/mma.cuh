// The block-scaled tensor-core instructions of sm_120a; fragments.h says which lane holds what.
//
// Everything that asks which architecture is being compiled is in this file. Elsewhere kBlockScaledMma is
// false and kernels have empty bodies; the host does not launch them there (has_block_scaled).
#pragma once

#include "ops/cuda/block_scaled/fragments.h"

namespace pivot::cuda {

#if defined(__CUDA_ARCH_FEAT_SM120_ALL)
inline constexpr bool kBlockScaledMma = true;
#define PIVOT_BLOCK_SCALED_ASM(TEXT, A_BYTE)                                                          \
  asm("mma.sync.aligned." TEXT                                                                        \
      " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {%12, 0}, "                        \
      "%11, {0, 0};"                                                                                  \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "r"(scale_b), \
        "n"(A_BYTE))
#else
inline constexpr bool kBlockScaledMma = false;
#define PIVOT_BLOCK_SCALED_ASM(TEXT, A_BYTE) __builtin_trap()
#endif

// d += (scale_a a) (scale_b b) for step STEP of a tile.
template <BlockKind K, int STEP>
__device__ __forceinline__ void block_scaled_mma(float (&d)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2], std::uint32_t scale_a,
                                                 std::uint32_t scale_b) {
  if constexpr (K == BlockKind::kFp8)
    PIVOT_BLOCK_SCALED_ASM(
        "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0",
        block_scale_byte(K, STEP));
  else if constexpr (K == BlockKind::kFp4)
    PIVOT_BLOCK_SCALED_ASM(
        "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e2m1.e4m3.f32.ue8m0",
        block_scale_byte(K, STEP));
  else
    PIVOT_BLOCK_SCALED_ASM(
        "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3",
        block_scale_byte(K, STEP));
}
#undef PIVOT_BLOCK_SCALED_ASM

}  // namespace pivot::cuda
