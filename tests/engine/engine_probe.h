// An engine without its thread: a test turns it by hand, and looks in between at who holds what.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/loop.h"

namespace pivot {

class EngineProbe {
 public:
  static std::unique_ptr<EngineProbe> create(EngineOptions options);
  ~EngineProbe();  // stop()

  Result<RequestId> submit(EngineRequest request, EventSink sink) {
    return loop_->submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id) { loop_->cancel(id); }
  void finish(RequestId id, std::int32_t choice) { loop_->finish(id, choice); }
  void clear_prefix_cache() { loop_->clear_prefix_cache(); }
  bool accepting() const { return loop_->accepting(); }
  // Takes in what was asked for, and runs one step where there is something to compute.
  void turn() { loop_->turn(/*may_wait=*/false); }
  // Every request that is left gets its last events; the disk tier is complete afterwards. Idempotent.
  void stop();

  EngineStats stats() const { return loop_->stats(); }
  // What does not add up, empty where everything does: each page's and slot's references against those who
  // hold it, the free lists, each choice's place against its stage, the queues' counts, the gauges.
  std::string problem() const;

 private:
  void check_pages(std::string& problem) const;
  void check_choices(std::string& problem) const;
  void check_counts(std::string& problem) const;

  std::unique_ptr<Engine::Loop> loop_;
  bool stopped_ = false;
};

}  // namespace pivot
