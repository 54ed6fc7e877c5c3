// What follows the projections of the attention input (specification 2.4 steps 1 and 5, 2.5, 2.6 steps 2-3).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "ops/views.h"

namespace pivot::cuda {

enum class IndexRounding : std::uint8_t { kFp4, kFp8, kNone };

struct LatentArguments {
  StepBatch batch;
  float eps = 0.0f;
  const float* frequencies = nullptr;  // [rope / 2]
  std::int32_t rank = 0, head_dim = 0, rope = 0, index_heads = 0;
  const void* a = nullptr;          // BF16 [T][rank] wq_a x
  const void* kv_raw = nullptr;     // BF16 [T][head_dim] wkv x
  const void* index_raw = nullptr;  // BF16 [T][index_heads] weights_proj x, or null
  float index_scale = 0.0f;         // index_head_dim^-0.5 * index_n_heads^-0.5
  const float* q_norm = nullptr;
  const float* kv_norm = nullptr;
  void* qr = nullptr;                  // BF16 [T][rank]
  std::uint16_t* qr_values = nullptr;  // optional FP8 rounding of qr
  float* qr_scales = nullptr;
  void* kv = nullptr;                 // BF16 [T][head_dim]
  bool round_kv = true;               // Q8_64 of the NoPE dims
  std::uint8_t* kv_scales = nullptr;  // optional [T][groups]
  float* index_weights = nullptr;
};
void launch_latent(const LatentArguments& a, cudaStream_t stream);

// One compressor: emits the entries that this step completes, then stores the step's rows in the state ring.
struct CompressArguments {
  StepBatch batch;
  float eps = 0.0f;
  const float* frequencies = nullptr;
  std::int32_t ratio = 0, width = 0, rope = 0;
  const float* k = nullptr;      // [T][coff * width]
  const float* score = nullptr;  // [T][coff * width], without ape
  const float* ape = nullptr;    // [ratio][coff * width]
  const float* norm = nullptr;   // [width]
  CompressorStateView state;
  PagedView out;
  bool index_key = false;  // Hadamard and the index rounding instead of the KV rounding
  bool round_kv = true;
  IndexRounding index_rounding = IndexRounding::kFp4;
};
void launch_compress(const CompressArguments& a, cudaStream_t stream);

// Both, for a step in which every sequence has one token: one launch. Up to two compressors.
void launch_latent_step(const LatentArguments& a, std::span<const CompressArguments> compressors,
                        cudaStream_t stream);

// Stores the step's raw rows in the window ring: the last `ring.rows` of each sequence.
struct WindowArguments {
  StepBatch batch;
  const void* kv = nullptr;                 // BF16 [T][width]
  const std::uint8_t* kv_scales = nullptr;  // optional [T][groups], as latent() wrote them
  RingView ring;
};
void launch_commit_window(const WindowArguments& a, cudaStream_t stream);

}  // namespace pivot::cuda
