// The left operand of a product: codes of a warp's sixteen rows, from global memory into registers, decoded
// to exact BF16 there. The tiled layout (placement/tile_format.h) puts a lane's codes where wgmma wants its
// operand, so weights never pass through shared memory, and a decoded fragment serves every token of the
// tile.
#pragma once

#include "ops/cuda/linear/tile_product.cuh"

namespace pivot::cuda {

__device__ __forceinline__ std::uint32_t power_of_two_pair(std::uint32_t e8m0) {  // as BF16 pair
  return (e8m0 == 0 ? 0x40u : e8m0 << 7) * 0x00010001u;
}

// Where a lane's codes are: rows l/4 ("low") and l/4 + 8 ("high") of a stripe of sixteen. TWO: low is a row
// of one matrix and high the same row of another, so that one thread ends up with g and u of an expert.
template <bool TWO>
struct LaneStripe {
  static constexpr int kMatrices = TWO ? 2 : 1;
  const std::uint8_t* codes[kMatrices];
  const std::uint8_t* scales[kMatrices];
};

template <MatrixFormat F>
__device__ __forceinline__ LaneStripe<false> lane_stripe(const TiledMatrix& m, std::int64_t row_tile,
                                                         int lane) {
  const std::int64_t tile = row_tile * m.tiles_k;
  constexpr int kRowScales = static_cast<int>(tile_scale_bytes(F)) / 16;
  return {{m.codes + tile * tile_code_bytes(F) + lane * 16},
          {m.scales + tile * tile_scale_bytes(F) + lane / 4 * kRowScales}};
}
// Rows half * 8 .. + 7 of tile `row_tile` of both.
template <MatrixFormat F>
__device__ __forceinline__ LaneStripe<true> lane_stripe(const TiledMatrix& low, const TiledMatrix& high,
                                                        std::int64_t row_tile, int half, int lane) {
  const std::int64_t tile = row_tile * low.tiles_k;
  constexpr int kRowScales = static_cast<int>(tile_scale_bytes(F)) / 16;
  const std::int64_t code = tile * tile_code_bytes(F) + half * 512 + lane * 16;
  const std::int64_t scale = tile * tile_scale_bytes(F) + (half * 8 + lane / 4) * kRowScales;
  return {{low.codes + code, high.codes + code}, {low.scales + scale, high.scales + scale}};
}

// A lane's codes of one tile of 128 columns come in pieces of 16 bytes a row: 32 columns (BF16), 64 (FP8),
// 128 (FP4).
template <MatrixFormat F, bool TWO>
struct LaneCodes {
  static constexpr int kPieces = F == MatrixFormat::kBF16 ? 4 : F == MatrixFormat::kFP8 ? 2 : 1;
  static constexpr int kScaleWords = F == MatrixFormat::kNVFP4 ? 2 : 1;

  uint4 low[kPieces], high[kPieces];
  std::uint32_t low_scales[kScaleWords], high_scales[kScaleWords];

