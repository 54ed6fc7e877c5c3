#include "server/instance.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <thread>

#include "ops/knobs.h"
#include "server/handlers/service.h"
#include "server/handlers/trace.h"
#include "server/metrics/engine_metrics.h"
#include "server/metrics/metrics.h"

namespace pivot::server {
namespace {

constexpr std::chrono::milliseconds kFlushWait{2000};  // for the last responses of a stopping server

void set_identity(Metrics& metrics, const InstanceOptions& options) {
  const Identity& identity = options.identity;
  metrics.set_info(MetricId::kBuildInfo, {identity.version, identity.commit, identity.build_type,
                                          identity.backends, identity.archs});
  metrics.set_info(MetricId::kCheckpointInfo,
                   {options.service.model_names.front(), options.service.fingerprint,
                    identity.checkpoint_format, identity.device});
  for (const KnobInfo& knob : knob_table()) {
    metrics.set_info(MetricId::kKnobInfo,
                     {std::string(knob.name), knob_value(options.engine.knobs, knob.name),
                      std::string(knob.default_value), knob.changes_state ? "true" : "false"});
  }
}

}  // namespace

// In the order in which they depend on each other: the last one is destroyed first.
struct Instance::State {
  std::optional<Tokenizer> tokenizer;
  Metrics metrics;
  std::unique_ptr<Trace> trace;
  std::atomic<EngineMetrics*> step_metrics{nullptr};
  std::unique_ptr<EngineMetrics> engine_metrics;
  std::unique_ptr<GrammarCompiler> grammars;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Service> service;
  std::unique_ptr<http::Server> http;
  bool stopped = false;
};

Instance::Instance(std::unique_ptr<State> state) : state_(std::move(state)) {}
Instance::~Instance() { stop(); }

Result<std::unique_ptr<Instance>> Instance::start(InstanceOptions options) {
  auto state = std::make_unique<State>();
  State* raw_state = state.get();
  state->tokenizer = std::move(options.tokenizer);
  set_identity(state->metrics, options);
  if (!options.trace.empty()) {
    PIVOT_TRY(state->trace, Trace::create(options.trace));
  }
  options.engine.on_step = [raw_state](const StepRecord& record) {
    if (const EngineMetrics* metrics = raw_state->step_metrics.load(std::memory_order_acquire))
      metrics->step(record);
    if (raw_state->trace) raw_state->trace->step(record);
  };
  if (grammars_available()) {
    const std::int64_t vocab_size = options.engine.weights->config.vocab_size;
    PIVOT_TRY(state->grammars, GrammarCompiler::create(*state->tokenizer, options.service.stop_tokens,
                                                       vocab_size, options.grammar_limits));
  }
  PIVOT_TRY(state->engine, Engine::create(std::move(options.engine)));
  state->engine_metrics = std::make_unique<EngineMetrics>(state->metrics, state->engine->capacity());
  state->step_metrics.store(state->engine_metrics.get(), std::memory_order_release);
  state->metrics.on_collect([raw_state] {
    raw_state->engine_metrics->update(raw_state->engine->stats());
    if (raw_state->grammars) raw_state->engine_metrics->update(raw_state->grammars->stats());
  });
  state->metrics.gauge(MetricId::kReady).set(1);
  state->metrics.gauge(MetricId::kDraining).set(0);
  state->service = std::make_unique<Service>(std::move(options.service), *state->engine, *state->tokenizer,
                                             state->grammars.get(), state->metrics);
  if (state->trace) state->service->set_trace(state->trace.get());
  state->service->install(options.http);
  PIVOT_TRY(state->http, http::Server::start(std::move(options.http)));
  return std::unique_ptr<Instance>(new Instance(std::move(state)));
}

Engine& Instance::engine() { return *state_->engine; }
Metrics& Instance::metrics() { return state_->metrics; }
Service& Instance::service() { return *state_->service; }
http::Server& Instance::http() { return *state_->http; }
const Tokenizer& Instance::tokenizer() const { return *state_->tokenizer; }

void Instance::begin_drain() {
  state_->service->set_draining();
  state_->metrics.gauge(MetricId::kReady).set(0);
  state_->metrics.gauge(MetricId::kDraining).set(1);
}

bool Instance::drain(std::chrono::milliseconds timeout) { return state_->engine->drain(timeout); }

void Instance::stop() {
  if (state_->stopped) return;
  state_->stopped = true;
  begin_drain();
  state_->engine->stop();  // every open request gets its last event
  if (state_->grammars) state_->grammars->stop();
  state_->http->stop_accepting();
  const auto deadline = std::chrono::steady_clock::now() + kFlushWait;
  while (state_->http->open_connections() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  state_->service->finish_work();
  state_->http->close();
}

}  // namespace pivot::server
