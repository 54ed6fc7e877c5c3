// The activation buffers of one step, allocated once for the largest step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_config.h"
#include "ops/ops.h"

namespace pivot {

struct WorkspaceSize {
  std::int32_t tokens = 0;  // T of the largest step
  std::int32_t spans = 0;
  std::int32_t logit_rows = 0;
  std::int32_t topk = 0;  // 0: no selection buffers
};

// T of a step when nobody chose: the largest of 1024, 512 and 256 whose workspace stays within 128 MiB, else
// 256.
std::int32_t default_step_tokens(const ModelConfig& config, int activation_bytes, std::int32_t topk);

class Workspace {
 public:
  static Result<std::unique_ptr<Workspace>> create(std::shared_ptr<Backend> backend,
                                                   const ModelConfig& config, const WorkspaceSize& size);
  // What create allocates, exactly.
  static std::int64_t planned_bytes(const ModelConfig& config, int activation_bytes,
                                    const WorkspaceSize& size);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::int64_t allocated_bytes() const { return allocated_bytes_; }

  // Step description: adjacent, token_ids first.
  std::size_t step_description_bytes = 0;  // from token_ids to the end of logit_rows
  std::int32_t* token_ids = nullptr;       // [T]
  std::int32_t* positions = nullptr;       // [T]
  std::int32_t* span_of = nullptr;         // [T]
  SequenceSpan* spans = nullptr;           // [spans]
  std::int32_t* logit_rows = nullptr;      // [logit_rows]
  // Residual and hyper-connection state.
  Act* h = nullptr;       // [T, S, d]
  Act* x = nullptr;       // [T, d] sublayer input
  Act* out = nullptr;     // [T, d] sublayer output
  float* post = nullptr;  // [T, S]
  float* comb = nullptr;  // [T, S, S]
  // Attention.
  Act* qr = nullptr;                       // [T, r]
  Act* kv = nullptr;                       // [T, D]
  std::uint8_t* kv_scales = nullptr;       // [T, ceil((D-R)/64)] E8M0 bytes of the groups of kv
  Act* q = nullptr;                        // [T, H, D]
  Act* o = nullptr;                        // [T, H, D]
  Act* index_q = nullptr;                  // [T, Hi, Di]
  float* index_weights = nullptr;          // [T, Hi]
  std::int32_t* selected = nullptr;        // [T, topk]
  std::int32_t* selected_count = nullptr;  // [T]
  // Experts.
  std::int32_t* expert_ids = nullptr;  // [T, K]
  float* expert_weights = nullptr;     // [T, K]
  float* gate_margin = nullptr;        // [T]
  // Output.
  Act* final_x = nullptr;   // [logit_rows, d]
  float* logits = nullptr;  // [logit_rows, V]

 private:
  explicit Workspace(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
  std::shared_ptr<Backend> backend_;
  std::byte* memory_ = nullptr;
  std::int64_t allocated_bytes_ = 0;
};

}  // namespace pivot
