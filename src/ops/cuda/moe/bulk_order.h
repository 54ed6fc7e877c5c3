// The order in which a warp of experts_bulk.cu multiplies its tiles, and in which they are asked for.
#pragma once

namespace pivot::cuda {

// Of one warp: `tiles` column tiles of a stripe (every kExpertWarps-th from its own number on), each stripe
// in `passes` passes a round of eight tokens.
struct BulkOrder {
  int warp = 0, warps = 1, tiles = 0, passes = 1;

  struct Item {
    int pass, tile;  // column tile of the stripe
  };
  // The n-th of rounds * passes * tiles. REQUIRES: tiles > 0.
  constexpr Item item(int n) const { return {n / tiles % passes, warp + n % tiles * warps}; }
  static constexpr BulkOrder of(int warp, int warps, int tiles_k, int passes) {
    return {warp, warps, (tiles_k - warp + warps - 1) / warps, passes};
  }
};

}  // namespace pivot::cuda
