// One CTA's block-scaled product: two stripes of 16 rows a warp, 8 to 128 tokens, every operand through a
// ring of shared-memory stages that cp.async fills.
//
// What it computes against the oracle's rounding points (specification 3.3). The oracle sums the products of
// 32 (128) columns in fp32, multiplies by the two scales and adds to an fp32 accumulator. Here the
// instruction scales the products before it adds them. Both scales of kFp8 and kFp4 are powers of two, so
// scaling commutes with rounding and the two differ only in the order of a sum, unless fp32 overflows or
// underflows, for which products would have to leave 2^-126..2^127. E4M3 x E4M3 has 8 significant bits and
// E2M1 x E4M3 has 6: every product is exact. The UE4M3 scales of kNvfp4 multiply exactly too (4 x 4 bits,
// times 4 bits of code x code), and the fp32 scales of that format multiply the finished sum, as everywhere
// in this back-end. How wide the instruction's own adder is, is not documented; so no more than 128 columns
// are summed inside tensor cores, from zero, and the blocks are added in fp32 here, in ascending order.
#pragma once

#include "ops/cuda/block_scaled/fragments.h"
#include "ops/cuda/block_scaled/mma.cuh"
#include "ops/cuda/device/ptx.cuh"

namespace pivot::cuda {

// The weights of a CTA: the stripe of row warp w is row tile first_tile + w, but at most last_tile: rows that
// the matrix does not have repeat its last ones and are not stored.
struct BlockStripes {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  int first_tile;
};
struct BlockRows {
  BlockStripes first, second;  // not an array: which one a thread copies is known only at run time
  int last_tile, tiles_k;
};
// Its tokens: token i is row rows[first + i] (null: first + i) of the activations; those beyond `count`
// repeat the last.
struct BlockColumns {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int64_t row_bytes, row_scale_bytes;
  const std::int32_t* rows;
  int first, count;
};

template <BlockKind K, BlockSize S>
struct BlockProduct {
  // Numbers, not objects: device code may read a constant of the host but not take its address.
  static constexpr int kThreads = block_tile(K, S).threads();
  static constexpr int kRowWarps = block_tile(K, S).row_warps;
  static constexpr int kRowTiles = block_tile(K, S).row_tiles();
  static constexpr int kTokens = block_tile(K, S).tokens();
  static constexpr int kTokenTiles = block_tile(K, S).token_tiles;
  static constexpr int kStages = block_tile(K, S).stages;
  static constexpr int kStageBytes = block_stage(K, block_tile(K, S)).bytes;
  static constexpr int kTokensAt = block_stage(K, block_tile(K, S)).tokens_at;
  static constexpr int kWeightScalesAt = block_stage(K, block_tile(K, S)).weight_scales_at;
  static constexpr int kTokenScalesAt = block_stage(K, block_tile(K, S)).token_scales_at;
  static constexpr int kCodeBytes = static_cast<int>(tile_code_bytes(weight_format(K)));
  static constexpr int kScaleBytes = static_cast<int>(tile_scale_bytes(weight_format(K)));
  static constexpr int kTokenCopies = (token_copies<K, S>() + kThreads - 1) / kThreads;  // of a thread
  static_assert(kStages >= 2 && kStages * kStageBytes <= kBlockSharedBytes);
  static_assert(kTokens <= kThreads);

  using Sums = float[2][kTokenTiles][4];

  const BlockRows& rows;
  std::uint32_t shared;  // of the first stage
  const std::uint8_t* token_codes[kTokenCopies];
  const std::uint8_t* token_scales;

  __device__ __forceinline__ BlockProduct(const BlockRows& weights, const std::uint8_t* stages)
      : rows(weights), shared(shared_address(stages)) {}

