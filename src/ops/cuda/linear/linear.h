// Linear layers on tiled weights: up to kMaxJobs matrices in one launch (merged projections), and the
// activation rounding that feeds them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "ops/cuda/hyper_connection/hyper_connection.h"
#include "ops/cuda/placement/schedule.h"
#include "tensor/matrix.h"

namespace pivot::cuda {

inline constexpr int kMaxJobs = 8;

// A rounded activation. FP8 (knob fp8): E4M3 code values as F16 and one fp32 power-of-two scale per 128
// columns; BF16: the activation itself, scales == nullptr.
struct LinearInput {
  const std::uint16_t* x = nullptr;  // [T][stride]
  const float* scales = nullptr;     // [T][stride / 128]
  std::int64_t stride = 0;           // elements; a multiple of 128
};

struct LinearJob {
  Matrix weights;  // placed (placement/tiles.h), codes and scales in device memory
  LinearInput input;
  void* out = nullptr;          // [T][out_stride]
  std::int64_t out_stride = 0;  // elements
  bool out_bf16 = true;         // else fp32, unrounded
};

// out = W x for every job. REQUIRES: all jobs have the same number of columns.
// `tail`: work of a seam that one more CTA does on the way; tokens 0: none.
void launch_linear(std::span<const LinearJob> jobs, std::int64_t tokens, cudaStream_t stream,
                   const SeamTail& tail = {});

// Quantises BF16 [rows][cols] (row stride `stride` elements) to code values and scales (specification 3.3).
void launch_quantize_fp8(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                         std::uint16_t* values, float* scales, cudaStream_t stream);

}  // namespace pivot::cuda
