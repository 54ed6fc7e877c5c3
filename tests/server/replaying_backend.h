// A CPU back-end that replays steps the way a recorded graph does: the first step of a key keeps the calls it
// makes, later steps of that key repeat them and never ask the model again. What such a step does can then
// only depend on what lies in memory: token ids, positions, spans, page tables.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "ops/forwarding_backend.h"

namespace pivot::test {

class ReplayingBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  bool replays_steps() const override { return true; }
  std::uint64_t replayed_steps() const override { return replayed_; }

  void run_step(const StepKey& key, const std::function<void()>& record) override {
    const auto found = graphs_.find(key);
    if (found != graphs_.end()) {
      for (const Call& call : found->second) call();
      ++replayed_;
      return;
    }
    recording_ = &graphs_[key];
    record();
    recording_ = nullptr;
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override {
    run([this, batch, p] { inner().embed(live(batch), p); });
  }
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const HcSeamParams& p) override {
    run([this, layer, knobs, batch, p] { inner().hc_seam(layer, knobs, live(batch), p); });
  }
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override {
    run([this, &config, knobs, batch, p] { inner().hc_head(config, knobs, live(batch), p); });
  }
  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override {
    run([this, layer, knobs, batch, p] { inner().latent(layer, knobs, live(batch), p); });
  }
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override {
    run([this, layer, knobs, batch, p] { inner().query(layer, knobs, live(batch), p); });
  }
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override {
    run([this, layer, knobs, batch, p] { inner().index_select(layer, knobs, live(batch), p); });
  }
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override {
    run([this, layer, knobs, batch, p] { inner().attention(layer, knobs, live(batch), p); });
  }
  void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const AttentionOutParams& p) override {
    run([this, layer, knobs, batch, p] { inner().attention_out(layer, knobs, live(batch), p); });
  }
  void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const RouteParams& p) override {
    run([this, layer, knobs, batch, p] { inner().route(layer, knobs, live(batch), p); });
  }
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override {
    run([this, layer, knobs, batch, p] { inner().moe(layer, knobs, live(batch), p); });
  }
  void logits(const Knobs& knobs, const LogitsParams& p) override {
    run([this, knobs, p] { inner().logits(knobs, p); });
  }

 private:
  using Call = std::function<void()>;
  struct KeyHash {
    std::size_t operator()(const StepKey& key) const {
      return static_cast<std::size_t>(key.cache ^ (static_cast<std::uint64_t>(key.num_tokens) << 32) ^
                                      static_cast<std::uint64_t>(key.num_logit_rows));
    }
  };

  // The addresses are those of the recorded step; how many sequences share the step is read where they point.
  static StepBatch live(StepBatch batch) {
    batch.num_spans = batch.span_of[batch.num_tokens - 1] + 1;
    batch.host_spans = batch.spans;
    return batch;
  }
  void run(Call call) {
    call();
    if (recording_ != nullptr) recording_->push_back(std::move(call));
  }

  std::unordered_map<StepKey, std::vector<Call>, KeyHash> graphs_;
  std::vector<Call>* recording_ = nullptr;
  std::uint64_t replayed_ = 0;
};

}  // namespace pivot::test
