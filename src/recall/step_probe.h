// Fidelity of the indexer's selection on a running server: one query of one layer in 1 of N steps.
//
// Stands between the engine and its back-end. A server keeps no full-precision copy of its index keys, so the
// yardstick here is the attention itself: the entries that would get most of it, were all attended to,
// against those that were selected. What is lost by selecting shows; that index keys are rounded shows as far
// as it changes the selection.
//
// Reads wait for the device. A step that is looked into is therefore run op by op even where the back-end
// replays recorded steps (CUDA graphs); all others are handed on whole, to be recorded and replayed as ever.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "ops/forwarding_backend.h"

namespace pivot::recall {

struct StepFidelity {
  std::int32_t layer = 0;
  std::int64_t position = 0;
  std::int64_t visible = 0;   // compressed entries
  std::int64_t selected = 0;  // equals visible where nothing was left out
  double overlap =
      1;  // share of the entries with the most attention (as many as selected) that were selected
  double entry_mass = 1;  // share of all entries' attention that the selected ones get

  bool operator==(const StepFidelity&) const = default;
};

struct StepProbeOptions {
  std::int64_t every_steps = 64;
  // Of wall time, whatever every_steps says: after a measurement of t seconds none is made for t / max_share.
  // What a measurement also costs the steps around it (caches, threads that went to sleep meanwhile) was at
  // most as much again (bench/results/step-probe.json), so that in all it stays below 2 %.
  double max_share = 0.01;
  std::int64_t heads = 2;                                     // looked at in one measurement, in turn
  std::function<void(const StepFidelity&)> on_measured = {};  // on the thread that runs the steps
};

// The wait after a measurement (of a probe, of a canary) that took `busy` seconds, so that measuring takes at
// most `max_share` of the time.
double pause_seconds(double busy_seconds, double max_share);

class StepProbe final : public ForwardingBackend {
 public:
  // `weights` on the host. REQUIRES: every_steps >= 1, 0 < max_share <= 1.
  StepProbe(std::shared_ptr<Backend> inner, std::shared_ptr<const ModelWeights> weights,
            StepProbeOptions options);

  std::uint64_t measured() const { return measured_; }
  double busy_seconds() const { return busy_seconds_; }

  bool replays_steps() const override { return inner().replays_steps(); }
  std::uint64_t replayed_steps() const override { return inner().replayed_steps(); }
  void run_step(const StepKey& key, const std::function<void()>& record) override;
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override;

 private:
  using Clock = std::chrono::steady_clock;
  void measure(const LayerContext& layer, const SequenceSpan& span, const AttentionParams& p);
  void rest_after(Clock::duration busy);

  std::shared_ptr<const ModelWeights> weights_;
  StepProbeOptions options_;
  std::vector<std::int32_t> indexed_layers_;
  std::uint64_t steps_ = 0;
  std::uint64_t turn_ = 0;   // of layers, sequences and heads
  std::int32_t armed_ = -1;  // the layer to look at in this step; -1: none
  Clock::time_point not_before_;
  std::uint64_t measured_ = 0;
  double busy_seconds_ = 0;
};

}  // namespace pivot::recall
