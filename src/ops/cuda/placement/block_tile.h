// Tiles of the block-scaled products (block_scaled/): what one CTA computes and how its shared memory is cut.
// Pure functions of format and size, tested without a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/cuda/placement/tile_format.h"

namespace pivot {
enum class ActQuant : std::uint8_t;  // ops/knobs.h, which kernels cannot include
}

namespace pivot::cuda {

// What meets in one instruction: weights x activations.
enum class BlockKind : std::uint8_t {
  kFp8,    // E4M3 with a power of two per 128 x 128; E4M3 with one per token and 128 columns
  kFp4,    // E2M1 with one per row and 32 columns; activations as above
  kNvfp4,  // E2M1 with an E4M3 scale per row (token) and 16 columns, both sides
};

// Tokens of a CTA: 8, 32 or 128.
enum class BlockSize : std::uint8_t { kSmall, kMedium, kWide };

// A warp takes two stripes of 16 rows (of w1 and of w3 for the first half of an expert) and 8 * token_tiles
// tokens.
struct BlockTile {
  int row_warps = 0, token_warps = 0, token_tiles = 0, stages = 0;

  static constexpr int kStripes = 2;
  constexpr int row_tiles() const { return kStripes * row_warps; }  // of 16 rows
  constexpr int rows() const { return 16 * row_tiles(); }
  constexpr int tokens() const { return 8 * token_tiles * token_warps; }
  constexpr int threads() const { return 32 * row_warps * token_warps; }
};

constexpr MatrixFormat weight_format(BlockKind kind) {
  return kind == BlockKind::kFp8   ? MatrixFormat::kFP8
         : kind == BlockKind::kFp4 ? MatrixFormat::kFP4
                                   : MatrixFormat::kNVFP4;
}
// Bytes of 128 columns of one token: codes, and what the shared memory keeps of its scales: the word that
// holds the tile's E8M0 byte, or the tile's eight E4M3 bytes.
constexpr int token_code_bytes(BlockKind kind) { return kind == BlockKind::kNvfp4 ? 64 : 128; }
constexpr int token_scale_bytes(BlockKind kind) { return kind == BlockKind::kNvfp4 ? 8 : 4; }

// One stage of a CTA's pipeline holds 128 columns: weight codes of its row tiles, codes of its tokens, then
// the scales of both. Every part starts at a multiple of 16 bytes.
struct BlockStage {
  int tokens_at = 0, weight_scales_at = 0, token_scales_at = 0, bytes = 0;
};
constexpr BlockStage block_stage(BlockKind kind, const BlockTile& tile) {
  const auto code = static_cast<int>(tile_code_bytes(weight_format(kind)));
  const auto scale = static_cast<int>(tile_scale_bytes(weight_format(kind)));
  const auto up16 = [](int bytes) { return (bytes + 15) / 16 * 16; };
  BlockStage stage;
  stage.tokens_at = tile.row_tiles() * code;
  stage.weight_scales_at = stage.tokens_at + tile.tokens() * token_code_bytes(kind);
  stage.token_scales_at = stage.weight_scales_at + up16(tile.row_tiles() * scale);
  stage.bytes = stage.token_scales_at + up16(tile.tokens() * token_scale_bytes(kind));
  return stage;
}

// sm_120: 100 KB of shared memory on a multiprocessor, 1 KB of it the system's for every CTA, at most 99 KB a
// CTA.
inline constexpr int kBlockSharedBytes = 99 * 1024;       // one CTA on a multiprocessor
inline constexpr int kBlockSharedBytesOfTwo = 49 * 1024;  // two
inline constexpr int kMaxBlockStages = 8;

// As many stages as fit: wide tiles have a multiprocessor to themselves, the others share it with another
// CTA, which hides the barriers between stages.
constexpr BlockTile block_tile(BlockKind kind, BlockSize size) {
  BlockTile tile = size == BlockSize::kSmall    ? BlockTile{2, 1, 1, 0}
                   : size == BlockSize::kMedium ? BlockTile{2, 1, 4, 0}
                                                : BlockTile{4, 2, 8, 0};
  const int room = size == BlockSize::kWide ? kBlockSharedBytes : kBlockSharedBytesOfTwo;
  const int fitting = room / block_stage(kind, tile).bytes;
  tile.stages = fitting < kMaxBlockStages ? fitting : kMaxBlockStages;
  return tile;
}
constexpr int block_shared_bytes(BlockKind kind, BlockSize size) {
  const BlockTile tile = block_tile(kind, size);
  return tile.stages * block_stage(kind, tile).bytes;
}

// Where a device of this compute capability has the instructions and this build the code: sm_120a.
bool has_block_scaled(int compute_major, int compute_minor);
// The kind of product of a matrix whose activations are rounded so, or nothing: FP8 under powers of two and
// native FP4 take FP8 activations, NVFP4 takes NVFP4 ones. (NVFP4 weights under FP8 activations would need
// E4M3 scales per 16 columns beside E8M0 ones, which no instruction has.)
std::optional<BlockKind> block_kind(const Matrix& weights, ActQuant activations);

// Every output is summed in the same order whatever the tile, so these choices change speed and no bit.
// A dense matrix: weights once per CTA row, so the tile that covers the step, up to 128 tokens.
BlockSize dense_block_size(std::int64_t tokens);
// Routed experts: by the tokens that an expert has on average when `pairs` fall on all of them, since
// half-empty tiles cost as much as full ones.
BlockSize expert_block_size(std::int64_t pairs, std::int64_t experts);
// Most token tiles that `pairs` can need when they fall on `slots` experts: every slot but full tiles may end
// in a partial one.
std::int64_t most_expert_tiles(std::int64_t pairs, std::int64_t slots, int tile_tokens);

}  // namespace pivot::cuda
