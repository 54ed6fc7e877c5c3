// What a model takes once it is placed: pure functions, so that a model that does not fit or cannot be tiled
// is refused before anything is copied, and so that they are tested without a GPU.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "checkpoint/model_weights.h"

namespace pivot::cuda {

inline constexpr std::int64_t kPlacementAlignment = 256;
constexpr std::int64_t aligned_bytes(std::int64_t bytes) {
  return (bytes + kPlacementAlignment - 1) / kPlacementAlignment * kPlacementAlignment;
}

// Bytes that placing needs. `resident_experts`: experts of a layer with memory of their own (synthetic
// models); 0: all.
std::int64_t placed_bytes(const ModelWeights& weights, std::int64_t resident_experts = 0);
// Why the model's matrices cannot be placed.
Result<> check_placeable(const ModelWeights& weights);

}  // namespace pivot::cuda
