#include "serve_recall.h"

#include <CLI/CLI.hpp>

#include "base/installation.h"
#include "inputs.h"
#include "ops/ops.h"
#include "recall/canary.h"
#include "recall/step_probe.h"
#include "server/handlers/request_log.h"
#include "server/instance.h"
#include "server/metrics/metrics.h"

namespace pivot::cli {
namespace {

void count(const Metrics& metrics, const recall::StepFidelity& fidelity) {
  const std::string_view depth = recall::distance_label(fidelity.position + 1);
  metrics.histogram(MetricId::kIndexOverlap, {depth}).observe(fidelity.overlap);
  metrics.histogram(MetricId::kIndexMass, {depth}).observe(fidelity.entry_mass);
  metrics.counter(MetricId::kIndexProbes, {depth}).add();
}

void count(const Metrics& metrics, const recall::CanaryResult& result) {
  const std::string_view depth = recall::distance_label(result.distance_tokens);
  metrics.counter(MetricId::kCanaries, {depth, to_string(result.outcome)}).add();
  if (result.outcome != recall::CanaryOutcome::kFailed)
    metrics.gauge(MetricId::kCanarySuccess, {depth}).set(result.share_found);
  if (result.outcome == recall::CanaryOutcome::kFound) return;
  server::LogLine("canary")
      .add("result", std::string(to_string(result.outcome)))
      .add("case", result.id)
      .add("distance_tokens", result.distance_tokens)
      .add("expected", result.expected)
      .add("answer", result.answer)
      .warn();
}

}  // namespace

void add_serve_recall_options(CLI::App& app, ServeRecallOptions& options) {
  app.add_flag("--canary", options.canary,
               "Hide facts in texts and ask for them, at the lowest priority, and count what is found");
  app.add_option("--canary-share", options.canary_share, "Of the time, at most, that canaries run")
      ->capture_default_str();
  app.add_option("--canary-lengths", options.canary_lengths, "Tokens of their prompts")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--canary-text", options.canary_text,
                 "The text to hide facts in, one sentence a line; a shipped excerpt where not given")
      ->type_name("FILE");
  app.add_option("--probe-every", options.probe_every,
                 "Measure the fidelity of the indexer's selection in one step of N; 0: never")
      ->capture_default_str();
}

ServeRecall::ServeRecall(ServeRecallOptions options)
    : options_(std::move(options)), metrics_(std::make_shared<std::atomic<Metrics*>>(nullptr)) {}

ServeRecall::~ServeRecall() { stop(); }

Result<std::shared_ptr<Backend>> ServeRecall::watch(std::shared_ptr<Backend> backend,
                                                    std::shared_ptr<const ModelWeights> weights) {
  if (options_.probe_every == 0) return backend;
  if (options_.probe_every < 0)
    return fail(ErrorCode::kInvalidArgument, "--probe-every is {}; 0 (never) or more is wanted",
                options_.probe_every);
  recall::StepProbeOptions probe;
  probe.every_steps = options_.probe_every;
  probe.on_measured = [metrics = metrics_](const recall::StepFidelity& fidelity) {
    if (const Metrics* to = metrics->load()) count(*to, fidelity);
  };
  return std::make_shared<recall::StepProbe>(std::move(backend), std::move(weights), std::move(probe));
}

Result<> ServeRecall::start(server::Instance& instance, const std::string& model,
                            std::vector<TokenId> stop_tokens) {
  metrics_->store(&instance.metrics());
  if (!options_.canary) return {};
  PIVOT_TRY(const std::filesystem::path excerpt, shared_file("texts/hebrews.txt"));
  recall::CanaryOptions canary;
  PIVOT_TRY(canary.text, read_text(options_.canary_text.empty() ? excerpt.string() : options_.canary_text));
  canary.tokenizer = &instance.tokenizer();
  canary.stop_tokens = std::move(stop_tokens);
  canary.wording = comes_with_pivot(model) ? recall::Wording::kNeedle : recall::Wording::kInstruct;
  canary.lengths = options_.canary_lengths;
  canary.max_share = options_.canary_share;
  canary.on_result = [&metrics = instance.metrics()](const recall::CanaryResult& result) {
    count(metrics, result);
  };
  PIVOT_TRY(canary_, recall::Canary::start(instance.engine(), std::move(canary)));
  return {};
}

void ServeRecall::stop() {
  canary_.reset();
  metrics_->store(nullptr);
}

}  // namespace pivot::cli
