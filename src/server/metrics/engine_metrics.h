// Mirrors the engine's own figures into the metrics.
#pragma once

#include <memory>

#include "engine/engine_stats.h"

namespace pivot {

class Metrics;
struct GrammarStats;

class EngineMetrics {
 public:
  // Sets what is fixed: limits, page bytes, component bytes. `metrics` must outlive this.
  EngineMetrics(Metrics& metrics, const EngineCapacity& capacity);
  ~EngineMetrics();

  // Counters and gauges from a copy of the engine's figures; called before a scrape. From one thread at a
  // time.
  void update(const EngineStats& stats);
  void update(const GrammarStats& stats);
  // One step: what the engine's on_step gives. From the engine's thread.
  void step(const StepRecord& record) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pivot
