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

// FP4 word -> four column pairs. F16: value * 2^-14. BF16: value * 2^-126.
__device__ __forceinline__ void expand_fp4_f16(std::uint32_t w, std::uint32_t (&r)[4]) {
  r[0] = w & 0x8e008e00u;
#pragma unroll
  for (int p = 1; p < 4; ++p) r[p] = ((w << (3 * p)) & 0x0e000e00u) | ((w << p) & 0x80008000u);
}
__device__ __forceinline__ void expand_fp4_bf16(std::uint32_t w, std::uint32_t (&r)[4]) {
  r[0] = ((w >> 3) & 0x01c001c0u) | (w & 0x80008000u);
  r[1] = (w & 0x01c001c0u) | ((w << 1) & 0x80008000u);
  r[2] = ((w << 3) & 0x01c001c0u) | ((w << 2) & 0x80008000u);
  r[3] = ((w << 6) & 0x01c001c0u) | ((w << 3) & 0x80008000u);
}
// Two E4M3 codes (bits 0-15) -> BF16 pair, exact: exponent re-bias by 2^120, which normalises subnormals too.
__device__ __forceinline__ std::uint32_t expand_fp8_bf16(std::uint32_t codes, int pair) {
  const std::uint32_t high = __byte_perm(codes, 0, pair == 0 ? 0x1404 : 0x3424);
  return mul_bf16x2(((high >> 4) & 0x07f007f0u) | (high & 0x80008000u), 0x7b807b80u);
}
__device__ __forceinline__ float scale_of_byte(std::uint32_t word, int byte) {  // E8M0, byte != 0
  return __uint_as_float(((word >> (8 * byte)) & 0xffu) << 23);
}

// The factor that undoes the power of two an expansion leaves in the accumulator.
template <MatrixFormat F, class Op>
__device__ constexpr float expansion_factor() {
  constexpr bool f16 = std::is_same_v<Op, OperandF16>;
  if constexpr (F == MatrixFormat::kFP4) return f16 ? 0x1p14f : 1.0f;
  if constexpr (F == MatrixFormat::kNVFP4) return f16 ? 0x1p7f : 0x1p9f;
  return 1.0f;
}

template <MatrixFormat F>
struct TileFragments {
  static constexpr int kLoads = F == MatrixFormat::kBF16 ? 8 : F == MatrixFormat::kFP8 ? 4 : 2;
  uint4 codes[kLoads];
  std::uint32_t scales[F == MatrixFormat::kNVFP4 ? 4 : 2];

  __device__ __forceinline__ void load(const TiledMatrix& m, std::int64_t tile, int lane) {
    const std::uint8_t* p = m.codes + tile * tile_code_bytes(F) + lane * 16;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) codes[i] = load_stream(p + i * 512);
    const std::uint8_t* s = m.scales + tile * tile_scale_bytes(F);
    if constexpr (F == MatrixFormat::kFP8) scales[0] = __ldg(reinterpret_cast<const std::uint32_t*>(s));
    if constexpr (F == MatrixFormat::kFP4) {
      scales[0] = __ldg(reinterpret_cast<const std::uint32_t*>(s) + lane / 4);
      scales[1] = __ldg(reinterpret_cast<const std::uint32_t*>(s) + lane / 4 + 8);
    }
    if constexpr (F == MatrixFormat::kNVFP4) {
      const uint2 low = __ldg(reinterpret_cast<const uint2*>(s) + lane / 4);
      const uint2 high = __ldg(reinterpret_cast<const uint2*>(s) + lane / 4 + 8);
      scales[0] = low.x;
      scales[1] = low.y;
      scales[2] = high.x;
      scales[3] = high.y;
    }
  }
};

template <int NT>
struct TokenRows {             // which rows of the input a lane reads and whose scales it needs
  std::int32_t operand[NT];    // token 8n + l/4; -1: none
  std::int32_t column[NT][2];  // tokens 8n + 2(l%4) + {0, 1}; -1: none

