#include "ops/cuda/placement/random_fill.h"

#include <algorithm>
#include <cmath>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/placement/tile_format.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ std::uint32_t mix(std::uint64_t i, std::uint32_t seed) {  // splitmix64, high word
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
}
__device__ __forceinline__ float uniform(std::uint32_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31f;
}
__device__ __forceinline__ std::uint32_t no_nan(std::uint32_t four) {  // E4M3: magnitude 0x7f is NaN
  for (int shift = 0; shift < 32; shift += 8)
    if ((four >> shift & 0x7fu) == 0x7fu) four ^= 0x40u << shift;
  return four;
}

enum class Fill { kBits, kE4M3, kBf16, kF32, kScaleE8M0, kScaleE4M3, kScaleF32 };

__global__ void fill_kernel(Fill kind, std::uint32_t* words, std::int64_t count, float mean, float spread,
                            std::uint32_t seed) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::uint32_t bits = mix(i, seed);
    std::uint32_t word = bits;
    switch (kind) {
      case Fill::kBits:
        break;
      case Fill::kE4M3:
        word = no_nan(bits);
        break;
      case Fill::kBf16:
        word = pack_bf16x2(spread * uniform(bits), spread * uniform(mix(i, seed ^ 0x5bd1e995u)));
        break;
      case Fill::kF32:
        word = __float_as_uint(mean + spread * uniform(bits));
        break;
      case Fill::kScaleE8M0:  // bytes at `mean` - 1 .. mean + 1
        word = (static_cast<std::uint32_t>(mean) - 1) * 0x01010101u +
               (bits % 3 | bits / 3 % 3 << 8 | bits / 9 % 3 << 16 | bits / 27 % 3 << 24);
        break;
      case Fill::kScaleE4M3:
        word = 0x60606060u + (bits & 0x0f0f0f0fu);
        break;  // 32 .. 120
      case Fill::kScaleF32:
        word = __float_as_uint(ldexpf(1.0f, static_cast<int>(mean) - 127 - 1 + static_cast<int>(bits % 3)));
        break;
    }
    words[i] = word;
  }
}

__global__ void ids_kernel(std::int32_t* ids, std::int64_t rows, std::int32_t chosen, std::int32_t experts,
                           std::uint32_t seed) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  std::int32_t* out = ids + row * chosen;
  for (std::int32_t i = 0; i < chosen; ++i) {
    std::int32_t id = static_cast<std::int32_t>(mix(row * chosen + i, seed) % experts);
    for (std::int32_t j = 0; j < i; ++j)
      if (out[j] == id) {
        id = (id + 1) % experts;
        j = -1;
      }
    out[i] = id;
  }
}

__global__ void rows_kernel(std::uint8_t* base, std::int64_t page_bytes, std::int64_t count,
                            std::int32_t page_rows, RowLayout layout, std::uint32_t seed) {
  const std::int64_t row = blockIdx.x;
  std::uint8_t* page = base + row / page_rows * page_bytes;
  std::uint8_t* data = page + row % page_rows * layout.data_bytes;
  std::uint8_t* scales =
      page + static_cast<std::int64_t>(page_rows) * layout.data_bytes + row % page_rows * layout.scale_bytes;
  const int codes = layout.format == RowFormat::kKvPacked ? layout.width - layout.rope
                    : layout.format == RowFormat::kBf16   ? 0
                                                          : layout.data_bytes;
  const bool e4m3 = layout.format != RowFormat::kIndexFp4;
  for (int i = threadIdx.x; i < layout.data_bytes; i += blockDim.x) {
    const std::uint32_t bits = mix(row * layout.data_bytes + i, seed);
    if (i < codes)
      data[i] = static_cast<std::uint8_t>(e4m3 ? bits & 0xbfu : bits & 0xffu);  // E4M3 below 2
    else if (i % 2 == 0)
      *reinterpret_cast<BF16*>(data + i) = to_bf16(uniform(bits));
  }
  for (int i = threadIdx.x; i < layout.scale_bytes; i += blockDim.x) {
    if (layout.format == RowFormat::kIndexFp8) {
      if (i == 0) *reinterpret_cast<float*>(scales) = 1.0f;
    } else {
      scales[i] = static_cast<std::uint8_t>(126 + mix(row * 64 + i, seed ^ 0x1234567u) % 3);
    }
  }
}

void fill(Fill kind, void* words, std::int64_t bytes, float mean, float spread, std::uint32_t seed,
          cudaStream_t stream) {
  require(bytes % 4 == 0, "a random fill of whole words");
  if (bytes == 0) return;
  const std::int64_t count = bytes / 4,
                     blocks = std::min<std::int64_t>((count + kThreads - 1) / kThreads, 4096);
  launch({dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, false, "random_fill"}, fill_kernel,
         kind, static_cast<std::uint32_t*>(words), count, mean, spread, seed);
}

