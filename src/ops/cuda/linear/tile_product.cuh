// The product of one 16-row weight tile stripe with a few tokens: the inner loop of every linear and expert
// kernel.
//
// acc[n][i] += sum over the warp's share of K of W[row][k] x[token][k], lane layout of mma m16n8k16: rows l/4
// (i = 0, 1) and l/4 + 8 (i = 2, 3), tokens 8n + 2(l%4) + (i & 1). Weight codes are decoded in registers
// (placement/tile_format.h); operands are exact, so only the fp32 summation order differs from the oracle:
// warp w takes column tiles w, w+W, ..., and the order does not depend on the number of tokens.
//
// Operand x is either E4M3 code values as F16 with one fp32 scale per 128 columns (an FP8-quantised
// activation), or BF16. Instructions per 8 weights, one token tile: FP8/F16 6 + mma, FP4/F16 13 + 4 (scales)
// + mma, FP8/BF16 16 + mma.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/placement/tile_format.h"
#include "tensor/matrix.h"

namespace pivot::cuda {

// The right operand: token row i is at x + rows[i] * stride (rows == nullptr: row i), scales likewise.
struct ProductInput {
  const std::uint16_t* x = nullptr;  // F16 code values where `scales` is set, else BF16
  const float* scales = nullptr;     // [row][stride / 128]
  const std::int32_t* rows = nullptr;
  std::int64_t stride = 0;  // elements from row to row
};

struct TiledMatrix {  // a placed matrix: see placement/tile_format.h
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::int32_t tiles_k = 0;
};

// FP4 word -> four column pairs (placement/tile_format.h). F16: value * 2^-14. BF16: value * 2^-126. Bit
// instructions have half the rate of multiply-adds, and left shifts are multiplies: six of the nine are bit
// instructions.
__device__ __forceinline__ void expand_fp4_f16(std::uint32_t w, std::uint32_t (&r)[4]) {
  constexpr std::uint32_t kMask = 0x8e008e00u;
  const std::uint32_t right = w >> 3, left = w * 128u;
  const std::uint32_t second = (left & 0x80808080u) | (right & ~0x80808080u);
  r[0] = w & kMask;
  r[1] = (w * 256u) & kMask;
  r[2] = second & kMask;
  r[3] = (second * 256u) & kMask;
}
__device__ __forceinline__ void expand_fp4_bf16(std::uint32_t w, std::uint32_t (&r)[4]) {
  r[0] = ((w >> 3) & 0x01c001c0u) | (w & 0x80008000u);
  r[1] = ((w << 5) & 0x01c001c0u) | ((w << 8) & 0x80008000u);
  r[2] = ((w >> 6) & 0x01c001c0u) | ((w << 7) & 0x80008000u);
  r[3] = ((w << 2) & 0x01c001c0u) | ((w << 15) & 0x80008000u);
}
// Two E4M3 codes (bits 0-15) -> BF16 pair, exact: exponent re-bias by 2^120, which normalises subnormals too.
__device__ __forceinline__ std::uint32_t expand_fp8_bf16(std::uint32_t codes, int pair) {
  const std::uint32_t high = __byte_perm(codes, 0, pair == 0 ? 0x1404 : 0x3424);
  return mul_bf16x2(((high >> 4) & 0x07f007f0u) | (high & 0x80008000u), 0x7b807b80u);
}
// E8M0 byte `byte` (0..3, a constant after unrolling) of a word as fp32; byte value 0 does not occur.
__device__ __forceinline__ float scale_of_byte(std::uint32_t word, int byte) {
  const std::uint32_t moved = byte == 3 ? word >> 1 : word * (1u << (23 - 8 * byte));
  return __uint_as_float(moved & 0x7f800000u);
}

// The factor that undoes the power of two an expansion leaves in the accumulator.
template <MatrixFormat F, class Op>
__device__ constexpr float expansion_factor() {
  constexpr bool f16 = std::is_same_v<Op, OperandF16>;
  if constexpr (F == MatrixFormat::kFP4) return f16 ? 0x1p14f : 1.0f;
  if constexpr (F == MatrixFormat::kNVFP4) return f16 ? 0x1p7f : 0x1p9f;
  return 1.0f;
}

// A lane's place in a stripe of tiles.
template <MatrixFormat F>
struct StripePlace {
  const std::uint8_t* codes;
  const std::uint8_t* scales;

