// Products of tiled weights with many tokens, on the tensor cores: the linear layers and experts of a
// prefill.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "ops/cuda/moe/moe.h"
#include "tensor/matrix.h"

namespace pivot::cuda {

// Where this device's compute capability has the kernels (sm_90a). Elsewhere the decode kernels serve.
bool has_gemm(int compute_major);
// Whether one matrix can go through them: block scales that are powers of two, whole CTA tiles of 128 rows.
bool gemm_takes(const Matrix& weights);

// The right operand: BF16 values in the order in which a warp's lanes meet the columns of a tile of `format`
// (placement/tile_format.h): FP8 tiles permute blocks of 64 columns, all others blocks of 32.
// fp8: rounded in groups of 128 first (specification 3.3). x: BF16 [rows][stride].
void launch_gemm_operand(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                         MatrixFormat format, bool fp8, std::uint16_t* out, cudaStream_t stream);

struct GemmJob {
  Matrix weights;                    // placed; gemm_takes()
  const std::uint16_t* x = nullptr;  // launch_gemm_operand of `weights.format`
  std::int64_t x_stride = 0;         // elements
  void* out = nullptr;               // [tokens][out_stride]
  std::int64_t out_stride = 0;
  bool out_bf16 = true;  // else fp32
};
// out = W x for every job. REQUIRES: the same number of columns and the same format.
void launch_gemm(std::span<const GemmJob> jobs, std::int64_t tokens, cudaStream_t stream);

// The routed experts of a work list, by place (moe/moe.h): `up` writes a.hidden, `down` a.partial.
// `tiles`: scratch [slots + 1]. x: operands by token (up) and by place (down).
void launch_gemm_experts_up(const ExpertArguments& a, const std::uint16_t* x, std::int32_t* tiles,
                            cudaStream_t stream);
void launch_gemm_experts_down(const ExpertArguments& a, const std::uint16_t* x, const std::int32_t* tiles,
                              cudaStream_t stream);
// out = bf(silu(min(g, L)) clamp(u, -L, L)) for the shared expert; g, u: BF16 [rows][inner].
void launch_swiglu(const void* g, const void* u, std::int64_t count, float limit, void* out,
                   cudaStream_t stream);

}  // namespace pivot::cuda