__global__ void __launch_bounds__(512)
    read_kernel(const std::uint8_t* memory, std::int64_t pieces, std::uint32_t* out) {
  std::uint32_t x = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i + 7 * stride < pieces; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = load_stream(memory + (i + j * stride) * 16);
#pragma unroll
    for (int j = 0; j < 8; ++j) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (x == 0x9e3779b9u && out != nullptr) *out = x;  // keeps the loads
}

}  // namespace

void launch_random_tiles(const Matrix& m, std::byte* codes, std::byte* scales, std::uint32_t seed,
                         cudaStream_t stream) {
  const std::int64_t tiles = (m.rows + kTileRows - 1) / kTileRows * (m.cols / kTileCols);
  const std::int64_t code_bytes = tiles * tile_code_bytes(m.format),
                     scale_bytes = tiles * tile_scale_bytes(m.format);
  // Root mean squares of uniformly random codes: 107 for E4M3, 2.9 for E2M1.
  const auto exponent = [&](double rms) {
    return static_cast<float>(127 + std::lround(-std::log2(rms * std::sqrt(static_cast<double>(m.cols)))));
  };
  switch (m.format) {
    case MatrixFormat::kBF16:
      return fill(Fill::kBf16, codes, code_bytes, 0.0f,
                  static_cast<float>(std::sqrt(3.0 / static_cast<double>(m.cols))), seed, stream);
    case MatrixFormat::kFP8:
      fill(Fill::kE4M3, codes, code_bytes, 0.0f, 0.0f, seed, stream);
      return fill(Fill::kScaleF32, scales, scale_bytes, exponent(107.0), 0.0f, seed + 1, stream);
    case MatrixFormat::kFP4:
      fill(Fill::kBits, codes, code_bytes, 0.0f, 0.0f, seed, stream);
      return fill(Fill::kScaleE8M0, scales, scale_bytes, exponent(2.9), 0.0f, seed + 1, stream);
    case MatrixFormat::kNVFP4:
      fill(Fill::kBits, codes, code_bytes, 0.0f, 0.0f, seed, stream);
      return fill(Fill::kScaleE4M3, scales, scale_bytes, 0.0f, 0.0f, seed + 1, stream);
    case MatrixFormat::kF32:
      require(false, "F32 matrices are not tiled");
  }
}

void launch_random_bf16(std::byte* values, std::int64_t count, float amplitude, std::uint32_t seed,
                        cudaStream_t stream) {
  fill(Fill::kBf16, values, count * 2, 0.0f, amplitude, seed, stream);
}

void launch_random_floats(float* values, std::int64_t count, float mean, float spread, std::uint32_t seed,
                          cudaStream_t stream) {
  fill(Fill::kF32, values, count * 4, mean, spread, seed, stream);
}

void launch_random_ids(std::int32_t* ids, std::int64_t rows, std::int32_t chosen, std::int32_t experts,
                       std::uint32_t seed, cudaStream_t stream) {
  launch({dim3(static_cast<unsigned>((rows + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream, false,
          "random_ids"},
         ids_kernel, ids, rows, chosen, experts, seed);
}

void launch_random_rows(std::byte* base, std::int64_t page_bytes, std::int64_t count, std::int32_t page_rows,
                        const RowLayout& layout, std::uint32_t seed, cudaStream_t stream) {
  if (count == 0) return;
  launch({dim3(static_cast<unsigned>(count * page_rows)), dim3(128), 0, stream, false, "random_rows"},
         rows_kernel, reinterpret_cast<std::uint8_t*>(base), page_bytes, count, page_rows, layout, seed);
}

double measure_read_bandwidth(const std::byte* memory, std::int64_t bytes, int multiprocessors,
                              cudaStream_t stream) {
  const int blocks = 2 * multiprocessors;
  const std::int64_t unit = std::int64_t{blocks} * 512 * 8 * 16;  // one round of the kernel
  const std::int64_t rounds = std::min<std::int64_t>(bytes, std::int64_t{16} << 30) / unit;
  if (rounds == 0) return 0.0;
  cudaEvent_t begin, end;
  require_cuda(cudaEventCreate(&begin), "creating an event");
  require_cuda(cudaEventCreate(&end), "creating an event");
  float best_ms = INFINITY;
  for (int repeat = 0; repeat < 5; ++repeat) {
    require_cuda(cudaEventRecord(begin, stream), "recording an event");
    launch({dim3(static_cast<unsigned>(blocks)), dim3(512), 0, stream, false, "read"}, read_kernel,
           reinterpret_cast<const std::uint8_t*>(memory), rounds * unit / 16,
           static_cast<std::uint32_t*>(nullptr));
    require_cuda(cudaEventRecord(end, stream), "recording an event");
    require_cuda(cudaEventSynchronize(end), "reading memory");
    float ms = 0.0f;
    require_cuda(cudaEventElapsedTime(&ms, begin, end), "reading an event");
    best_ms = std::min(best_ms, ms);
  }
  require_cuda(cudaEventDestroy(begin), "releasing an event");
  require_cuda(cudaEventDestroy(end), "releasing an event");
  return static_cast<double>(rounds * unit) / (static_cast<double>(best_ms) * 1e-3);
}

}  // namespace pivot::cuda
