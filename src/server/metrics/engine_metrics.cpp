#include "server/metrics/engine_metrics.h"

#include <string_view>

#include "server/metrics/metrics.h"
#include "text/grammar/grammar.h"

namespace pivot {
namespace {

// Follows an absolute figure that only rises.
class Mirror {
 public:
  explicit Mirror(Counter counter) : counter_(counter) {}
  void follow(double value) {
    if (value <= seen_) return;
    counter_.add(value - seen_);
    seen_ = value;
  }
  void follow(std::uint64_t value) { follow(static_cast<double>(value)); }

 private:
  Counter counter_;
  double seen_ = 0;
};

struct PoolGauges {
  PoolGauges(const Metrics& metrics, std::string_view pool)
      : used(metrics.gauge(MetricId::kCachePages, {pool, "used"})),
        evictable(metrics.gauge(MetricId::kCachePages, {pool, "evictable"})),
        free(metrics.gauge(MetricId::kCachePages, {pool, "free"})) {}
  void set(const PoolUse& use) const {
    used.set(static_cast<double>(use.used));
    evictable.set(static_cast<double>(use.cached));
    free.set(static_cast<double>(use.free));
  }
  Gauge used;
  Gauge evictable;
  Gauge free;
};

struct StepSeries {
  Counter count;
  Histogram duration;
};

}  // namespace

struct EngineMetrics::State {
  explicit State(Metrics& owner)
      : metrics(owner),
        pools{PoolGauges(metrics, "slots"), PoolGauges(metrics, to_string(PagePool::kRatio4)),
              PoolGauges(metrics, to_string(PagePool::kRatio128))},
        steps{step_series("decode"), step_series("prefill"), step_series("mixed")},
        step_sequences(metrics.histogram(MetricId::kStepSequences)),
        step_tokens(metrics.histogram(MetricId::kStepTokens)) {}

  Mirror mirror(MetricId id, std::initializer_list<std::string_view> labels = {}) const {
    return Mirror(metrics.counter(id, labels));
  }
  StepSeries step_series(std::string_view kind) const {
    return {metrics.counter(MetricId::kSteps, {kind}), metrics.histogram(MetricId::kStepDuration, {kind})};
  }
  void set(MetricId id, double value) const { metrics.gauge(id).set(value); }

  Metrics& metrics;
  PoolGauges pools[1 + kNumPagePools];
  StepSeries steps[3];
  Histogram step_sequences;
  Histogram step_tokens;

