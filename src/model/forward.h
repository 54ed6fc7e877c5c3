// The forward pass, written once on Backend's operators: prefill, chunked prefill, decode and multi-token
// steps are the same call (visible-set rule, specification 2.4). Read beside specification section 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_weights.h"
#include "model/taps.h"
#include "model/workspace.h"
#include "ops/ops.h"

namespace pivot {

struct ModelOptions {
  Knobs knobs;
  std::int64_t max_context = 0;      // longest sequence; 0: max_position_embeddings
  std::int32_t max_step_tokens = 0;  // T of the largest step; 0: default_step_tokens()
  std::int32_t max_step_spans = 1;   // sequences in one step
  std::int32_t max_logit_rows = 1;   // rows of logits of one step
};

// Entries that index_select has to choose per query; 0 when the choice would always be "all"
// (specification 2.6).
std::int32_t resolve_index_topk(const ModelConfig& config, const Knobs& knobs, std::int64_t max_context);

// One step on the host side. Spans are sorted by first_token, adjacent, and cover all tokens.
struct Step {
  std::span<const std::int32_t> token_ids;   // [T]; each in [0, vocab_size)
  std::span<const SequenceSpan> spans;       // slot and table name rows of `caches`
  std::span<const std::int32_t> logit_rows;  // ascending token indices that need logits
  std::span<const LayerCacheView> caches;    // one per layer
};

class Model {
 public:
  // Places the weights on the back-end and allocates the workspace; nothing is allocated later.
  // Errors: kUnsupported from Backend::supports; kInvalidArgument for options out of range; kOutOfMemory.
  static Result<std::unique_ptr<Model>> create(std::shared_ptr<const ModelWeights> weights,
                                               std::shared_ptr<Backend> backend, const ModelOptions& options);

  const ModelConfig& config() const { return weights_->config; }
  const ModelWeights& weights() const { return *weights_; }
  const Knobs& knobs() const { return options_.knobs; }
  const ModelOptions& options() const { return options_; }  // with the defaults resolved
  Backend& backend() const { return *backend_; }
  std::int64_t workspace_bytes() const { return workspace_->allocated_bytes(); }
  // Entries that index_select chooses per query (specification 2.6); 0 when every visible entry is attended
  // to at any length up to max_context.
  std::int32_t index_topk() const { return topk_; }

  // Runs one step: cache state advances by the step's tokens, logits of logit_rows appear in logits().
  // Errors: kInvalidArgument for a token id outside the vocabulary or a step larger than the options (nothing
  // has happened); kInternal when the device failed (the state of the step's sequences is undefined).
  Result<> forward(const Step& step, TapSink* taps = nullptr);

  // fp32 [logit_rows][vocab_size] of the last step in the back-end's memory, and a copy of one row to the
  // host.
  const float* logits() const { return workspace_->logits; }
  void read_logits(std::int32_t row, std::span<float> values) const;

 private:
  Model() = default;
  struct Pass;
  Result<> check(const Step& step) const;
  void record(Pass& pass, std::int32_t num_rows);  // the ops of the step, in order
  void attention_block(Pass& pass, std::int32_t layer);
  void moe_block(Pass& pass, std::int32_t layer);

  std::shared_ptr<const ModelWeights> weights_;
  std::shared_ptr<Backend> backend_;
  ModelOptions options_;
  std::uint64_t id_ = 0;  // of this process's models
  std::int32_t topk_ = 0;
  std::vector<float> rope_main_;      // w_i of ratio-0 layers
  std::vector<float> rope_compress_;  // of the others
  std::vector<LayerContext> contexts_;
  std::unique_ptr<Workspace> workspace_;
  std::vector<std::byte> description_;  // host copy of the step's arrays
};

}  // namespace pivot