  __device__ __forceinline__ StripePlace(const TiledMatrix& m, std::int64_t tile, int lane)
      : codes(m.codes + tile * tile_code_bytes(F) + lane * 16),
        scales(m.scales + tile * tile_scale_bytes(F)) {
    if constexpr (F == MatrixFormat::kFP4) scales += lane / 4 * 4;
    if constexpr (F == MatrixFormat::kNVFP4) scales += lane / 4 * 8;
  }
  StripePlace() = default;
  __device__ __forceinline__ void advance(int tiles) {
    codes += tiles * static_cast<int>(tile_code_bytes(F));
    scales += tiles * static_cast<int>(tile_scale_bytes(F));
  }
};

template <MatrixFormat F>
struct TileFragments {
  static constexpr int kLoads = F == MatrixFormat::kBF16 ? 8 : F == MatrixFormat::kFP8 ? 4 : 2;
  uint4 codes[kLoads];
  std::uint32_t scales[F == MatrixFormat::kNVFP4 ? 4 : 2];

  __device__ __forceinline__ void load(const StripePlace<F>& at) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) codes[i] = load_stream(at.codes + i * 512);
    if constexpr (F == MatrixFormat::kFP8)
      scales[0] = __ldg(reinterpret_cast<const std::uint32_t*>(at.scales));
    if constexpr (F == MatrixFormat::kFP4) {
      scales[0] = __ldg(reinterpret_cast<const std::uint32_t*>(at.scales));
      scales[1] = __ldg(reinterpret_cast<const std::uint32_t*>(at.scales) + 8);
    }
    if constexpr (F == MatrixFormat::kNVFP4) {
      const uint2 low = __ldg(reinterpret_cast<const uint2*>(at.scales));
      const uint2 high = __ldg(reinterpret_cast<const uint2*>(at.scales) + 8);
      scales[0] = low.x;
      scales[1] = low.y;
      scales[2] = high.x;
      scales[3] = high.y;
    }
  }
};

// Where a lane finds its share of the right operand. Columns beyond `count` repeat row `first`: a column of
// the product depends on nothing but its own token, so what they hold does not matter, and no load is
// conditional.
template <MatrixFormat F, int NT>
struct TokenOperand {
  const std::uint16_t* x[NT];  // token 8n + l/4, the lane's columns of tile 0
  const float* scales[NT][2];  // tokens 8n + 2(l%4) + {0, 1}; null without scales

  __device__ __forceinline__ TokenOperand(const ProductInput& in, int first, int count, int lane) {
    const int t = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      x[n] =
          in.x + row(in, first, count, 8 * n + lane / 4) * in.stride + t * (F == MatrixFormat::kFP8 ? 16 : 8);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        scales[n][i] = in.scales == nullptr
                           ? nullptr
                           : in.scales + row(in, first, count, 8 * n + 2 * t + i) * (in.stride / 128);
    }
  }
  static __device__ __forceinline__ std::int64_t row(const ProductInput& in, int first, int count, int i) {
    const int at = first + (i < count ? i : 0);
    return in.rows == nullptr ? at : in.rows[at];
  }
  __device__ __forceinline__ uint4 load(int n, int kt, int column) const {
    return *reinterpret_cast<const uint4*>(x[n] + kt * 128 + column);
  }
};

