#include "ops/cuda/placement/gemm_tile.h"

#include <algorithm>

namespace pivot::cuda {
namespace {

// What a tile costs, in tokens: below some 96 the decoding of weights takes as long as the products, and
// every tile has a start and an end.
int tile_cost(int tokens) { return std::max(tokens, 96) + 16; }

}  // namespace

int dense_tile_tokens(std::int64_t tokens, std::int64_t row_units, int clusters) {
  int best = 0;
  std::int64_t best_cost = 0;
  for (const int most : {256, 192, 128, 64}) {
    const TokenTiles tiles =
        cut_tokens(static_cast<int>(tokens), most, token_step(MatrixFormat::kFP8, false));
    const std::int64_t rounds = (row_units * tiles.tiles + clusters - 1) / clusters;
    const std::int64_t cost = rounds * tile_cost(tiles.tokens);
    if (best == 0 || cost < best_cost) {
      best = tiles.tokens;
      best_cost = cost;
    }
  }
  return best;
}

int expert_tile_tokens(std::int64_t pairs, std::int64_t experts) {
  // Small tiles have more stages. An expert of twice the average still takes one tile.
  return 2 * pairs <= 128 * experts ? 128 : kGemmTokens;
}

}  // namespace pivot::cuda
