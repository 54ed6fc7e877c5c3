// Router and experts (specification 2.7).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/hyper_connection/hyper_connection.h"
#include "ops/cuda/placement/device_expert.h"
#include "tensor/matrix.h"

namespace pivot::cuda {

inline constexpr int kMaxExpertsPerToken = 16;
inline constexpr int kMaxExperts = 512;

struct RouteArguments {
  std::int32_t tokens = 0, experts = 0, chosen = 0;
  bool normalize = true;
  float route_scale = 1.0f;
  const float* logits = nullptr;            // [T][experts]
  const float* bias = nullptr;              // [experts], or null: hash routed
  const std::int32_t* table = nullptr;      // [vocab][chosen]
  const std::int32_t* token_ids = nullptr;  // [T]
  std::int32_t* ids = nullptr;              // [T][chosen] ascending
  float* weights = nullptr;                 // [T][chosen]
  float* margin = nullptr;                  // optional [T]
};
void launch_route(const RouteArguments& a, cudaStream_t stream);

// The routed (token, choice) pairs of a step, grouped by expert. Pair p = t * chosen + i.
struct WorkList {
  std::int32_t* expert = nullptr;   // [slots] expert of each used slot, ascending
  std::int32_t* first = nullptr;    // [slots] its first place in `pairs`
  std::int32_t* count = nullptr;    // [slots] its pairs; 0 for unused slots
  DeviceExpert* weights = nullptr;  // [slots] its matrices, so that a kernel finds them with one load
  std::int32_t* pairs = nullptr;    // [T * chosen] pair ids by expert, ascending inside one
  std::int32_t* tokens = nullptr;   // [T * chosen] token of each place
  std::int32_t* place = nullptr;    // [T * chosen] place of each pair
  std::int32_t slots = 0;           // min(T * chosen, experts)
};
// `table`: the layer's experts and then the shared one, [experts + 1].
void launch_work_list(const std::int32_t* ids, std::int32_t tokens, std::int32_t chosen, std::int32_t experts,
                      const DeviceExpert* table, const WorkList& list, cudaStream_t stream);

// tiles[s], s in [0, slots]: tiles of `tile_tokens` tokens of the slots before s. REQUIRES: at most
// kMaxExperts slots.
void launch_tile_list(const WorkList& list, std::int32_t tile_tokens, std::int32_t* tiles,
                      cudaStream_t stream);

// How activations reach the experts.
enum class ExpertInput : std::uint8_t { kFp8, kBf16, kNvfp4 };

struct ExpertArguments {
  std::int32_t tokens = 0, chosen = 0, width = 0, inner = 0;
  float limit = 0.0f;
  MatrixFormat routed_format = MatrixFormat::kFP4;  // of every routed matrix
  MatrixFormat shared_format = MatrixFormat::kFP8;
  WorkList list;                        // in a step of one token only `slots`
  const DeviceExpert* table = nullptr;  // the layer's experts and then the shared one, [experts + 1]
  std::int32_t experts = 0;
  // A step of one token needs no list: its chosen ids [chosen], slot s being choice s. Else null.
  const std::int32_t* direct_ids = nullptr;
  const float* route_weights = nullptr;  // [T][chosen]
  // Input of w1 and w3. Routed kNvfp4 rows are per place (each expert has its own input scale), otherwise per
  // token.
  const std::uint16_t* routed_x = nullptr;
  const float* routed_scales = nullptr;  // FP8 only
  bool routed_rows_per_place = false;
  const std::uint16_t* shared_x = nullptr;
  const float* shared_scales = nullptr;
  void* hidden = nullptr;  // BF16 [T * chosen + T][inner]: routed by place, then the shared expert
  // Input of w2: `hidden` rounded.
  const std::uint16_t* routed_v = nullptr;
  const float* routed_v_scales = nullptr;
  const std::uint16_t* shared_v = nullptr;
  const float* shared_v_scales = nullptr;
  void* partial = nullptr;  // BF16 [T * chosen + T][width]
  void* out = nullptr;      // BF16 [T][width]
  SeamTail tail;            // done by one more CTA of `up`
};
void launch_expert_up(const ExpertArguments& a, cudaStream_t stream);
void launch_expert_down(const ExpertArguments& a, cudaStream_t stream);
// out = the routed rows of `partial` in ascending expert id, then the shared one, one rounding.
void launch_expert_sum(const ExpertArguments& a, cudaStream_t stream);
// NVFP4 rounding per place under its expert's input scale: rows by token (`by_place` false) or by place.
void launch_expert_nvfp4(const ExpertArguments& a, const void* x, bool by_place, std::int32_t cols,
                         bool of_w2, std::uint16_t* out, cudaStream_t stream);

}  // namespace pivot::cuda
