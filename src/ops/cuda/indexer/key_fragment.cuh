// Index keys as the left operand of a product of 16 keys: lane t of four owns dims [t D/4, (t + 1) D/4) of
// both operands, so that its codes are contiguous in the row.
#pragma once

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"

namespace pivot::cuda {

// Dims [t D/4, +D/4) of one key as BF16 pairs: D/8 registers. FP4 keys pair dim i with dim i + 4 of each
// eight, other keys neighbours.
template <int D>
__device__ __forceinline__ void load_key(const RowLayout& layout, const RowAddress& row, int t,
                                         std::uint32_t (&out)[D / 8]) {
  constexpr int kDims = D / 4;
  if (layout.format == RowFormat::kIndexFp4) {
    // Element i of a word pairs with element i + 4 after a shift: BF16 pairs of code times 2^-126. Both
    // factors that follow are powers of two, and so exact: 2^126, then the group's scale (2^-127 is a BF16
    // subnormal).
    const std::uint32_t scale = row.scales[t * kDims / kIndexFp4Group];
    const std::uint32_t factor = (scale == 0 ? 0x40u : scale == 255 ? 0x7fffu : scale << 7) * 0x00010001u;
#pragma unroll
    for (int w = 0; w < kDims / 8; ++w) {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(row.data + t * kDims / 2 + 4 * w);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const std::uint32_t moved = codes * (1u << (12 - 4 * p));  // nibbles p and p + 4 on top of the halves
        const std::uint32_t pair = ((moved >> 6) & 0x01c001c0u) | (moved & 0x80008000u);
        out[4 * w + p] = mul_bf16x2(mul_bf16x2(pair, 0x7e807e80u), factor);
      }
    }
  } else if (layout.format == RowFormat::kIndexFp8) {
    const float scale = *reinterpret_cast<const float*>(row.scales);
#pragma unroll
    for (int w = 0; w < kDims / 4; ++w) {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(row.data + t * kDims + 4 * w);
#pragma unroll
      for (int p = 0; p < 2; ++p)
        out[2 * w + p] = pack_bf16x2(e4m3_to_float((codes >> (16 * p)) & 0xffu) * scale,
                                     e4m3_to_float((codes >> (16 * p + 8)) & 0xffu) * scale);
    }
  } else {
#pragma unroll
    for (int w = 0; w < kDims / 2; ++w)
      out[w] = *reinterpret_cast<const std::uint32_t*>(row.data + 2 * (t * kDims + 2 * w));
  }
}

// The eight dims that pair so with those of a key: what a step of 16 wants of them in its first and second
// half, for steps 2w and 2w + 1 of a lane's eight dims w.
struct QueryEight {
  uint2 first, second;
};
__device__ __forceinline__ QueryEight query_eight(uint4 v, bool fp4) {
  if (!fp4) return {{v.x, v.y}, {v.z, v.w}};
  return {{__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632)},
          {__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)}};
}

}  // namespace pivot::cuda