  Mirror computed = mirror(MetricId::kPromptTokens, {"computed"});
  Mirror memory = mirror(MetricId::kPromptTokens, {"memory"});
  Mirror disk = mirror(MetricId::kPromptTokens, {"disk"});
  Mirror generated = mirror(MetricId::kGeneratedTokens);
  Mirror prefill = mirror(MetricId::kPrefillTokens);
  Mirror failed_steps = mirror(MetricId::kFailedSteps);
  Mirror schedule_seconds = mirror(MetricId::kStepTime, {"schedule"});
  Mirror forward_seconds = mirror(MetricId::kStepTime, {"forward"});
  Mirror sample_seconds = mirror(MetricId::kStepTime, {"sample"});
  Mirror preemptions_kept = mirror(MetricId::kPreemptions, {"kept"});
  Mirror preemptions_dropped = mirror(MetricId::kPreemptions, {"dropped"});
  Mirror graph_replays = mirror(MetricId::kGraphReplays);
  Mirror prefix_hits = mirror(MetricId::kPrefixQueries, {"hit"});
  Mirror prefix_misses = mirror(MetricId::kPrefixQueries, {"miss"});
  Mirror prefix_query_tokens = mirror(MetricId::kPrefixQueryTokens);
  Mirror prefix_hit_tokens = mirror(MetricId::kPrefixHitTokens);
  Mirror prefix_insertions = mirror(MetricId::kPrefixInsertions);
  Mirror prefix_evictions = mirror(MetricId::kPrefixEvictions);
  Mirror disk_hits = mirror(MetricId::kDiskHits);
  Mirror disk_hit_tokens = mirror(MetricId::kDiskHitTokens);
  Mirror disk_writes = mirror(MetricId::kDiskWrites, {"ok"});
  Mirror disk_write_failures = mirror(MetricId::kDiskWrites, {"failed"});
  Mirror disk_skipped_writes = mirror(MetricId::kDiskWrites, {"skipped"});
  Mirror disk_evictions = mirror(MetricId::kDiskEvictions);
  Mirror disk_damaged = mirror(MetricId::kDiskDamaged);
  Mirror grammars_compiled = mirror(MetricId::kGrammars, {"compiled"});
  Mirror grammars_cached = mirror(MetricId::kGrammars, {"cached"});
  Mirror grammars_refused = mirror(MetricId::kGrammars, {"refused"});
  Mirror grammars_timed_out = mirror(MetricId::kGrammars, {"timed_out"});
  Mirror grammar_compile_seconds = mirror(MetricId::kGrammarCompile);
  Mirror grammar_masks = mirror(MetricId::kGrammarMasks);
  Mirror grammar_mask_seconds = mirror(MetricId::kGrammarMaskTime);
};

EngineMetrics::EngineMetrics(Metrics& metrics, const EngineCapacity& capacity)
    : state_(std::make_unique<State>(metrics)) {
  state_->set(MetricId::kSequencesLimit, capacity.max_sequences);
  state_->set(MetricId::kContextLimit, static_cast<double>(capacity.max_context));
  metrics.gauge(MetricId::kCachePageBytes, {"slots"}).set(static_cast<double>(capacity.slot_bytes));
  for (int pool = 0; pool < kNumPagePools; ++pool) {
    metrics.gauge(MetricId::kCachePageBytes, {to_string(static_cast<PagePool>(pool))})
        .set(static_cast<double>(capacity.page_bytes[static_cast<std::size_t>(pool)]));
  }
  for (int component = 0; component < kNumComponents; ++component) {
    metrics.gauge(MetricId::kCacheComponentBytes, {to_string(static_cast<Component>(component))})
        .set(static_cast<double>(capacity.component_bytes[static_cast<std::size_t>(component)]));
  }
}

EngineMetrics::~EngineMetrics() = default;

void EngineMetrics::update(const EngineStats& stats) {
  State& state = *state_;
  state.set(MetricId::kSequencesRunning, stats.running);
  state.set(MetricId::kSequencesPrefilling, stats.prefilling);
  state.set(MetricId::kRequestsWaiting, stats.waiting);
  state.set(MetricId::kPreemptedBytes, static_cast<double>(stats.preempted_bytes));
  state.pools[0].set(stats.slots);
  for (int pool = 0; pool < kNumPagePools; ++pool)
    state.pools[1 + pool].set(stats.pages[static_cast<std::size_t>(pool)]);
  for (int component = 0; component < kNumComponents; ++component) {
    state.metrics.gauge(MetricId::kCacheComponentUsedBytes, {to_string(static_cast<Component>(component))})
        .set(static_cast<double>(stats.used_bytes[static_cast<std::size_t>(component)]));
  }

  state.computed.follow(stats.prompt_tokens - stats.cached_tokens);
  state.memory.follow(stats.cached_tokens - stats.disk.hit_tokens);
  state.disk.follow(stats.disk.hit_tokens);
  state.generated.follow(stats.generated_tokens);
  state.prefill.follow(stats.computed_tokens);
  state.failed_steps.follow(stats.failed_steps);
  state.schedule_seconds.follow(stats.schedule_seconds);
  state.forward_seconds.follow(stats.step_seconds);
  state.sample_seconds.follow(stats.sample_seconds);
  state.preemptions_kept.follow(stats.preemptions - stats.recomputed_preemptions);
  state.preemptions_dropped.follow(stats.recomputed_preemptions);
  state.graph_replays.follow(stats.graph_replays);

  state.prefix_hits.follow(stats.prefix.hits);
  state.prefix_misses.follow(stats.prefix.queries - stats.prefix.hits);
  state.prefix_query_tokens.follow(stats.prefix.query_tokens);
  state.prefix_hit_tokens.follow(stats.prefix.hit_tokens);
  state.prefix_insertions.follow(stats.prefix.insertions);
  state.prefix_evictions.follow(stats.prefix.evictions);
  state.set(MetricId::kPrefixEntries, static_cast<double>(stats.prefix.entries));
  state.set(MetricId::kPrefixHostBytes, static_cast<double>(stats.prefix.host_bytes));

  state.disk_hits.follow(stats.disk.hits);
  state.disk_hit_tokens.follow(stats.disk.hit_tokens);
  state.disk_writes.follow(stats.disk.writes);
  state.disk_write_failures.follow(stats.disk.write_failures);
  state.disk_skipped_writes.follow(stats.disk.skipped_writes);
  state.disk_evictions.follow(stats.disk.evictions);
  state.disk_damaged.follow(stats.disk.damaged);
  state.set(MetricId::kDiskEntries, static_cast<double>(stats.disk.entries));
  state.set(MetricId::kDiskBytes, static_cast<double>(stats.disk.bytes));
}

void EngineMetrics::update(const GrammarStats& stats) {
  state_->grammars_compiled.follow(stats.compiled);
  state_->grammars_cached.follow(stats.cached);
  state_->grammars_refused.follow(stats.refused - stats.timed_out);
  state_->grammars_timed_out.follow(stats.timed_out);
  state_->set(MetricId::kGrammarsWaiting, static_cast<double>(stats.waiting));
  state_->grammar_compile_seconds.follow(stats.compile_seconds);
  state_->grammar_masks.follow(stats.masks);
  state_->grammar_mask_seconds.follow(stats.mask_seconds);
}

void EngineMetrics::step(const StepRecord& record) const {
  const std::int32_t tokens = record.decode_tokens + record.prefill_tokens;
  const StepSeries& series = state_->steps[record.prefill_tokens == 0  ? 0
                                           : record.decode_tokens == 0 ? 1
                                                                       : 2];
  series.count.add();
  series.duration.observe(record.schedule_seconds + record.forward_seconds + record.sample_seconds);
  state_->step_sequences.observe(record.sequences);
  state_->step_tokens.observe(tokens);
}

}  // namespace pivot
