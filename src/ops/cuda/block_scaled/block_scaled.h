// Products of tiled weights with quantised activations on the block-scaled tensor cores of sm_120a: the FP8
// linear layers and the experts, for any number of tokens.
//
// Every output is the sum, in ascending order, of its blocks of 128 columns, whatever the tile: a token's
// bits do not depend on the rest of its step.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "ops/cuda/moe/moe.h"
#include "ops/cuda/placement/block_tile.h"
#include "tensor/matrix.h"

namespace pivot::cuda {

// Quantised activations in device memory (fragments.h).
struct BlockInput {
  const std::uint8_t* codes = nullptr;   // [rows][row_bytes]
  const std::uint8_t* scales = nullptr;  // [rows][row_scale_bytes]
  std::int64_t row_bytes = 0, row_scale_bytes = 0;
};

// BF16 [rows][cols] (row stride `stride` elements) to E4M3 codes and E8M0 bytes in groups of 128
// (specification 3.3). codes: rows * cols bytes; scales: rows * block_scale_stride(cols).
BlockInput launch_block_operand(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                                std::uint8_t* codes, std::uint8_t* scales, cudaStream_t stream);
// NVFP4 rounding per place under its expert's input scale (of w2, or of w1 and w3): rows of x by token, or by
// place. codes: places * cols / 2 bytes; scales: places * cols / 16.
BlockInput launch_block_nvfp4(const ExpertArguments& a, const void* x, bool by_place, std::int32_t cols,
                              bool of_w2, std::uint8_t* codes, std::uint8_t* scales, cudaStream_t stream);

struct BlockJob {
  Matrix weights;    // placed; block_kind(weights, fp8) is kFp8
  BlockInput input;  // its columns from `column` on, a multiple of 512
  std::int64_t column = 0;
  void* out = nullptr;          // [tokens][out_stride]
  std::int64_t out_stride = 0;  // elements
  bool out_bf16 = true;         // else fp32
};
inline constexpr int kMaxBlockJobs = 8;
// out = W x for every job. REQUIRES: the same number of columns.
void launch_block_dense(std::span<const BlockJob> jobs, std::int64_t tokens, cudaStream_t stream);

// Experts of one kind: `up` writes their rows of a.hidden, `down` those of a.partial.
struct BlockExperts {
  ExpertArguments a;
  BlockKind kind = BlockKind::kFp4;
  BlockSize size = BlockSize::kSmall;
  bool shared = false;  // the shared expert over all tokens; else the routed ones of the work list
  const std::int32_t* tiles =
      nullptr;       // launch_tile_list of block_tile(kind, size).tokens(); null: shared or direct ids
  BlockInput input;  // up: by token, kNvfp4 by place; down: by place
};
void launch_block_experts_up(const BlockExperts& e, cudaStream_t stream);
void launch_block_experts_down(const BlockExperts& e, cudaStream_t stream);

}  // namespace pivot::cuda