// acc += the tile times the tokens.
template <MatrixFormat F, class Op, int NT>
__device__ __forceinline__ void multiply_tile(const TileFragments<F>& w, const TokenOperand<F, NT>& in,
                                              int kt, int lane, float (&acc)[NT][4]) {
  constexpr bool kF16 = std::is_same_v<Op, OperandF16>;
  float part[NT][4] = {};
  if constexpr (F == MatrixFormat::kBF16) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const uint4 b = in.load(n, kt, 32 * j), lo = w.codes[2 * j], hi = w.codes[2 * j + 1];
        Op::mma(part[n], lo.x, hi.x, lo.y, hi.y, b.x, b.y);
        Op::mma(part[n], lo.z, hi.z, lo.w, hi.w, b.z, b.w);
      }
  } else if constexpr (F == MatrixFormat::kFP8) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[2][4];
        const uint4 lo = w.codes[2 * i], hi = w.codes[2 * i + 1];
        const std::uint32_t l[2] = {half == 0 ? lo.x : lo.z, half == 0 ? lo.y : lo.w};
        const std::uint32_t h[2] = {half == 0 ? hi.x : hi.z, half == 0 ? hi.y : hi.w};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if constexpr (kF16) {
            a[j][0] = e4m3x2_to_f16x2(l[j] & 0xffffu);
            a[j][1] = e4m3x2_to_f16x2(h[j] & 0xffffu);
            a[j][2] = e4m3x2_to_f16x2(l[j] >> 16);
            a[j][3] = e4m3x2_to_f16x2(h[j] >> 16);
          } else {
            a[j][0] = expand_fp8_bf16(l[j], 0);
            a[j][1] = expand_fp8_bf16(h[j], 0);
            a[j][2] = expand_fp8_bf16(l[j], 1);
            a[j][3] = expand_fp8_bf16(h[j], 1);
          }
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const uint4 b = in.load(n, kt, 64 * i + 8 * half);
          Op::mma(part[n], a[0][0], a[0][1], a[0][2], a[0][3], b.x, b.y);
          Op::mma(part[n], a[1][0], a[1][1], a[1][2], a[1][3], b.z, b.w);
        }
      }
    const float scale = __uint_as_float(w.scales[0]);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) part[n][i] *= scale;
  } else {
    const int t = lane % 4;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint4 b[NT];
#pragma unroll
      for (int n = 0; n < NT; ++n) b[n] = in.load(n, kt, 32 * q);
      const uint4 low = w.codes[0], high = w.codes[1];
      const std::uint32_t lo = q == 0 ? low.x : q == 1 ? low.y : q == 2 ? low.z : low.w;
      const std::uint32_t hi = q == 0 ? high.x : q == 1 ? high.y : q == 2 ? high.z : high.w;
      std::uint32_t l[4], h[4];
      if constexpr (kF16) {
        expand_fp4_f16(lo, l);
        expand_fp4_f16(hi, h);
      } else {
        expand_fp4_bf16(lo, l);
        expand_fp4_bf16(hi, h);
        if constexpr (F == MatrixFormat::kFP4) {
#pragma unroll
          for (int p = 0; p < 4; ++p) {
            l[p] = mul_bf16x2(l[p], 0x7e807e80u);
            h[p] = mul_bf16x2(h[p], 0x7e807e80u);
          }
        }
      }
      float s_lo = 1.0f, s_hi = 1.0f;
      if constexpr (F == MatrixFormat::kFP4) {
        s_lo = scale_of_byte(w.scales[0], q);
        s_hi = scale_of_byte(w.scales[1], q);
      } else {
        // Columns 32q + 8t: t < 2 lies in the first 16 of the two groups of 32q. Scales enter the operand,
        // exactly: code * e4m3 has at most 6 significant bits.
        const int byte = (2 * q + t / 2) & 3;
        const std::uint32_t c_lo = (w.scales[q / 2] >> (8 * byte)) & 0xffu;
        const std::uint32_t c_hi = (w.scales[2 + q / 2] >> (8 * byte)) & 0xffu;
        std::uint32_t f_lo, f_hi;
        if constexpr (kF16) {
          f_lo = mul_f16x2(e4m3x2_to_f16x2(c_lo | c_lo << 8), 0x58005800u);  // * 2^7
          f_hi = mul_f16x2(e4m3x2_to_f16x2(c_hi | c_hi << 8), 0x58005800u);
        } else {
          // expand gives e4m3 in BF16; times 2^117 so that the value's own 2^-126 leaves code * scale *
          // 2^-9.
          f_lo = mul_bf16x2(expand_fp8_bf16(c_lo | c_lo << 8, 0), 0x7a007a00u);
          f_hi = mul_bf16x2(expand_fp8_bf16(c_hi | c_hi << 8, 0), 0x7a007a00u);
        }
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          l[p] = kF16 ? mul_f16x2(l[p], f_lo) : mul_bf16x2(l[p], f_lo);
          h[p] = kF16 ? mul_f16x2(h[p], f_hi) : mul_bf16x2(h[p], f_hi);
        }
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float group[4] = {};
        Op::mma(group, l[0], h[0], l[1], h[1], b[n].x, b[n].y);
        Op::mma(group, l[2], h[2], l[3], h[3], b[n].z, b[n].w);
        // The scales are powers of two (or 1), so the product is exact and fusing it changes nothing.
        part[n][0] = __fmaf_rn(group[0], s_lo, part[n][0]);
        part[n][1] = __fmaf_rn(group[1], s_lo, part[n][1]);
        part[n][2] = __fmaf_rn(group[2], s_hi, part[n][2]);
        part[n][3] = __fmaf_rn(group[3], s_hi, part[n][3]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    float s0 = 1.0f, s1 = 1.0f;
    if constexpr (kF16) {  // powers of two too
      s0 = __ldg(in.scales[n][0] + kt);
      s1 = __ldg(in.scales[n][1] + kt);
    }
    acc[n][0] = __fmaf_rn(part[n][0], s0, acc[n][0]);
    acc[n][1] = __fmaf_rn(part[n][1], s1, acc[n][1]);
    acc[n][2] = __fmaf_rn(part[n][2], s0, acc[n][2]);
    acc[n][3] = __fmaf_rn(part[n][3], s1, acc[n][3]);
  }
}

// The first tile of a warp's share of a stripe, asked for before the activations exist.
template <MatrixFormat F>
struct StripeStart {
  StripePlace<F> at;
  TileFragments<F> tile;

  __device__ __forceinline__ void load(const TiledMatrix& m, std::int64_t row_tile, int warp, int lane) {
    at = StripePlace<F>(m, row_tile * m.tiles_k + warp, lane);
    if (warp < m.tiles_k) tile.load(at);
  }
};

