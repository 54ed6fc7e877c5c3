// A back-end that computes as another does, and fails on demand.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "ops/ops.h"

namespace pivot::test {

class FaultyBackend : public Backend {
 public:
  explicit FaultyBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  // Logits of a sequence whose share of a step contains this token id become NaN; -1: none.
  std::atomic<std::int32_t> nan_token{-1};
  // This many of the next steps report a device failure.
  std::atomic<std::int32_t> failing_steps{0};

  std::string_view name() const override { return inner_->name(); }
  DeviceInfo device() const override { return inner_->device(); }
  int activation_bytes() const override { return inner_->activation_bytes(); }
  Result<> supports(const ModelWeights& weights, const Knobs& knobs) const override {
    return inner_->supports(weights, knobs);
  }
  Result<std::byte*> allocate(std::int64_t bytes, std::string_view purpose) override {
    return inner_->allocate(bytes, purpose);
  }
  void release(std::byte* memory) override { inner_->release(memory); }
  void fill(std::byte* memory, int value, std::int64_t bytes) override { inner_->fill(memory, value, bytes); }
  void upload(void* device, const void* host, std::int64_t bytes) override {
    inner_->upload(device, host, bytes);
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    inner_->download(host, device, bytes);
  }
  Result<> synchronize() override {
    if (failing_steps > 0) {
      --failing_steps;
      return fail(ErrorCode::kInternal, "the device failed, as the test asked");
    }
    return inner_->synchronize();
  }
  Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> weights) override {
    return inner_->place(std::move(weights));
  }
  bool replays_steps() const override { return inner_->replays_steps(); }
  void run_step(const StepKey& key, const std::function<void()>& record) override {
    inner_->run_step(key, record);
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override {
    span_is_bad_.assign(static_cast<std::size_t>(batch.num_spans), false);
    span_of_.assign(batch.span_of, batch.span_of + batch.num_tokens);
    for (std::int32_t t = 0; t < batch.num_tokens; ++t)
      if (batch.token_ids[t] == nan_token) span_is_bad_[static_cast<std::size_t>(batch.span_of[t])] = true;
    inner_->embed(batch, p);
  }
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const HcSeamParams& p) override {
    inner_->hc_seam(layer, knobs, batch, p);
  }
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override {
    rows_.assign(p.rows, p.rows + p.num_rows);
    inner_->hc_head(config, knobs, batch, p);
  }
  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override {
    inner_->latent(layer, knobs, batch, p);
  }
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override {
    inner_->query(layer, knobs, batch, p);
  }
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override {
    inner_->index_select(layer, knobs, batch, p);
  }
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override {
    inner_->attention(layer, knobs, batch, p);
  }
  void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const AttentionOutParams& p) override {
    inner_->attention_out(layer, knobs, batch, p);
  }
  void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const RouteParams& p) override {
    inner_->route(layer, knobs, batch, p);
  }
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override {
    inner_->moe(layer, knobs, batch, p);
  }
  void logits(const Knobs& knobs, const LogitsParams& p) override {
    inner_->logits(knobs, p);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      if (span_is_bad_[static_cast<std::size_t>(span_of_[static_cast<std::size_t>(rows_[i])])])
        p.logits[static_cast<std::int64_t>(i) * p.head.rows + 7] = __builtin_nanf("");
  }

 private:
  std::shared_ptr<Backend> inner_;
  std::vector<bool> span_is_bad_;
  std::vector<std::int32_t> span_of_;
  std::vector<std::int32_t> rows_;
};

}  // namespace pivot::test