  // The bytes of tile kt of a row tile of the CTA: its codes, or its scales.
  __device__ __forceinline__ const std::uint8_t* weight_bytes(int row, int kt, bool scales) const {
    const bool second = row >= kRowWarps;
    const int first_tile = second ? rows.second.first_tile : rows.first.first_tile;
    const std::int64_t tile =
        static_cast<std::int64_t>(min(first_tile + row % kRowWarps, rows.last_tile)) * rows.tiles_k + kt;
    if (scales) return (second ? rows.second.scales : rows.first.scales) + tile * kScaleBytes;
    return (second ? rows.second.codes : rows.first.codes) + tile * kCodeBytes;
  }
  __device__ __forceinline__ void fetch_weights(int kt, std::uint32_t stage) const {
    constexpr int kCopies = weight_copies<K, S>(), kScaleCopies = weight_scale_copies<K, S>();
#pragma unroll
    for (int n = 0; n < (kCopies + kThreads - 1) / kThreads; ++n) {
      const int i = n * kThreads + static_cast<int>(threadIdx.x);
      const BlockCopy copy = weight_copy<K, S>(i);
      if (kCopies % kThreads == 0 || i < kCopies)
        copy_async16(stage + copy.at, weight_bytes(copy.row, kt, false) + copy.offset);
    }
#pragma unroll
    for (int n = 0; n < (kScaleCopies + kThreads - 1) / kThreads; ++n) {
      const int i = n * kThreads + static_cast<int>(threadIdx.x);
      const BlockCopy copy = weight_scale_copy<K, S>(i);
      if (kScaleCopies % kThreads == 0 || i < kScaleCopies)
        copy_async_small<weight_scale_copy_bytes(K)>(stage + copy.at,
                                                     weight_bytes(copy.row, kt, true) + copy.offset);
    }
  }
  __device__ __forceinline__ void find_tokens(const BlockColumns& in) {
    const auto row = [&](int token) -> std::int64_t {
      const int place = in.first + min(token, in.count - 1);
      return in.rows == nullptr ? place : in.rows[place];
    };
#pragma unroll
    for (int n = 0; n < kTokenCopies; ++n) {
      const BlockCopy copy = token_copy<K, S>(n * kThreads + static_cast<int>(threadIdx.x));
      token_codes[n] = in.codes + row(copy.row) * in.row_bytes + copy.offset;
    }
    token_scales = in.scales + row(static_cast<int>(threadIdx.x)) * in.row_scale_bytes;
  }
  __device__ __forceinline__ void fetch_tokens(int kt, std::uint32_t stage) const {
    constexpr int kCopies = token_copies<K, S>();
#pragma unroll
    for (int n = 0; n < kTokenCopies; ++n) {
      const int i = n * kThreads + static_cast<int>(threadIdx.x);
      if (kCopies % kThreads == 0 || i < kCopies)
        copy_async16(stage + token_copy<K, S>(i).at, token_codes[n] + kt * token_code_bytes(K));
    }
    if (static_cast<int>(threadIdx.x) < kTokens)
      copy_async_small<token_scale_bytes(K)>(stage + token_scale_copy<K, S>(static_cast<int>(threadIdx.x)).at,
                                             token_scales + token_scale_offset(K, kt));
  }

  // The steps of one tile for both stripes and eight tokens.
  template <int STEP>
  static __device__ __forceinline__ void multiply_steps(const BlockWeights<K> (&weights)[2],
                                                        const std::uint32_t (&a)[2][block_steps(K)][4],
                                                        const BlockTokens<K>& tokens, float (&part)[2][4]) {
    std::uint32_t b[2];
    tokens.operand(STEP, b);
#pragma unroll
    for (int m = 0; m < 2; ++m)
      block_scaled_mma<K, STEP>(part[m], a[m][STEP], b, weights[m].scale(STEP), tokens.scale(STEP));
    if constexpr (STEP + 1 < block_steps(K)) multiply_steps<STEP + 1>(weights, a, tokens, part);
  }
  static __device__ __forceinline__ void multiply_stage(const std::uint8_t* stage, int kt, Sums& acc) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    BlockWeights<K> weights[2];
    std::uint32_t a[2][block_steps(K)][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int row = warp_row_tile<S>(warp, m);
      weights[m].load(stage + row * kCodeBytes, stage + kWeightScalesAt + row * kScaleBytes, lane);
#pragma unroll
      for (int step = 0; step < block_steps(K); ++step) weights[m].operand(step, a[m][step]);
    }
    const int first = warp_first_token<S>(warp);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      BlockTokens<K> tokens;
      tokens.load(stage + kTokensAt, stage + kTokenScalesAt, first + 8 * n, lane, kt);
      float part[2][4] = {};
      multiply_steps<0>(weights, a, tokens, part);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][n][i] += part[m][i];
    }
  }

  // acc[m][n][i]: row accumulator_row of stripe m, token accumulator_token of the warp's. WEIGHTS_FIRST:
  // weights are asked for before the wait for the previous kernel, which then happens here.
  template <bool WEIGHTS_FIRST>
  __device__ __forceinline__ void run(const BlockColumns& in, const std::uint8_t* stages, Sums& acc) {
    constexpr int kAhead = kStages - 1;
#pragma unroll
    for (int s = 0; s < kAhead; ++s)
      if (s < rows.tiles_k) fetch_weights(s, shared + s * kStageBytes);
    if constexpr (WEIGHTS_FIRST) {
      wait_for_predecessor();
      release_successor();
    }
    find_tokens(in);
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (s < rows.tiles_k) fetch_tokens(s, shared + s * kStageBytes);
      copy_async_commit();
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;
    int reading = 0, filling = kAhead;
#pragma unroll 1
    for (int kt = 0; kt < rows.tiles_k; ++kt) {
      copy_async_wait<kAhead - 1>();
      __syncthreads();  // this stage is there, and everybody is done with the one that is filled next
      if (kt + kAhead < rows.tiles_k) {
        fetch_weights(kt + kAhead, shared + filling * kStageBytes);
        fetch_tokens(kt + kAhead, shared + filling * kStageBytes);
      }
      copy_async_commit();
      multiply_stage(stages + reading * kStageBytes, kt, acc);
      reading = reading + 1 == kStages ? 0 : reading + 1;
      filling = filling + 1 == kStages ? 0 : filling + 1;
    }
    copy_async_wait<0>();
  }
};

}  // namespace pivot::cuda
