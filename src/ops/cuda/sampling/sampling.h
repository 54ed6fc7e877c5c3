// Draws from rows of logits on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/sampling/decision.h"

namespace pivot::cuda {

struct DrawArguments {
  const float* logits = nullptr;  // [..][vocab]
  std::int32_t vocab = 0;         // a multiple of 4, at most kMaxDrawSegments * kDrawSegment
  std::int32_t draws = 0;
  const std::int32_t* rows = nullptr;  // [draws] the row of each draw
  const DrawParams* params = nullptr;  // [draws]
  DrawResult* results = nullptr;       // [draws]
  // Scratch.
  DrawSegment* segments = nullptr;         // [draws][draw_segments(vocab)]
  std::int32_t* selected = nullptr;        // [draws][kMaxSortedDraw]
  std::int32_t* selected_count = nullptr;  // [draws]
};
constexpr std::int32_t draw_segments(std::int32_t vocab) { return (vocab + kDrawSegment - 1) / kDrawSegment; }

// `any_sorted`: whether some draw has top-k or top-p; without it the selection of the best candidates is left
// out.
// `clusters` as of launch_topk.
void launch_draw(const DrawArguments& a, bool any_sorted, bool clusters, cudaStream_t stream);

}  // namespace pivot::cuda
