// The one table of every metric that `pivot serve` exposes: name, type, unit, labels, buckets, meaning.
//
// Registry, documentation (docs/metrics.md), dashboard and the tests of rules and queries are made from it.
// Label sets are bounded: a label either lists its values here, or is set by the program once at start
// (identity). Nothing that a client sends becomes a label value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pivot {

enum class MetricId : std::uint8_t {
  // Requests.
  kRequestsReceived,
  kRequests,
  kRequestsInFlight,
  kRequestDuration,
  kRequestPromptTokens,
  kRequestGeneratedTokens,
  // Latency.
  kTimeToFirstToken,
  kInterToken,
  kRequestQueue,
  kRequestPrefill,
  kRequestDecode,
  // Tokens.
  kPromptTokens,
  kGeneratedTokens,
  kPrefillTokens,
  // Engine.
  kSequencesRunning,
  kSequencesPrefilling,
  kRequestsWaiting,
  kSequencesLimit,
  kContextLimit,
  kSteps,
  kFailedSteps,
  kStepTime,
  kStepDuration,
  kStepSequences,
  kStepTokens,
  kPreemptions,
  kPreemptedBytes,
  kGraphReplays,
  // Structured output.
  kGrammars,
  kGrammarsWaiting,
  kGrammarCompile,
  kGrammarMasks,
  kGrammarMaskTime,
  // Cache.
  kCachePages,
  kCachePageBytes,
  kCacheComponentBytes,
  kCacheComponentUsedBytes,
  kPrefixQueries,
  kPrefixQueryTokens,
  kPrefixHitTokens,
  kPrefixInsertions,
  kPrefixEvictions,
  kPrefixEntries,
  kPrefixHostBytes,
  // Disk tier.
  kDiskHits,
  kDiskHitTokens,
  kDiskWrites,
  kDiskEvictions,
  kDiskDamaged,
  kDiskEntries,
  kDiskBytes,
  // HTTP.
  kHttpRequests,
  kHttpDuration,
  kHttpConnections,
  kHttpConnectionsRefused,
  // Identity.
  kBuildInfo,
  kCheckpointInfo,
  kKnobInfo,
  kReady,
  kDraining,
  // Recall.
  kIndexOverlap,
  kIndexMass,
  kIndexProbes,
  kCanaries,
  kCanarySuccess,
  // Process.
  kProcessStart,
  kProcessCpu,
  kProcessResident,
  kProcessOpenFiles,
};

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };
std::string_view to_string(MetricType type);  // "counter", "gauge", "histogram"

struct LabelSpec {
  std::string_view name;
  // Every value it can have; empty: set by the program at start, one text per series.
  std::span<const std::string_view> values;
};

struct MetricSpec {
  MetricId id;
  std::string_view section;  // "requests", "latency", ...: the rows of the dashboard
  std::string_view name;     // "pivot_requests_total"
  MetricType type;
  std::string_view unit;  // "seconds", "bytes", "tokens", ...: what one unit of the value is
  std::span<const LabelSpec> labels;
  std::span<const double> buckets;  // of a histogram; upper bounds, inclusive, +Inf left out
  // Every combination of the labels' values exists from the start and reads 0. Not so where most never occur.
  bool all_series;
  std::string_view help;  // one sentence or two; also says how it is measured
};

// In the order of MetricId.
std::span<const MetricSpec> metric_table();
const MetricSpec& metric(MetricId id);

// {"metrics": [{section, name, type, unit, labels: [{name, values}], buckets, help}]}
std::string metric_table_json();
// docs/metrics.md.
std::string metric_table_markdown();

// ---- how a request ends ----

// received = finished + aborted + failed + refused + in flight, always.
enum class RequestOutcome : std::uint8_t { kFinished, kAborted, kFailed, kRefused };
std::string_view to_string(RequestOutcome outcome);  // "finished", "aborted", "failed", "refused"

// Why, and with that the outcome. A request of several choices ends once, by the worst of them.
enum class RequestEnd : std::uint8_t {
  // finished
  kStop,       // a stop token or a stop string
  kLength,     // max_tokens, or the context is full
  kToolCalls,  // the answer ends with tool calls
  // aborted
  kClientGone,
  kCancelled,  // through the API
  kShutdown,   // the drain's time was up
  // failed
  kTimeout,
  kComputation,  // NaN, a device error
  kInternal,     // anything else that is not the client's doing
  // refused: before any computation
  kInvalid,        // malformed, out of range
  kUnsupported,    // well formed, but not something that this server does
  kUnauthorized,   // no key, a wrong key, no permission
  kNotFound,       // another model's name
  kTooLarge,       // the body
  kContextLength,  // more tokens than the context holds
  kCapacity,       // cannot run even alone
  kQueueFull,      // the queue, or the client's share of it
  kNotReady,       // loading or draining
};
inline constexpr int kNumRequestEnds = static_cast<int>(RequestEnd::kNotReady) + 1;
std::string_view to_string(RequestEnd end);  // "stop", "client_gone", ...: the label `reason`
RequestOutcome outcome_of(RequestEnd end);

}  // namespace pivot
