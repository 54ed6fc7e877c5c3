// Random contents for weights and caches without a source: benchmarks at full size.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "numeric/row_layout.h"
#include "tensor/matrix.h"

namespace pivot::cuda {

// A tiled matrix (placement/tile_format.h) of random codes, no NaN among them, with scales that make W x of
// unit size for unit x.
void launch_random_tiles(const Matrix& matrix, std::byte* codes, std::byte* scales, std::uint32_t seed,
                         cudaStream_t stream);
// BF16 values in (-1, 1), row-major.
void launch_random_bf16(std::byte* values, std::int64_t count, float amplitude, std::uint32_t seed,
                        cudaStream_t stream);
// mean + spread * u, u in (-1, 1).
void launch_random_floats(float* values, std::int64_t count, float mean, float spread, std::uint32_t seed,
                          cudaStream_t stream);
// Rows of `chosen` different ids below `experts`.
void launch_random_ids(std::int32_t* ids, std::int64_t rows, std::int32_t chosen, std::int32_t experts,
                       std::uint32_t seed, cudaStream_t stream);
// Every row of `count` pages: codes without NaN, scale bytes around 1.
void launch_random_rows(std::byte* base, std::int64_t page_bytes, std::int64_t count, std::int32_t page_rows,
                        const RowLayout& layout, std::uint32_t seed, cudaStream_t stream);

// Bytes per second of a kernel that reads up to 16 GiB of [memory, memory + bytes) once: the best of five.
double measure_read_bandwidth(const std::byte* memory, std::int64_t bytes, int multiprocessors,
                              cudaStream_t stream);

}  // namespace pivot::cuda