  // Volatile: stays where it was put, a tile before its use.
  static __device__ __forceinline__ uint4 load16(const std::uint8_t* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
  }
  __device__ __forceinline__ void load_piece(const LaneStripe<TWO>& at, int piece) {
    low[piece] = load16(at.codes[0] + piece * 1024);
    if constexpr (TWO)
      high[piece] = load16(at.codes[1] + piece * 1024);
    else
      high[piece] = load16(at.codes[0] + piece * 1024 + 512);
  }
  static __device__ __forceinline__ void load_words(const std::uint8_t* p,
                                                    std::uint32_t (&words)[kScaleWords]) {
    if constexpr (kScaleWords == 2)
      asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(p));
    else
      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(words[0]) : "l"(p));
  }
  __device__ __forceinline__ void load_scales(const LaneStripe<TWO>& at) {
    if constexpr (F != MatrixFormat::kBF16) {
      load_words(at.scales[0], low_scales);
      if constexpr (TWO)
        load_words(at.scales[1], high_scales);
      else if constexpr (F != MatrixFormat::kFP8)
        load_words(at.scales[0] + tile_scale_bytes(F) / 2, high_scales);
    }
  }

  // The left operand of steps 2q and 2q + 1 (16 columns each) of the tile.
  __device__ __forceinline__ void decode(int q, int lane, std::uint32_t (&a)[8]) const {
    if constexpr (F == MatrixFormat::kBF16) {
      a[0] = low[q].x, a[1] = high[q].x, a[2] = low[q].y, a[3] = high[q].y;
      a[4] = low[q].z, a[5] = high[q].z, a[6] = low[q].w, a[7] = high[q].w;
    } else if constexpr (F == MatrixFormat::kFP8) {
      const uint4 lo = low[q / 2], hi = high[q / 2];
      const std::uint32_t l[2] = {q % 2 == 0 ? lo.x : lo.z, q % 2 == 0 ? lo.y : lo.w};
      const std::uint32_t h[2] = {q % 2 == 0 ? hi.x : hi.z, q % 2 == 0 ? hi.y : hi.w};
      const std::uint32_t s_lo = power_of_two_pair(low_scales[0] >> 23);
      const std::uint32_t s_hi = TWO ? power_of_two_pair(high_scales[0] >> 23) : s_lo;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        a[4 * j] = mul_bf16x2(expand_fp8_bf16(l[j], 0), s_lo);
        a[4 * j + 1] = mul_bf16x2(expand_fp8_bf16(h[j], 0), s_hi);
        a[4 * j + 2] = mul_bf16x2(expand_fp8_bf16(l[j], 1), s_lo);
        a[4 * j + 3] = mul_bf16x2(expand_fp8_bf16(h[j], 1), s_hi);
      }
    } else {
      const std::uint32_t lo = q == 0 ? low[0].x : q == 1 ? low[0].y : q == 2 ? low[0].z : low[0].w;
      const std::uint32_t hi = q == 0 ? high[0].x : q == 1 ? high[0].y : q == 2 ? high[0].z : high[0].w;
      std::uint32_t l[4], h[4];
      expand_fp4_bf16(lo, l);
      expand_fp4_bf16(hi, h);
      std::uint32_t s_lo, s_hi;
      if constexpr (F == MatrixFormat::kFP4) {
        s_lo = power_of_two_pair((low_scales[0] >> (8 * q)) & 0xffu);
        s_hi = power_of_two_pair((high_scales[0] >> (8 * q)) & 0xffu);
      } else {
        const int byte = (2 * q + lane % 4 / 2) & 3;
        const std::uint32_t c_lo = (low_scales[q / 2] >> (8 * byte)) & 0xffu;
        const std::uint32_t c_hi = (high_scales[q / 2] >> (8 * byte)) & 0xffu;
        s_lo = expand_fp8_bf16(c_lo | c_lo << 8, 0);
        s_hi = expand_fp8_bf16(c_hi | c_hi << 8, 0);
      }
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        a[2 * p] = mul_bf16x2(mul_bf16x2(l[p], 0x7e807e80u), s_lo);
        a[2 * p + 1] = mul_bf16x2(mul_bf16x2(h[p], 0x7e807e80u), s_hi);
      }
    }
  }
};

// The codes that a lane multiplies and those on their way: `Items` names a warp's stripes one after the other
// (Items::next(LaneStripe&) is false after the last one, of `tiles_k` tiles each), and their tiles are one
// stream, so that the first tile of an item comes while the last one of the item before is multiplied.
//
// One tile is on its way while another is multiplied; BF16 has no registers for two and loads the next tile
// piece by piece into those of the steps that are done.
template <MatrixFormat F, bool TWO, class Items>
class WeightStream {
 public:
  __device__ __forceinline__ WeightStream(Items items, int tiles_k)
      : items_(items), tiles_k_(tiles_k), left_(tiles_k) {
    if (!items_.next(at_)) return;  // and then nobody multiplies
    load_all(codes_);
    advance();
    if constexpr (kTwoTiles) {
      load_all(ahead_);
      advance();
    }
  }
  // Columns 32q .. + 31 of the current tile, in order q = 0..3; then advance_tile().
  __device__ __forceinline__ void decode(int q, int lane, std::uint32_t (&a)[8]) {
    codes_.decode(q, lane, a);
    if constexpr (!kTwoTiles) codes_.load_piece(at_, q);
  }
  __device__ __forceinline__ void advance_tile() {
    if constexpr (kTwoTiles) {
      codes_ = ahead_;
      load_all(ahead_);
    }
    advance();
  }

 private:
  using Codes = LaneCodes<F, TWO>;
  static constexpr bool kTwoTiles = F != MatrixFormat::kBF16;

  __device__ __forceinline__ void load_all(Codes& codes) {
#pragma unroll
    for (int p = 0; p < Codes::kPieces; ++p) codes.load_piece(at_, p);
    codes.load_scales(at_);
  }
  __device__ __forceinline__ void advance() {
    if (--left_ > 0) {
#pragma unroll
      for (int i = 0; i < LaneStripe<TWO>::kMatrices; ++i) {
        at_.codes[i] += tile_code_bytes(F);
        at_.scales[i] += tile_scale_bytes(F);
      }
      return;
    }
    left_ =
        items_.next(at_) ? tiles_k_ : 1;  // after the last item its last tile again, which nobody multiplies
  }

  Items items_;
  int tiles_k_, left_;
  LaneStripe<TWO> at_;
  Codes codes_, ahead_;
};

}  // namespace pivot::cuda