  __device__ __forceinline__ void init(const ProductInput& in, int first, int count, int lane) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      operand[n] = row(in, first, count, 8 * n + lane / 4);
      column[n][0] = row(in, first, count, 8 * n + 2 * (lane % 4));
      column[n][1] = row(in, first, count, 8 * n + 2 * (lane % 4) + 1);
    }
  }
  static __device__ __forceinline__ std::int32_t row(const ProductInput& in, int first, int count, int i) {
    if (i >= count) return -1;
    return in.rows == nullptr ? first + i : in.rows[first + i];
  }
};

__device__ __forceinline__ uint4 load_operand(const ProductInput& in, std::int32_t row, int column) {
  if (row < 0) return uint4{0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(in.x + row * in.stride + column);
}

template <MatrixFormat F, class Op, int NT>
__device__ __forceinline__ void multiply_tile(const TileFragments<F>& w, const ProductInput& in,
                                              const TokenRows<NT>& rows, int kt, int lane,
                                              float (&acc)[NT][4]) {
  const int t = lane % 4;
  float part[NT][4] = {};
  if constexpr (F == MatrixFormat::kBF16) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 lo = w.codes[2 * j], hi = w.codes[2 * j + 1];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const uint4 b = load_operand(in, rows.operand[n], kt * 128 + 32 * j + 8 * t);
        Op::mma(part[n], lo.x, hi.x, lo.y, hi.y, b.x, b.y);
        Op::mma(part[n], lo.z, hi.z, lo.w, hi.w, b.z, b.w);
      }
    }
  } else if constexpr (F == MatrixFormat::kFP8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t lo[4] = {w.codes[2 * i].x, w.codes[2 * i].y, w.codes[2 * i].z, w.codes[2 * i].w};
      const std::uint32_t hi[4] = {w.codes[2 * i + 1].x, w.codes[2 * i + 1].y, w.codes[2 * i + 1].z,
                                   w.codes[2 * i + 1].w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::uint32_t l = lo[2 * half + j], h = hi[2 * half + j];
          if constexpr (std::is_same_v<Op, OperandF16>) {
            a[j][0] = e4m3x2_to_f16x2(l & 0xffffu);
            a[j][1] = e4m3x2_to_f16x2(h & 0xffffu);
            a[j][2] = e4m3x2_to_f16x2(l >> 16);
            a[j][3] = e4m3x2_to_f16x2(h >> 16);
          } else {
            a[j][0] = expand_fp8_bf16(l, 0);
            a[j][1] = expand_fp8_bf16(h, 0);
            a[j][2] = expand_fp8_bf16(l, 1);
            a[j][3] = expand_fp8_bf16(h, 1);
          }
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const uint4 b = load_operand(in, rows.operand[n], kt * 128 + 64 * i + 16 * t + 8 * half);
          Op::mma(part[n], a[0][0], a[0][1], a[0][2], a[0][3], b.x, b.y);
          Op::mma(part[n], a[1][0], a[1][1], a[1][2], a[1][3], b.z, b.w);
        }
      }
    }
    const float scale = __uint_as_float(w.scales[0]);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) part[n][i] *= scale;
  } else {
    const std::uint32_t lo[4] = {w.codes[0].x, w.codes[0].y, w.codes[0].z, w.codes[0].w};
    const std::uint32_t hi[4] = {w.codes[1].x, w.codes[1].y, w.codes[1].z, w.codes[1].w};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      std::uint32_t l[4], h[4];
      if constexpr (std::is_same_v<Op, OperandF16>) {
        expand_fp4_f16(lo[q], l);
        expand_fp4_f16(hi[q], h);
      } else {
        expand_fp4_bf16(lo[q], l);
        expand_fp4_bf16(hi[q], h);
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
        if constexpr (std::is_same_v<Op, OperandF16>) {
          const std::uint32_t f_lo = mul_f16x2(e4m3x2_to_f16x2(c_lo | c_lo << 8), 0x58005800u);  // * 2^7
          const std::uint32_t f_hi = mul_f16x2(e4m3x2_to_f16x2(c_hi | c_hi << 8), 0x58005800u);
#pragma unroll
          for (int p = 0; p < 4; ++p) {
            l[p] = mul_f16x2(l[p], f_lo);
            h[p] = mul_f16x2(h[p], f_hi);
          }
        } else {
          // expand gives e4m3 in BF16; times 2^117 so that the value's own 2^-126 leaves code * scale * 2^-9.
          const std::uint32_t f_lo = mul_bf16x2(expand_fp8_bf16(c_lo | c_lo << 8, 0), 0x7a007a00u);
          const std::uint32_t f_hi = mul_bf16x2(expand_fp8_bf16(c_hi | c_hi << 8, 0), 0x7a007a00u);
#pragma unroll
          for (int p = 0; p < 4; ++p) {
            l[p] = mul_bf16x2(l[p], f_lo);
            h[p] = mul_bf16x2(h[p], f_hi);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const uint4 b = load_operand(in, rows.operand[n], kt * 128 + 32 * q + 8 * t);
        float group[4] = {};
        Op::mma(group, l[0], h[0], l[1], h[1], b.x, b.y);
        Op::mma(group, l[2], h[2], l[3], h[3], b.z, b.w);
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
    float s0 = expansion_factor<F, Op>(), s1 = s0;
    if constexpr (std::is_same_v<Op, OperandF16>) {
      const std::int64_t stride = in.stride / 128;
      s0 *= rows.column[n][0] < 0 ? 0.0f : in.scales[rows.column[n][0] * stride + kt];
      s1 *= rows.column[n][1] < 0 ? 0.0f : in.scales[rows.column[n][1] * stride + kt];
    }
    acc[n][0] += part[n][0] * s0;
    acc[n][1] += part[n][1] * s1;
    acc[n][2] += part[n][2] * s0;
    acc[n][3] += part[n][3] * s1;
  }
}

// The warp's share of a whole 16-row stripe. `before_input` runs once, after the first weights were asked for
// and before the first activation is read: the place to wait for the previous kernel.
template <MatrixFormat F, class Op, int NT, class BeforeInput>
__device__ __forceinline__ void multiply_stripe(const TiledMatrix& m, std::int64_t row_tile,
                                                const ProductInput& in, int first, int count, int warp,
                                                int warps, int lane, float (&acc)[NT][4],
                                                const BeforeInput& before_input) {
  const std::int64_t base = row_tile * m.tiles_k;
  TileFragments<F> current;
  if (warp < m.tiles_k) current.load(m, base + warp, lane);
  before_input();
  TokenRows<NT> rows;
  rows.init(in, first, count, lane);
  for (int kt = warp; kt < m.tiles_k; kt += warps) {
    if constexpr (F == MatrixFormat::kBF16) {  // 32 registers of weights: no second set
      if (kt != warp) current.load(m, base + kt, lane);
      multiply_tile<F, Op, NT>(current, in, rows, kt, lane, acc);
    } else {
      TileFragments<F> next = current;
      if (kt + warps < m.tiles_k) next.load(m, base + kt + warps, lane);
      multiply_tile<F, Op, NT>(current, in, rows, kt, lane, acc);
      current = next;
    }
  }
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

// Sums the warps' accumulators of token tile n in warp order; thread i < 128 then holds row i / 8, token 8n +
// i % 8. `scratch` holds 16 * 128 floats; two barriers a call.
__device__ __forceinline__ float reduce_stripe(const float (&acc)[4], int warp, int warps, int lane,
                                               float* scratch) {
  float* mine = scratch + warp * 128;
  const int row = lane / 4, column = 2 * (lane % 4);
  __syncthreads();
  mine[row * 8 + column] = acc[0];
  mine[row * 8 + column + 1] = acc[1];
  mine[(row + 8) * 8 + column] = acc[2];
  mine[(row + 8) * 8 + column + 1] = acc[3];
  __syncthreads();
  float sum = 0.0f;
  if (threadIdx.x < 128)
    for (int w = 0; w < warps; ++w) sum += scratch[w * 128 + threadIdx.x];
  return sum;
}

}  // namespace pivot::cuda
