// Hyper-connections (specification 2.2) with four streams: the seam between two sublayers, and the head.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pivot::cuda {

inline constexpr int kStreams = 4;
inline constexpr int kSeamRows = (2 + kStreams) * kStreams;  // pre, post, comb
inline constexpr int kMaxSeamWidth = 8192;                   // d that a CTA keeps in its registers

struct HyperConnectionShape {
  std::int32_t width = 0;  // d, a multiple of 128
  std::int32_t sinkhorn_iters = 0;
  float hc_eps = 0.0f;
  float norm_eps = 0.0f;
};
enum class HyperPrecision : std::uint8_t { kF32, kTf32, kBf16 };  // rounding of the operands of fn . u

// What a seam of few tokens leaves for a later kernel to do (tail.cuh).
inline constexpr int kTailCoefficients = kSeamRows - kStreams;  // of post, then of comb
inline constexpr int kTailTokens = 4;                           // of a step that leaves it
struct SeamTail {
  std::int32_t tokens = 0, iters = 0;
  float eps = 0.0f;
  const float* coefficients = nullptr;  // [tokens][kTailCoefficients]
  float* post = nullptr;                // [tokens][4]
  float* comb = nullptr;                // [tokens][4][4]
};

struct SeamArguments {
  HyperConnectionShape shape;
  HyperPrecision precision = HyperPrecision::kF32;
  const float* fn = nullptr;           // [rows][4 d]: rows = 24, or 4 for the head
  const float* base = nullptr;         // [rows]
  const float* scale = nullptr;        // [3], or [1] for the head
  const float* norm = nullptr;         // [d]
  void* h = nullptr;                   // BF16 [T][4][d], updated when sublayer_out is set
  const void* sublayer_out = nullptr;  // BF16 [T][d] or null
  float* post = nullptr;               // [T][4]
  float* comb = nullptr;               // [T][4][4]
  float* partials = nullptr;           // scratch of seam_partial_floats()
  float* coefficients = nullptr;       // optional [T][kTailCoefficients]: instead of post and comb
  bool many_tokens = false;            // sums of fn . h' in the order that suits a long step
  void* x = nullptr;                   // BF16 [T][d]; the head writes [num_rows][d]
  std::uint16_t* x_values = nullptr;   // optional FP8 rounding of x: E4M3 code values as F16 [T][d]
  float* x_scales = nullptr;           // [T][d / 128]
};

std::int64_t seam_partial_floats(std::int64_t tokens, std::int64_t width);

// `tail` by itself.
void launch_seam_tail(const SeamTail& tail, cudaStream_t stream);
void launch_seam(const SeamArguments& a, std::int64_t tokens, cudaStream_t stream);
// hc_post for every token, then hc_head and the final norm for `rows` (device, [num_rows] token indices).
void launch_head(const SeamArguments& a, std::int64_t tokens, const std::int32_t* rows, std::int64_t num_rows,
                 cudaStream_t stream);

}  // namespace pivot::cuda
