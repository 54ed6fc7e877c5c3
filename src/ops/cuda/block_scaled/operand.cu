// Activations as the block-scaled products read them (fragments.h): E4M3 codes with one E8M0 byte per 128
// columns, or NVFP4 codes with one E4M3 byte per 16. Bytes: 2 read and 1 (0.56) written a value; bound by
// launch latency in decode.
#include "ops/cuda/block_scaled/block_scaled.h"
#include "ops/cuda/block_scaled/fragments.h"
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

// One warp per group of 128 columns.
__global__ void __launch_bounds__(256)
    block_operand_kernel(const BF16* x, int groups, std::int64_t stride, std::int64_t total,
                         std::uint8_t* codes, std::uint8_t* scales, std::int64_t scale_stride) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (group >= total) return;
  const std::int64_t row = group / groups, column = group % groups * 128 + lane * 4;
  const uint2 raw = *reinterpret_cast<const uint2*>(x + row * stride + column);
  const float v[4] = {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                      __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u)};
  float amax = 0.0f;
#pragma unroll
  for (float value : v) amax = fmaxf(amax, fabsf(value));  // fmaxf leaves NaN out
  const std::uint8_t byte = fp8_group_scale(group_amax(amax, 32));
  const float inverse = inverse_scale(byte);
  *reinterpret_cast<std::uint32_t*>(codes + row * groups * 128 + column) =
      f32x2_to_e4m3x2(v[0] * inverse, v[1] * inverse) | f32x2_to_e4m3x2(v[2] * inverse, v[3] * inverse) << 16;
  if (lane == 0) scales[row * scale_stride + group % groups] = byte;
}

// One thread per eight columns, two per scale. grid.y is a slot of the work list.
__global__ void __launch_bounds__(256)
    block_nvfp4_kernel(const __grid_constant__ ExpertArguments a, const BF16* x, bool by_place, int cols,
                       bool of_w2, std::uint8_t* codes, std::uint8_t* scales) {
  wait_for_predecessor();
  release_successor();
  const int count = a.list.count[blockIdx.y];
  if (count == 0) return;
  const DeviceExpert& expert = a.list.weights[blockIdx.y];
  const float input_scale = of_w2 ? expert.w2.input_scale : expert.w1.input_scale;
  const int first = a.list.first[blockIdx.y], words = cols / 8;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < static_cast<std::int64_t>(count) * words; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t place = first + i / words;
    const int word = static_cast<int>(i % words);
    const std::int64_t row = by_place ? place : a.list.tokens[place];
    const uint4 raw = *reinterpret_cast<const uint4*>(x + row * cols + word * 8);
    const std::uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
    float v[8], amax = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      v[k] = __uint_as_float(k % 2 == 0 ? pairs[k / 2] << 16 : pairs[k / 2] & 0xffff0000u);
      amax = fmaxf(amax, fabsf(v[k]));
    }
    amax = fmaxf(amax,
                 __shfl_xor_sync(__activemask(), amax, 1));  // words come in pairs: cols is a multiple of 16
    const std::uint8_t block = float_to_e4m3(amax / 6.0f / input_scale);
    const float scale = e4m3_to_float(block) * input_scale;
    std::uint32_t packed = 0;
#pragma unroll
    for (int nibble = 0; nibble < 8; ++nibble)
      packed |= static_cast<std::uint32_t>(scale > 0.0f ? float_to_e2m1(v[nvfp4_column(nibble)] / scale) : 0)
                << (4 * nibble);
    // Columns 32q + 8t of tile c / 128.
    const int in_tile = word % 16;
    *reinterpret_cast<std::uint32_t*>(codes + place * (cols / 2) + word / 16 * 64 +
                                      nvfp4_word_at(in_tile / 4, in_tile % 4)) = packed;
    if (word % 2 == 0) scales[place * (cols / 16) + word / 2] = block;
  }
}

}  // namespace

BlockInput launch_block_operand(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                                std::uint8_t* codes, std::uint8_t* scales, cudaStream_t stream) {
  require(cols % 128 == 0 && stride % 4 == 0, "FP8 activations come in groups of 128");
  const std::int64_t groups = rows * (cols / 128);
  launch({dim3(static_cast<unsigned>((groups + 7) / 8)), dim3(256), 0, stream, true, "block_operand"},
         block_operand_kernel, static_cast<const BF16*>(x), static_cast<int>(cols / 128), stride, groups,
         codes, scales, block_scale_stride(cols));
  return {codes, scales, block_row_bytes(BlockKind::kFp8, cols),
          block_row_scale_bytes(BlockKind::kFp8, cols)};
}

BlockInput launch_block_nvfp4(const ExpertArguments& a, const void* x, bool by_place, std::int32_t cols,
                              bool of_w2, std::uint8_t* codes, std::uint8_t* scales, cudaStream_t stream) {
  require(cols % 128 == 0, "NVFP4 activations in tiles of 128 columns");
  launch({dim3(8, static_cast<unsigned>(a.list.slots)), dim3(256), 0, stream, true, "block_nvfp4"},
         block_nvfp4_kernel, a, static_cast<const BF16*>(x), by_place, cols, of_w2, codes, scales);
  return {codes, scales, block_row_bytes(BlockKind::kNvfp4, cols),
          block_row_scale_bytes(BlockKind::kNvfp4, cols)};
}

}  // namespace pivot::cuda
