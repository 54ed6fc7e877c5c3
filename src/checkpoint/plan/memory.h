// Memory of the fullest GPU of a layout, to the byte class.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/plan/roofline.h"

namespace pivot {

// One replica: `gpus` GPUs under one parallelism, `replicas` times.
struct Layout {
  Parallelism parallelism = Parallelism::kTensor;
  int gpus = 1;
  int replicas = 1;
  int total_gpus() const { return gpus * replicas; }
  std::string name() const;  // "TP2 x 4", "PP4", "1 GPU x 2"
};

enum class MemoryClass : std::uint8_t {
  kExperts,            // routed experts
  kShardedWeights,     // the rest of what the layout splits
  kReplicatedWeights,  // small matrices that every GPU of the replica holds
  kEmbedding,
  kDraft,       // MTP or DSpark
  kRatio4Rows,  // KV
  kRatio128Rows,
  kIndexKeys,
  kPagePadding,
  kRings,            // per sequence
  kCompressorState,  // per sequence
  kWorkspace,        // activations of one prefill chunk, operators' scratch, logits of one decode batch
  kRuntime,          // context, kernels, communication buffers: an assumption
};
inline constexpr int kNumMemoryClasses = 13;
std::string_view memory_class_name(MemoryClass memory_class);

struct MemoryPlan {
  std::array<std::int64_t, kNumMemoryClasses> bytes{};  // of the fullest GPU
  std::int64_t available = 0;                           // of one GPU
  double resident_experts = 1;  // below 1: the rest of the routed experts is in host memory
  std::int64_t host_bytes = 0;  // per replica
  double bytes_per_token = 0;   // KV of one token on the fullest GPU
  std::int64_t bytes_per_sequence = 0;
  std::int64_t capacity_tokens = 0;  // of one replica, beside the fixed state of `sequences` sequences

  std::int64_t of(MemoryClass memory_class) const { return bytes[static_cast<std::size_t>(memory_class)]; }
  std::int64_t weights() const;
  std::int64_t total() const;
  bool fits() const { return total() <= available; }
};

struct MemoryOptions {
  double sequences = 1;             // per replica
  std::int64_t context_tokens = 0;  // each
  bool draft = true;                // load the draft head
  bool offload = true;              // may put routed experts into host memory where they do not fit
  std::int64_t max_batch = 128;
};

// Bytes that every GPU gives to the driver, kernels and communication before the first weight.
inline constexpr std::int64_t kRuntimeBytes = std::int64_t{3} << 29;  // 1.5 GiB

// The largest step: a prefill chunk, or one token of every sequence of a decode batch.
struct StepShape {
  std::int64_t tokens = 0;
  std::int64_t logit_rows = 0;        // rows whose logits are wanted
  std::int64_t activation_bytes = 2;  // BF16; the CPU back-ends hold fp32
  int split = 1;                      // GPUs that share heads, output groups and the experts' inner width
};
// Activations that the forward pass holds between its operators (the buffers of src/model/workspace.cpp, up
// to their alignment).
std::int64_t step_buffer_bytes(const ModelConfig& config, const StepShape& step);
// What a GPU's operators hold beside them: rows gathered by expert, gate and up products, attention output by
// group.
std::int64_t operator_scratch_bytes(const ModelConfig& config, const StepShape& step);

MemoryPlan plan_memory(const ModelFacts& model, const Machine& machine, Parallelism parallelism, int gpus,
                       const MemoryOptions& options);

// Tokens that `free_bytes` hold at `bytes_per_token`; 0 where nothing is free.
std::int64_t capacity_tokens(double free_bytes, double bytes_per_token);

}  // namespace pivot
