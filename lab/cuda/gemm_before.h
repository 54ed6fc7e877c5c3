// The prefill product as it was: see gemm_before.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "ops/cuda/moe/moe.h"
#include "tensor/matrix.h"

namespace pivot::cuda::before {

bool gemm_takes(const Matrix& weights);
void launch_gemm_operand(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                         MatrixFormat format, bool fp8, std::uint16_t* out, cudaStream_t stream);
struct GemmJob {
  Matrix weights;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  bool out_bf16 = true;
};
void launch_gemm(std::span<const GemmJob> jobs, std::int64_t tokens, cudaStream_t stream);
void launch_gemm_experts_up(const ExpertArguments& a, const std::uint16_t* x, std::int32_t* tiles,
                            cudaStream_t stream);
void launch_gemm_experts_down(const ExpertArguments& a, const std::uint16_t* x, const std::int32_t* tiles,
                              cudaStream_t stream);
void launch_swiglu(const void* g, const void* u, std::int64_t count, float limit, void* out,
                   cudaStream_t stream);

}  // namespace pivot::cuda::before
