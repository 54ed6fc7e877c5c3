// A Backend that adds up the time of every operator of another one, by operator and layer.
//
// An operator's time ends when the device has finished it, so on a device that runs ahead of the host the
// sum is that of operators one after the other, not of the overlapped step.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/forwarding_backend.h"

namespace pivot {

struct OperatorTime {
  std::string_view op;      // name of the Backend method
  std::int32_t layer = -1;  // -1: of no layer
  std::int64_t calls = 0;
  double seconds = 0;
};

class TimingBackend final : public ForwardingBackend {
 public:
  explicit TimingBackend(std::shared_ptr<Backend> timed) : ForwardingBackend(std::move(timed)) {}

  // Off at first; while off, calls only pass through.
  void set_timing(bool on) { on_ = on; }
  // In the order of the first calls.
  const std::vector<OperatorTime>& times() const { return times_; }
  double total_seconds() const {
    double total = 0;
    for (const OperatorTime& time : times_) total += time.seconds;
    return total;
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override {
    timed("embed", -1, [&] { inner().embed(batch, p); });
  }
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const HcSeamParams& p) override {
    timed("hc_seam", layer.layer, [&] { inner().hc_seam(layer, knobs, batch, p); });
  }
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override {
    timed("hc_head", -1, [&] { inner().hc_head(config, knobs, batch, p); });
  }
  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override {
    timed("latent", layer.layer, [&] { inner().latent(layer, knobs, batch, p); });
  }
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override {
    timed("query", layer.layer, [&] { inner().query(layer, knobs, batch, p); });
  }
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override {
    timed("index_select", layer.layer, [&] { inner().index_select(layer, knobs, batch, p); });
  }
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override {
    timed("attention", layer.layer, [&] { inner().attention(layer, knobs, batch, p); });
  }
  void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const AttentionOutParams& p) override {
    timed("attention_out", layer.layer, [&] { inner().attention_out(layer, knobs, batch, p); });
  }
  void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const RouteParams& p) override {
    timed("route", layer.layer, [&] { inner().route(layer, knobs, batch, p); });
  }
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override {
    timed("moe", layer.layer, [&] { inner().moe(layer, knobs, batch, p); });
  }
  void logits(const Knobs& knobs, const LogitsParams& p) override {
    timed("logits", -1, [&] { inner().logits(knobs, p); });
  }

 private:
  template <class Call>
  void timed(std::string_view op, std::int32_t layer, const Call& call) {
    if (!on_) return call();
    const auto begin = std::chrono::steady_clock::now();
    call();
    (void)inner().synchronize();  // a device that failed tells so again at the step's end
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    OperatorTime& time = of(op, layer);
    ++time.calls;
    time.seconds += seconds;
  }
  OperatorTime& of(std::string_view op, std::int32_t layer) {
    for (OperatorTime& time : times_)
      if (time.layer == layer && time.op == op) return time;
    return times_.emplace_back(OperatorTime{op, layer, 0, 0.0});
  }

  bool on_ = false;
  std::vector<OperatorTime> times_;
};

}  // namespace pivot
