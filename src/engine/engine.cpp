#include "engine/engine.h"

#include <utility>

#include "engine/loop.h"

namespace pivot {

Engine::Engine(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  PIVOT_TRY(std::unique_ptr<Loop> loop, Loop::create(std::move(options)));
  return std::unique_ptr<Engine>(new Engine(std::move(loop)));
}

const ModelConfig& Engine::config() const { return loop_->config(); }
const EngineOptions& Engine::options() const { return loop_->options(); }
const EngineCapacity& Engine::capacity() const { return loop_->capacity(); }
Result<RequestId> Engine::submit(EngineRequest request, EventSink sink) {
  return loop_->submit(std::move(request), std::move(sink));
}
void Engine::cancel(RequestId id) { loop_->cancel(id); }
void Engine::finish(RequestId id, std::int32_t choice) { loop_->finish(id, choice); }
bool Engine::drain(std::chrono::milliseconds timeout) { return loop_->drain(timeout); }
bool Engine::accepting() const { return loop_->accepting(); }
void Engine::stop() { loop_->stop(); }
EngineStats Engine::stats() const { return loop_->stats(); }
void Engine::clear_prefix_cache() { loop_->clear_prefix_cache(); }
std::uint64_t Engine::heartbeat() const { return loop_->heartbeat(); }

}  // namespace pivot