// The warp's share of a whole 16-row stripe of `tiles_k` tiles, from the tile in `start` on. Sums get the
// expansion's power of two (expansion_factor) at the end.
// AHEAD: a second tile in flight, for kernels with few warps and registers to spare.
template <MatrixFormat F, class Op, int NT, bool AHEAD>
__device__ __forceinline__ void multiply_stripe(StripeStart<F>& start, int tiles_k, const ProductInput& in,
                                                int first, int count, int warp, int warps, int lane,
                                                float (&acc)[NT][4]) {
  const TokenOperand<F, NT> operand(in, first, count, lane);
#pragma unroll 1
  for (int kt = warp; kt < tiles_k; kt += warps) {
    if constexpr (AHEAD) {
      TileFragments<F> next = start.tile;
      start.at.advance(warps);
      if (kt + warps < tiles_k) next.load(start.at);
      multiply_tile<F, Op, NT>(start.tile, operand, kt, lane, acc);
      start.tile = next;
    } else {
      multiply_tile<F, Op, NT>(start.tile, operand, kt, lane, acc);
      start.at.advance(warps);
      if (kt + warps < tiles_k) start.tile.load(start.at);
    }
  }
  constexpr float kFactor = expansion_factor<F, Op>();
  if constexpr (kFactor != 1.0f) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= kFactor;
  }
}

// The whole stripe; `before_input` runs once, after the first weights were asked for and before the first
// activation is read: the place to wait for the previous kernel.
template <MatrixFormat F, class Op, int NT, class BeforeInput>
__device__ __forceinline__ void multiply_stripe(const TiledMatrix& m, std::int64_t row_tile,
                                                const ProductInput& in, int first, int count, int warp,
                                                int warps, int lane, float (&acc)[NT][4],
                                                const BeforeInput& before_input) {
  StripeStart<F> start;
  start.load(m, row_tile, warp, lane);
  before_input();
  constexpr bool kAhead = F != MatrixFormat::kBF16;  // 32 registers a tile leave no room for a second one
  multiply_stripe<F, Op, NT, kAhead>(start, m.tiles_k, in, first, count, warp, warps, lane, acc);
}

// Runtime dispatch over the weight format and the operand kind; one branch per CTA.
template <int NT, class BeforeInput>
__device__ __forceinline__ void multiply_stripe_any(MatrixFormat format, const TiledMatrix& m,
                                                    std::int64_t row_tile, const ProductInput& in, int first,
                                                    int count, int warp, int warps, int lane,
                                                    float (&acc)[NT][4], const BeforeInput& before_input) {
  const bool codes = in.scales != nullptr;
#define PIVOT_STRIPE(F, OP) \
  multiply_stripe<F, OP, NT>(m, row_tile, in, first, count, warp, warps, lane, acc, before_input)
  switch (format) {
    case MatrixFormat::kBF16:
      PIVOT_STRIPE(MatrixFormat::kBF16, OperandBf16);
      break;
    case MatrixFormat::kFP8:
      if (codes)
        PIVOT_STRIPE(MatrixFormat::kFP8, OperandF16);
      else
        PIVOT_STRIPE(MatrixFormat::kFP8, OperandBf16);
      break;
    case MatrixFormat::kFP4:
      if (codes)
        PIVOT_STRIPE(MatrixFormat::kFP4, OperandF16);
      else
        PIVOT_STRIPE(MatrixFormat::kFP4, OperandBf16);
      break;
    case MatrixFormat::kNVFP4:
      if (codes)
        PIVOT_STRIPE(MatrixFormat::kNVFP4, OperandF16);
      else
        PIVOT_STRIPE(MatrixFormat::kNVFP4, OperandBf16);
      break;
    case MatrixFormat::kF32:
      break;
  }
#undef PIVOT_STRIPE
}

// Sums the warps' accumulators of a token tile of some stripes in warp order. Each warp stores its share of
// each stripe, a barrier follows, and thread i < 128 sums row i / 8, token i % 8. `scratch`, a multiple of 8,
// holds warps * 128 floats a stripe; it may be overwritten after another barrier.
__device__ __forceinline__ void store_part(const float (&acc)[4], int stripe, int warp, int warps, int lane,
                                           float* scratch) {
  float* mine = scratch + (stripe * warps + warp) * 128 + lane / 4 * 8 + 2 * (lane % 4);
  *reinterpret_cast<float2*>(mine) = float2{acc[0], acc[1]};
  *reinterpret_cast<float2*>(mine + 64) = float2{acc[2], acc[3]};
}
__device__ __forceinline__ float sum_parts(int stripe, int warps, const float* scratch) {
  float sum = 0.0f;
  if (threadIdx.x < 128)
    for (int w = 0; w < warps; ++w) sum += scratch[(stripe * warps + w) * 128 + threadIdx.x];
  return sum;
}

}  // namespace pivot::cuda
