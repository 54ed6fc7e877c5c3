// Tiles of the products with many tokens (gemm/): how tokens are cut, where an activation stands in its
// operand, and in which order CTAs take their tiles. Pure functions, used on both sides and tested without a
// GPU.
#pragma once

#include <cstdint>

#include "ops/cuda/placement/tile_format.h"

namespace pivot::cuda {

inline constexpr int kGemmRows = 128;    // of a CTA: eight stripes of 16
inline constexpr int kGemmTokens = 256;  // at most, of a CTA
inline constexpr int kGemmPanel = 64;    // columns of a stage: 128 bytes a token
inline constexpr int kGemmMaxStages = 12;
inline constexpr int kGemmRingBytes = 192 * 1024;

constexpr int round_up(int count, int step) { return (count + step - 1) / step * step; }

// ---- the operand ----
//
// BF16 [panel of 64 columns][row][64], rows padded to a multiple of eight. A row of a panel is 128 bytes in
// eight pieces of 16, piece i at i ^ (row % 8), as wgmma reads it from shared memory; so any range of rows
// that starts at a multiple of eight is, for one panel, contiguous and ready to multiply.

// Position p of a panel holds this column of it: the order in which a warp's lanes meet the columns of a tile
// (placement/tile_format.h). Step s of 16 positions is one instruction; lane t of four owns positions 2t, 2t
// + 1, 2t + 8 and 2t + 9 of a step, and 16 (FP8) or 8 consecutive columns of 64 or 32.
constexpr int operand_column(MatrixFormat format, int position) {
  const int step = position / 16, in = position % 16, half = in / 8, t = in % 8 / 2, e = in % 2;
  if (format == MatrixFormat::kFP8) return 16 * t + 4 * step + 2 * half + e;
  return 32 * (step / 2) + 8 * t + 4 * (step % 2) + 2 * half + e;
}
// Index of an element; `rows`: of a panel.
constexpr std::int64_t operand_offset(std::int64_t panel, std::int64_t rows, std::int64_t row, int position) {
  return (panel * rows + row) * kGemmPanel + ((position / 8) ^ static_cast<int>(row % 8)) * 8 + position % 8;
}
constexpr std::int64_t operand_rows(std::int64_t rows) { return (rows + 7) / 8 * 8; }
// Rows of the operand of routed experts: the rows of every expert start at a multiple of eight.
constexpr std::int64_t expert_operand_rows(std::int64_t pairs, std::int64_t slots) {
  return operand_rows(pairs) + 8 * slots;
}

// ---- token tiles ----

// `count` tokens as `tiles` tiles of `tokens` each, but the last one, which has what is left (at least one).
struct TokenTiles {
  int tiles = 0, tokens = 0;
};
// REQUIRES: `most` is a multiple of `step`, and `step` of 8.
constexpr TokenTiles cut_tokens(int count, int most, int step) {
  if (count == 0) return {};
  const int tiles = (count + most - 1) / most;
  return {tiles, round_up((count + tiles - 1) / tiles, step)};
}
// Most token tiles of routed experts: those of cut_tokens with tiles of at least 64.
constexpr std::int64_t most_expert_tiles(std::int64_t pairs, std::int64_t slots) {
  return pairs / 64 + slots;
}
// Sizes that the kernels are compiled for are multiples of this: finer where experts cut tokens unevenly.
constexpr int token_step(MatrixFormat format, bool experts) {
  return experts && (format == MatrixFormat::kFP4 || format == MatrixFormat::kNVFP4) ? 32 : 64;
}

// The most tokens of a tile of a dense product of `row_units` units (of `clusters` that run at once) with
// `tokens` tokens: what makes the busiest cluster finish first.
int dense_tile_tokens(std::int64_t tokens, std::int64_t row_units, int clusters);
// The same for routed experts, of which there are many: by their average alone.
int expert_tile_tokens(std::int64_t pairs, std::int64_t experts);
// Stages of the ring for tiles of `tokens`.
constexpr int gemm_stages(int tokens) {
  const int stages = kGemmRingBytes / (tokens * 2 * kGemmPanel);
  return stages < kGemmMaxStages ? stages : kGemmMaxStages;
}

// ---- order ----

// Item `index` of row_units x tiles. Clusters take consecutive items at the same time, so a band of `band`
// row units goes through all token tiles before the next band starts: a wave then reads about as many weights
// as activations.
struct GemmItem {
  int unit, tile;
};
constexpr GemmItem gemm_item(int index, int row_units, int tiles, int band) {
  const int first = index / (band * tiles) * band;
  const int left = row_units - first, rows = left < band ? left : band;
  const int in = index - first * tiles;
  return {first + in % rows, in / rows};
}

// A token tile of routed experts, as the device's table lists it.
struct ExpertTile {
  std::int32_t slot;   // of the work list
  std::int32_t row;    // first row of the operand
  std::int32_t place;  // first place of the work list
  std::int32_t count;  // tokens
};

}  // namespace pivot::cuda
