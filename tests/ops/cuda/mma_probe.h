// One block-scaled instruction on the GPU, for tests.
#pragma once

#include <cstdint>

#include "ops/cuda/placement/block_tile.h"

namespace pivot::cuda {

struct LaneOperands {
  std::uint32_t a[4], b[2], scale_a, scale_b;
};

// d = (scale_a a)(scale_b b) of step `step` of a tile, from zero; d[lane][register]. The first GPU must have
// the instructions.
void run_mma_probe(BlockKind kind, int step, const LaneOperands (&lanes)[32], float (&d)[32][4]);

}  // namespace pivot::cuda
