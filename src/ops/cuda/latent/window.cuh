// The window ring: a step's raw rows, packed as the ring's layout wants. Called by whole CTAs.
#pragma once

#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/latent/latent.h"

namespace pivot::cuda {

inline constexpr int kMaxRow = 2048;

// One warp per group of `group` elements (group <= 128): max, scale byte, and the rounded values in place.
template <bool E4M3>
__device__ inline void round_groups(float* row, int count, int group, std::uint8_t* bytes) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int g = warp; g * group < count; g += warps) {
    float amax = 0.0f;
    for (int i = lane; i < group; i += 32) amax = fmaxf(amax, fabsf(row[g * group + i]));
    amax = group_amax(amax, 32);
    const std::uint8_t byte = E4M3 ? fp8_group_scale(amax) : fp4_group_scale(amax);
    for (int i = lane; i < group; i += 32) {
      float& v = row[g * group + i];
      v = E4M3 ? round_e4m3(v, byte) : round_e2m1(v, byte);
    }
    if (lane == 0) bytes[g] = byte;
  }
  __syncthreads();
}

struct WindowScratch {
  float row[kMaxRow];
  std::uint8_t bytes[kMaxRow / 32];
};

// Stores the row of token t, if it is among the last `ring.rows` of its sequence.
__device__ inline void commit_window(const WindowArguments& a, std::int64_t t, WindowScratch& shared) {
  float* row = shared.row;
  std::uint8_t* bytes = shared.bytes;
  const SequenceSpan span = a.batch.spans[a.batch.span_of[t]];
  if (t - span.first_token < span.num_tokens - a.ring.rows) return;
  const RowLayout& layout = a.ring.layout;
  const RowAddress out = ring_row(a.ring, span.slot, a.batch.positions[t]);
  const BF16* in = static_cast<const BF16*>(a.kv) + t * layout.width;
  if (layout.format == RowFormat::kBf16) {
    for (int i = threadIdx.x; i < layout.width; i += blockDim.x) reinterpret_cast<BF16*>(out.data)[i] = in[i];
    return;
  }
  const int nope = layout.width - layout.rope, groups = (nope + kKvGroup - 1) / kKvGroup;
  for (int i = threadIdx.x; i < nope; i += blockDim.x) row[i] = to_float(in[i]);
  __syncthreads();
  if (a.kv_scales != nullptr) {
    if (static_cast<int>(threadIdx.x) < groups) bytes[threadIdx.x] = a.kv_scales[t * groups + threadIdx.x];
    __syncthreads();
  } else {
    round_groups<true>(row, nope, kKvGroup, bytes);
  }
  for (int i = threadIdx.x; i < nope; i += blockDim.x)
    out.data[i] = float_to_e4m3(row[i] / e8m0_to_float(bytes[i / kKvGroup]));
  for (int i = threadIdx.x; i < layout.rope; i += blockDim.x)
    reinterpret_cast<BF16*>(out.data + nope)[i] = in[nope + i];
  for (int i = threadIdx.x; i < layout.scale_bytes; i += blockDim.x)
    out.scales[i] = i < groups ? bytes[i] : std::uint8_t{0};
}

}  // namespace pivot::cuda
