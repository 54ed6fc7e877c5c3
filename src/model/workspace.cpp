#include "model/workspace.h"

#include <utility>

namespace pivot {
namespace {

constexpr std::int64_t kAlignmentBytes = 256;  // a CUDA allocation's own alignment
constexpr std::int64_t kDefaultBudgetBytes = std::int64_t{128} << 20;

// Visits every buffer in order: visit(member pointer, bytes). The one list behind both the plan and the
// allocation.
template <class Visit>
void for_each_buffer(const ModelConfig& config, int activation_bytes, const WorkspaceSize& size,
                     Visit&& visit) {
  const std::int64_t tokens = size.tokens;
  const std::int64_t width = config.hidden_size;
  const std::int64_t streams = config.hc_mult;
  const std::int64_t heads = config.num_attention_heads * config.head_dim;
  const std::int64_t index_heads = config.index_n_heads * config.index_head_dim;
  const auto act = [&](Act* Workspace::*member, std::int64_t count) {
    visit(member, count * activation_bytes);
  };
  const auto word = [&](auto Workspace::*member, std::int64_t count) { visit(member, count * 4); };

  word(&Workspace::token_ids, tokens);
  word(&Workspace::positions, tokens);
  word(&Workspace::span_of, tokens);
  visit(&Workspace::spans, size.spans * static_cast<std::int64_t>(sizeof(SequenceSpan)));
  word(&Workspace::logit_rows, size.logit_rows);
  act(&Workspace::h, tokens * streams * width);
  act(&Workspace::x, tokens * width);
  act(&Workspace::out, tokens * width);
  word(&Workspace::post, tokens * streams);
  word(&Workspace::comb, tokens * streams * streams);
  act(&Workspace::qr, tokens * config.q_lora_rank);
  act(&Workspace::kv, tokens * config.head_dim);
  visit(&Workspace::kv_scales, tokens * ((config.nope_head_dim() + 63) / 64));
  act(&Workspace::q, tokens * heads);
  act(&Workspace::o, tokens * heads);
  act(&Workspace::index_q, tokens * index_heads);
  word(&Workspace::index_weights, tokens * config.index_n_heads);
  word(&Workspace::selected, tokens * size.topk);
  word(&Workspace::selected_count, tokens);
  word(&Workspace::expert_ids, tokens * config.num_experts_per_tok);
  word(&Workspace::expert_weights, tokens * config.num_experts_per_tok);
  word(&Workspace::gate_margin, tokens);
  act(&Workspace::final_x, size.logit_rows * width);
  word(&Workspace::logits, size.logit_rows * config.vocab_size);
}

std::int64_t align_up(std::int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

std::int64_t Workspace::planned_bytes(const ModelConfig& config, int activation_bytes,
                                      const WorkspaceSize& size) {
  std::int64_t total = 0;
  for_each_buffer(config, activation_bytes, size,
                  [&](auto, std::int64_t bytes) { total += align_up(bytes); });
  return total;
}

std::int32_t default_step_tokens(const ModelConfig& config, int activation_bytes, std::int32_t topk) {
  for (std::int32_t tokens : {1024, 512})
    if (Workspace::planned_bytes(config, activation_bytes, {tokens, 1, 1, topk}) <= kDefaultBudgetBytes)
      return tokens;
  return 256;
}

Result<std::unique_ptr<Workspace>> Workspace::create(std::shared_ptr<Backend> backend,
                                                     const ModelConfig& config, const WorkspaceSize& size) {
  std::unique_ptr<Workspace> workspace(new Workspace(std::move(backend)));
  const int activation_bytes = workspace->backend_->activation_bytes();
  const std::int64_t total = planned_bytes(config, activation_bytes, size);
  PIVOT_TRY(workspace->memory_, workspace->backend_->allocate(total, "activations of one step"));
  workspace->allocated_bytes_ = total;
  std::byte* next = workspace->memory_;
  for_each_buffer(config, activation_bytes, size, [&](auto member, std::int64_t bytes) {
    using Pointer = std::remove_reference_t<decltype(workspace.get()->*member)>;
    workspace.get()->*member = bytes == 0 ? nullptr : reinterpret_cast<Pointer>(next);
    next += align_up(bytes);
  });
  workspace->step_description_bytes =
      static_cast<std::size_t>(reinterpret_cast<std::byte*>(workspace->h) - workspace->memory_);
  return workspace;
}

Workspace::~Workspace() {
  if (memory_ != nullptr) backend_->release(memory_);
}

}  // namespace pivot
