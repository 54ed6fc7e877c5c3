#include "ops/cuda/placement/block_tile.h"

#include <algorithm>

#include "ops/knobs.h"

namespace pivot::cuda {

bool has_block_scaled(int compute_major, int compute_minor) {
  return compute_major == 12 && compute_minor == 0;
}

std::optional<BlockKind> block_kind(const Matrix& w, ActQuant activations) {
  const bool fp8 = activations == ActQuant::kFp8;
  if (w.cols % kTileCols != 0) return std::nullopt;
  if (w.format == MatrixFormat::kFP8 && w.scale_format == ScaleFormat::kE8M0 && fp8) return BlockKind::kFp8;
  if (w.format == MatrixFormat::kFP4 && fp8) return BlockKind::kFp4;
  if (w.format == MatrixFormat::kNVFP4 && activations == ActQuant::kNvfp4) return BlockKind::kNvfp4;
  return std::nullopt;
}

BlockSize dense_block_size(std::int64_t tokens) {
  return tokens <= 8 ? BlockSize::kSmall : tokens <= 64 ? BlockSize::kMedium : BlockSize::kWide;
}

BlockSize expert_block_size(std::int64_t pairs, std::int64_t experts) {
  if (pairs <= 4 * experts) return BlockSize::kSmall;
  return pairs <= 32 * experts ? BlockSize::kMedium : BlockSize::kWide;
}

std::int64_t most_expert_tiles(std::int64_t pairs, std::int64_t slots, int tile_tokens) {
  return std::min<std::int64_t>(pairs, slots + pairs / tile_tokens);
}

}  // namespace pivot::cuda
