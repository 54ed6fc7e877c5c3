// Products of tiled weights with many tokens, on the tensor cores: the linear layers and experts of a
// prefill.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "ops/cuda/moe/moe.h"
#include "ops/cuda/placement/gemm_tile.h"
#include "tensor/matrix.h"

namespace pivot::cuda {

// Where this device's compute capability has the kernels (sm_90a). Elsewhere the decode kernels serve.
bool has_gemm(int compute_major);
// Whether one matrix can go through them: block scales that are powers of two, whole CTA tiles of 128 rows.
bool gemm_takes(const Matrix& weights);

// The activations of a product (placement/gemm_tile.h), in the column order of tiles of `format`:
// operand_rows(rows) * cols elements. fp8: rounded in groups of 128 first (specification 3.3). x: BF16
// [rows][stride].
void launch_gemm_operand(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                         MatrixFormat format, bool fp8, std::uint16_t* out, cudaStream_t stream);

struct GemmJob {
  Matrix weights;  // placed; gemm_takes()
  const std::uint16_t* x =
      nullptr;          // launch_gemm_operand of `weights.format`, from the panel of its first column on
  void* out = nullptr;  // [tokens][out_stride], 16-byte aligned, as are its rows
  std::int64_t out_stride = 0;
  bool out_bf16 = true;  // else fp32
};
// out = W x for every job. REQUIRES: the same number of columns and the same format; operands of `tokens`
// rows.
void launch_gemm(std::span<const GemmJob> jobs, std::int64_t tokens, cudaStream_t stream);

// ---- routed experts, by place (moe/moe.h) ----

// Device scratch that says how a work list's places become rows of an operand and token tiles.
struct ExpertRows {
  ExpertTile* tiles = nullptr;        // [pairs / 64 + slots]
  std::int32_t* num_tiles = nullptr;  // [1]
  std::int32_t* row = nullptr;        // [pairs] operand row of each place
  float* weight = nullptr;            // [pairs] routing weight of each place
  std::int64_t rows = 0;              // of the operand: expert_operand_rows(pairs, slots)
};
// Fills `rows` but for its pointers and count.
void launch_expert_rows(const ExpertArguments& a, const ExpertRows& rows, cudaStream_t stream);
// launch_gemm_operand for experts: rows.rows * cols elements. x: BF16 rows by token (every token's row is
// written for all its experts) or by place.
void launch_expert_operand(const ExpertArguments& a, const ExpertRows& rows, const void* x, bool by_place,
                           std::int32_t cols, bool fp8, std::uint16_t* out, cudaStream_t stream);
// `up` writes a.hidden, `down` a.partial, both by place. x: launch_expert_operand of the inputs.
void launch_gemm_experts_up(const ExpertArguments& a, const ExpertRows& rows, const std::uint16_t* x,
                            cudaStream_t stream);
void launch_gemm_experts_down(const ExpertArguments& a, const ExpertRows& rows, const std::uint16_t* x,
                              cudaStream_t stream);
// The first half of the shared expert, into the rows of a.hidden behind the routed ones. x:
// launch_gemm_operand of a.shared_format for all tokens.
void launch_gemm_shared_up(const ExpertArguments& a, const std::uint16_t* x, cudaStream_t stream);
// launch_expert_sum, eight columns a thread. REQUIRES: a work list, a width in multiples of 8.
void launch_gemm_expert_sum(const ExpertArguments& a, cudaStream_t stream);

}  // namespace pivot::cuda
