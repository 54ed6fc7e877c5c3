// A Backend that hands every call to another one: the base of what watches or disturbs a back-end.
//
// Steps are not replayed through it unless a derived class hands run_step on: who watches operators must see
// each of their calls.
#pragma once

#include <memory>
#include <utility>

#include "ops/ops.h"

namespace pivot {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

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
  Result<> synchronize() override { return inner_->synchronize(); }
  Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> weights) override {
    return inner_->place(std::move(weights));
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override { inner_->embed(batch, p); }
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const HcSeamParams& p) override {
    inner_->hc_seam(layer, knobs, batch, p);
  }
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override {
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
  void logits(const Knobs& knobs, const LogitsParams& p) override { inner_->logits(knobs, p); }

 protected:
  Backend& inner() { return *inner_; }
  const Backend& inner() const { return *inner_; }

 private:
  std::shared_ptr<Backend> inner_;
};

}  // namespace pivot
