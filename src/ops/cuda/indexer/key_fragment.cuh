// Index keys as the left operand of a product of 16 keys: lane t of four owns dims [t D/4, (t + 1) D/4) of
// both operands, so that its codes are contiguous in the row.
#pragma once

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"

namespace pivot::cuda {

// What lane t of four reads of a key: the codes of its D/4 dims and the scale they share (BF16: none).
template <RowFormat FORMAT, int D>
struct KeyCodes {
  static constexpr int kWords = D / (FORMAT == RowFormat::kIndexFp4   ? 32
                                     : FORMAT == RowFormat::kIndexFp8 ? 16
                                                                      : 8);
  std::uint32_t words[kWords];
  std::uint32_t scale;
};

// From global memory, which the compiler does not know of a row's address. Volatile: not before a wait for
// the predecessor.
__device__ __forceinline__ uint4 load_global16(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_global8(const void* p) {
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ std::uint32_t load_global4(const void* p) {
  std::uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ std::uint32_t load_global1(const void* p) {
  std::uint32_t v;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// Rows start at multiples of their data bytes in pages that do (cache/cache_layout.h), so codes are read in
// the largest pieces.
template <RowFormat FORMAT, int D>
__device__ __forceinline__ KeyCodes<FORMAT, D> fetch_key(const RowAddress& row, int t) {
  KeyCodes<FORMAT, D> key;
  constexpr int kWords = key.kWords;
  const std::uint8_t* codes = row.data + t * (kWords * 4);
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
      const uint4 v = load_global16(codes + 4 * w);
      key.words[w] = v.x, key.words[w + 1] = v.y, key.words[w + 2] = v.z, key.words[w + 3] = v.w;
    }
  } else {
    static_assert(kWords == 2);
    const uint2 v = load_global8(codes);
    key.words[0] = v.x, key.words[1] = v.y;
  }
  if constexpr (FORMAT == RowFormat::kIndexFp4)
    key.scale = load_global1(row.scales + t * (D / 4) / kIndexFp4Group);
  else if constexpr (FORMAT == RowFormat::kIndexFp8)
    key.scale = load_global4(row.scales);
  return key;
}

// To nearest even; every NaN becomes 0x7fff.
__device__ __forceinline__ std::uint32_t f32x2_to_bf16x2(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// The D/4 dims as BF16 pairs: D/8 registers. FP4 keys pair dim i with dim i + 4 of each eight, other keys
// neighbours.
template <RowFormat FORMAT, int D>
__device__ __forceinline__ void decode_key(const KeyCodes<FORMAT, D>& key, std::uint32_t (&out)[D / 8]) {
  constexpr int kWords = key.kWords;
  if constexpr (FORMAT == RowFormat::kIndexFp4) {
    // Element i of a word pairs with element i + 4 after a shift: BF16 pairs of code times 2^-126. The
    // group's scale 2^(s - 127) follows as the factor 2^(s - 1), exact; a scale above 2 has a factor beyond
    // BF16 and takes two.
    const std::uint32_t factor = (min(key.scale, 128u) + 126) * 0x00800080u;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const std::uint32_t codes = key.words[w];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        // Nibbles p and p + 4 to the halves: sign on top, magnitude at bits 6 to 8.
        const std::uint32_t sign = codes * (1u << (12 - 4 * p));
        const std::uint32_t size = p < 2 ? codes * (1u << (6 - 4 * p)) : codes >> (4 * p - 6);
        out[4 * w + p] = mul_bf16x2((size & 0x01c001c0u) | (sign & 0x80008000u), factor);
      }
    }
    if (key.scale > 128) {
      const std::uint32_t rest = (key.scale == 255 ? 0x7fffu : (key.scale - 1) << 7) * 0x00010001u;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) out[i] = mul_bf16x2(out[i], rest);
    }
  } else if constexpr (FORMAT == RowFormat::kIndexFp8) {
    const float scale = __uint_as_float(key.scale);
#pragma unroll
    for (int w = 0; w < kWords; ++w)
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const std::uint32_t pair = e4m3x2_to_f16x2(key.words[w] >> (16 * p));
        const float low = __half2float(__ushort_as_half(static_cast<unsigned short>(pair & 0xffffu)));
        const float high = __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
        out[2 * w + p] = f32x2_to_bf16x2(low * scale, high * scale);
      }
  } else {
#pragma unroll
    for (int w = 0; w < kWords; ++w) out[w] = key.words[w];
  }
}

template <RowFormat FORMAT, int D>
__device__ __forceinline__ void load_key_of(const RowAddress& row, int t, std::uint32_t (&out)[D / 8]) {
  decode_key<FORMAT, D>(fetch_key<FORMAT, D>(row, t), out);
}
template <int D>
__device__ __forceinline__ void load_key(const RowLayout& layout, const RowAddress& row, int t,
                                         std::uint32_t (&out)[D / 8]) {
  if (layout.format == RowFormat::kIndexFp4)
    load_key_of<RowFormat::kIndexFp4, D>(row, t, out);
  else if (layout.format == RowFormat::kIndexFp8)
    load_key_of<RowFormat::kIndexFp8, D>(row, t, out);
  else
    load_key_of<RowFormat::kBf16, D>(row, t, out);
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
