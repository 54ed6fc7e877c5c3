#include "server/metrics/metric_table.h"

#include <array>

#include "base/check.h"

namespace pivot {
namespace {

// ---- label sets ----

constexpr std::array<std::string_view, 6> kEndpoints = {"chat_completions", "completions", "responses",
                                                        "messages",         "generate",    "other"};
constexpr std::array<std::string_view, 4> kOutcomes = {"finished", "aborted", "failed", "refused"};
constexpr std::array<std::string_view, kNumRequestEnds> kReasons = {
    "stop",      "length",      "tool_calls",     "client_gone", "cancelled",   "shutdown",
    "timeout",   "computation", "internal",       "invalid",     "unsupported", "unauthorized",
    "not_found", "too_large",   "context_length", "capacity",    "queue_full",  "not_ready"};
constexpr std::array<std::string_view, 3> kSources = {"computed", "memory", "disk"};
constexpr std::array<std::string_view, 3> kStepKinds = {"decode", "prefill", "mixed"};
constexpr std::array<std::string_view, 3> kStepParts = {"schedule", "forward", "sample"};
constexpr std::array<std::string_view, 2> kPreemptionKinds = {"kept", "dropped"};
constexpr std::array<std::string_view, 3> kPools = {"slots", "ratio4", "ratio128"};
constexpr std::array<std::string_view, 3> kPageStates = {"used", "evictable", "free"};
constexpr std::array<std::string_view, 5> kComponents = {"window", "compressed", "index_keys", "compressor",
                                                         "index_compressor"};
constexpr std::array<std::string_view, 2> kPrefixResults = {"hit", "miss"};
constexpr std::array<std::string_view, 3> kWriteResults = {"ok", "failed", "skipped"};
constexpr std::array<std::string_view, 4> kGrammarResults = {"compiled", "cached", "refused", "timed_out"};
constexpr std::array<std::string_view, 21> kRoutes = {  //
    "/",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/models",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/health",
    "/health_generate",
    "/ready",
    "/metrics",
    "/version",
    "/ping",
    "/v1/loads",
    "/flush_cache",
    "/get_model_info",
    "/get_server_info",
    "/page",
    "other"};
constexpr std::array<std::string_view, 8> kMethods = {"GET",    "HEAD",    "POST",  "PUT",
                                                      "DELETE", "OPTIONS", "PATCH", "other"};
constexpr std::array<std::string_view, 24> kStatuses = {
    "200", "204", "301", "304", "400", "401", "403", "404", "405", "408", "409", "411",
    "413", "414", "415", "422", "429", "431", "499", "500", "501", "503", "504", "other"};
constexpr std::array<std::string_view, 12> kDepths = {"1k",  "2k",   "4k",   "8k",   "16k", "32k",
                                                      "64k", "128k", "256k", "512k", "1m",  "other"};
constexpr std::array<std::string_view, 3> kCanaryResults = {"found", "lost", "failed"};

constexpr LabelSpec kEndpointLabel[] = {{"endpoint", kEndpoints}};
constexpr LabelSpec kEndLabels[] = {{"outcome", kOutcomes}, {"reason", kReasons}};
constexpr LabelSpec kOutcomeLabel[] = {{"outcome", kOutcomes}};
constexpr LabelSpec kSourceLabel[] = {{"source", kSources}};
constexpr LabelSpec kStepKindLabel[] = {{"kind", kStepKinds}};
constexpr LabelSpec kStepPartLabel[] = {{"part", kStepParts}};
constexpr LabelSpec kPreemptionLabel[] = {{"state", kPreemptionKinds}};
constexpr LabelSpec kPoolLabel[] = {{"pool", kPools}};
constexpr LabelSpec kPageLabels[] = {{"pool", kPools}, {"state", kPageStates}};
constexpr LabelSpec kComponentLabel[] = {{"component", kComponents}};
constexpr LabelSpec kPrefixResultLabel[] = {{"result", kPrefixResults}};
constexpr LabelSpec kWriteResultLabel[] = {{"result", kWriteResults}};
constexpr LabelSpec kGrammarResultLabel[] = {{"result", kGrammarResults}};
constexpr LabelSpec kHttpLabels[] = {{"route", kRoutes}, {"method", kMethods}, {"status", kStatuses}};
constexpr LabelSpec kRouteLabel[] = {{"route", kRoutes}};
constexpr LabelSpec kBuildLabels[] = {
    {"version", {}}, {"commit", {}}, {"build_type", {}}, {"backends", {}}, {"archs", {}}};
constexpr LabelSpec kCheckpointLabels[] = {
    {"model", {}}, {"fingerprint", {}}, {"format", {}}, {"device", {}}};
constexpr LabelSpec kKnobLabels[] = {{"knob", {}}, {"value", {}}, {"default", {}}, {"changes_state", {}}};
constexpr LabelSpec kDepthLabel[] = {{"depth", kDepths}};
constexpr LabelSpec kCanaryLabels[] = {{"depth", kDepths}, {"result", kCanaryResults}};

// ---- buckets ----

// A token of a small model takes less than a millisecond, a first token after 1M tokens minutes.
constexpr double kTokenSeconds[] = {0.0001, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004,
                                    0.005,  0.0075, 0.01,   0.015, 0.02,   0.03,  0.04,  0.05,
                                    0.075,  0.1,    0.15,   0.25,  0.5,    1,     2.5,   5};
constexpr double kStepSeconds[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015,
                                   0.02,   0.03,   0.05,   0.075, 0.1,   0.2,   0.5,   1,      2,    5};
constexpr double kFirstTokenSeconds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                         0.1,   0.15,  0.25,  0.5,  0.75, 1,    2.5,  5,
                                         7.5,   10,    20,    40,   80,   160,  640};
constexpr double kPhaseSeconds[] = {0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,    2.5,
                                    5,     10,    15,    30,   60,    120,  240, 480,  960, 1920, 7680};
constexpr double kTokenCounts[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                   2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
constexpr double kPowersOfTwo[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kHttpSeconds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                   0.5,    1,     2.5,    5,     10,   30,    60,   300};
constexpr double kCompileSeconds[] = {0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1,
                                      0.25,   0.5,    1,     2.5,   5,    10};
constexpr double kShares[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.999};

constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kHistogram = MetricType::kHistogram;

// ---- the table ----

using Id = MetricId;
// An entry is its columns on one line and its meaning below.
// clang-format off
constexpr MetricSpec kTable[] = {
    {Id::kRequestsReceived, "requests", "pivot_requests_received_total", kCounter, "requests", kEndpointLabel, {}, true,
     "Requests for a completion that arrived, malformed ones too."},
    {Id::kRequests, "requests", "pivot_requests_total", kCounter, "requests", kEndLabels, {}, false,
     "Requests that ended, by outcome and reason. Received = finished + aborted + failed + refused + in "
     "flight, at any time; a request of several choices counts once."},
    {Id::kRequestsInFlight, "requests", "pivot_requests_in_flight", kGauge, "requests", {}, {}, true,
     "Requests that were received and have not ended: being read, waiting, running or being sent."},
    {Id::kRequestDuration, "requests", "pivot_request_duration_seconds", kHistogram, "seconds", kOutcomeLabel, kPhaseSeconds, true,
     "From the arrival of a request to its end, aborted and refused ones too."},
    {Id::kRequestPromptTokens, "requests", "pivot_request_prompt_tokens", kHistogram, "tokens", {}, kTokenCounts, true,
     "Prompt tokens of a request that started, cached ones included."},
    {Id::kRequestGeneratedTokens, "requests", "pivot_request_generated_tokens", kHistogram, "tokens", {}, kTokenCounts, true,
     "Tokens generated for a request that started, all its choices, whatever its end."},
    {Id::kTimeToFirstToken, "latency", "pivot_time_to_first_token_seconds", kHistogram, "seconds", {}, kFirstTokenSeconds, true,
     "From the arrival of a request to its first token: queue and prefill."},
    {Id::kInterToken, "latency", "pivot_inter_token_seconds", kHistogram, "seconds", {}, kTokenSeconds, true,
     "Between two tokens of the same choice, as they leave the engine."},
    {Id::kRequestQueue, "latency", "pivot_request_queue_seconds", kHistogram, "seconds", {}, kPhaseSeconds, true,
     "From queued to the start of prefill."},
    {Id::kRequestPrefill, "latency", "pivot_request_prefill_seconds", kHistogram, "seconds", {}, kPhaseSeconds, true,
     "From the start of prefill to the first token, of requests that had one."},
    {Id::kRequestDecode, "latency", "pivot_request_decode_seconds", kHistogram, "seconds", {}, kPhaseSeconds, true,
     "From the first to the last token, of requests that had one."},
    {Id::kPromptTokens, "tokens", "pivot_prompt_tokens_total", kCounter, "tokens", kSourceLabel, {}, true,
     "Prompt tokens of started requests by where their state came from; the sources add up to the "
     "prompts. A prompt of several choices counts once."},
    {Id::kGeneratedTokens, "tokens", "pivot_generated_tokens_total", kCounter, "tokens", {}, {}, true,
     "Tokens generated, those after a stop string and those of aborted requests included."},
    {Id::kPrefillTokens, "tokens", "pivot_prefill_tokens_total", kCounter, "tokens", {}, {}, true,
     "Prompt tokens that steps computed; higher than the computed source where pre-emption repeated "
     "some."},
    {Id::kSequencesRunning, "engine", "pivot_sequences_running", kGauge, "sequences", {}, {}, true,
     "Choices that hold a slot."},
    {Id::kSequencesPrefilling, "engine", "pivot_sequences_prefilling", kGauge, "sequences", {}, {}, true,
     "Running choices that still compute their prompt."},
    {Id::kRequestsWaiting, "engine", "pivot_requests_waiting", kGauge, "requests", {}, {}, true,
     "Requests in the queue, pre-empted choices included."},
    {Id::kSequencesLimit, "engine", "pivot_sequences_limit", kGauge, "sequences", {}, {}, true,
     "Choices that can run at the same time."},
    {Id::kContextLimit, "engine", "pivot_context_limit_tokens", kGauge, "tokens", {}, {}, true,
     "Tokens of prompt and answer that one sequence can have."},
    {Id::kSteps, "engine", "pivot_steps_total", kCounter, "steps", kStepKindLabel, {}, true,
     "Forward passes by what they held: decode tokens, prompt tokens, or both."},
    {Id::kFailedSteps, "engine", "pivot_failed_steps_total", kCounter, "steps", {}, {}, true,
     "Forward passes in which the device reported an error."},
    {Id::kStepTime, "engine", "pivot_step_seconds_total", kCounter, "seconds", kStepPartLabel, {}, true,
     "Time of the engine's loop: scheduling and events, forward passes, sampling."},
    {Id::kStepDuration, "engine", "pivot_step_duration_seconds", kHistogram, "seconds", kStepKindLabel, kStepSeconds, true,
     "One step, from its scheduling to its last event."},
    {Id::kStepSequences, "engine", "pivot_step_sequences", kHistogram, "sequences", {}, kPowersOfTwo, true,
     "Batch size: sequences of a step."},
    {Id::kStepTokens, "engine", "pivot_step_tokens", kHistogram, "tokens", {}, kPowersOfTwo, true,
     "Tokens of a step, prompt and decode."},
    {Id::kPreemptions, "engine", "pivot_preemptions_total", kCounter, "preemptions", kPreemptionLabel, {}, true,
     "Choices that gave up their slot for another, by what became of their state."},
    {Id::kPreemptedBytes, "engine", "pivot_preempted_bytes", kGauge, "bytes", {}, {}, true,
     "Host memory that holds the state of pre-empted choices."},
    {Id::kGraphReplays, "engine", "pivot_graph_replays_total", kCounter, "steps", {}, {}, true,
     "Steps that replayed a recorded graph; 0 where the device has none."},
    {Id::kGrammars, "structured output", "pivot_grammars_total", kCounter, "grammars", kGrammarResultLabel, {}, true,
     "Grammars that requests asked for: compiled, taken from the cache, refused, or given up because the time "
     "for compiling was up."},
    {Id::kGrammarsWaiting, "structured output", "pivot_grammars_waiting", kGauge, "grammars", {}, {}, true,
     "Grammars that are being compiled or wait for it."},
    {Id::kGrammarCompile, "structured output", "pivot_grammar_compile_seconds_total", kCounter, "seconds", {}, {}, true,
     "Time spent compiling grammars."},
    {Id::kGrammarMasks, "structured output", "pivot_grammar_masks_total", kCounter, "masks", {}, {}, true,
     "Token masks computed: one per token of a constrained answer."},
    {Id::kGrammarMaskTime, "structured output", "pivot_grammar_mask_seconds_total", kCounter, "seconds", {}, {}, true,
     "Time spent computing token masks."},
    {Id::kCachePages, "cache", "pivot_cache_pages", kGauge, "pages", kPageLabels, {}, true,
     "Pages of a pool by owner: a running sequence, the prefix cache alone (given back when needed), "
     "nobody. A slot holds a sequence's windows and compressor states; a ratio-4 page compressed rows "
     "and index keys, a ratio-128 page compressed rows."},
    {Id::kCachePageBytes, "cache", "pivot_cache_page_bytes", kGauge, "bytes", kPoolLabel, {}, true,
     "Size of one page of a pool; 0 where no layer uses it."},
    {Id::kCacheComponentBytes, "cache", "pivot_cache_component_bytes", kGauge, "bytes", kComponentLabel, {}, true,
     "Memory allocated for a kind of state, padding left out."},
    {Id::kCacheComponentUsedBytes, "cache", "pivot_cache_component_used_bytes", kGauge, "bytes", kComponentLabel, {}, true,
     "Of it, in slots and pages that a sequence or the prefix cache holds."},
    {Id::kPrefixQueries, "cache", "pivot_prefix_cache_queries_total", kCounter, "requests", kPrefixResultLabel, {}, true,
     "Requests that looked for their prompt in the prefix cache."},
    {Id::kPrefixQueryTokens, "cache", "pivot_prefix_cache_query_tokens_total", kCounter, "tokens", {}, {}, true,
     "Prompt tokens of these requests."},
    {Id::kPrefixHitTokens, "cache", "pivot_prefix_cache_hit_tokens_total", kCounter, "tokens", {}, {}, true,
     "Of these, taken from the cache, memory and disk."},
    {Id::kPrefixInsertions, "cache", "pivot_prefix_cache_insertions_total", kCounter, "entries", {}, {}, true,
     "Prefixes that entered the cache."},
    {Id::kPrefixEvictions, "cache", "pivot_prefix_cache_evictions_total", kCounter, "entries", {}, {}, true,
     "Prefixes that left it to make room."},
    {Id::kPrefixEntries, "cache", "pivot_prefix_cache_entries", kGauge, "entries", {}, {}, true,
     "Prefixes in the cache."},
    {Id::kPrefixHostBytes, "cache", "pivot_prefix_cache_host_bytes", kGauge, "bytes", {}, {}, true,
     "Host memory that holds the windows and compressor states of cached prefixes."},
    {Id::kDiskHits, "disk tier", "pivot_disk_cache_hits_total", kCounter, "requests", {}, {}, true,
     "Requests that took part of their prompt from disk."},
    {Id::kDiskHitTokens, "disk tier", "pivot_disk_cache_hit_tokens_total", kCounter, "tokens", {}, {}, true,
     "Prompt tokens taken from disk."},
    {Id::kDiskWrites, "disk tier", "pivot_disk_cache_writes_total", kCounter, "entries", kWriteResultLabel, {}, true,
     "Entries written, not written for an error, or not written because the writer was busy."},
    {Id::kDiskEvictions, "disk tier", "pivot_disk_cache_evictions_total", kCounter, "entries", {}, {}, true,
     "Entries removed to make room."},
    {Id::kDiskDamaged, "disk tier", "pivot_disk_cache_damaged_total", kCounter, "entries", {}, {}, true,
     "Entries removed because their checksum or manifest did not hold; none was used."},
    {Id::kDiskEntries, "disk tier", "pivot_disk_cache_entries", kGauge, "entries", {}, {}, true,
     "Entries on disk."},
    {Id::kDiskBytes, "disk tier", "pivot_disk_cache_bytes", kGauge, "bytes", {}, {}, true,
     "Their size on disk."},
    {Id::kHttpRequests, "http", "pivot_http_requests_total", kCounter, "requests", kHttpLabels, {}, false,
     "HTTP requests that were answered; 499 where the client was gone first."},
    {Id::kHttpDuration, "http", "pivot_http_request_duration_seconds", kHistogram, "seconds", kRouteLabel, kHttpSeconds, false,
     "From a request's header to the last byte of its answer."},
    {Id::kHttpConnections, "http", "pivot_http_connections", kGauge, "connections", {}, {}, true,
     "Open connections."},
    {Id::kHttpConnectionsRefused, "http", "pivot_http_connections_refused_total", kCounter, "connections", {}, {}, true,
     "Connections closed at once because too many were open."},
    {Id::kBuildInfo, "identity", "pivot_build_info", kGauge, "", kBuildLabels, {}, false,
     "Always 1: the program."},
    {Id::kCheckpointInfo, "identity", "pivot_checkpoint_info", kGauge, "", kCheckpointLabels, {}, false,
     "Always 1: the checkpoint that is served, by the fingerprint that inspect prints, and the device."},
    {Id::kKnobInfo, "identity", "pivot_knob_info", kGauge, "", kKnobLabels, {}, false,
     "Always 1, one series for each knob: its value, its default, and whether cached state depends on "
     "it."},
    {Id::kReady, "identity", "pivot_ready", kGauge, "", {}, {}, true,
     "1 while the server takes requests, 0 while it loads or drains."},
    {Id::kDraining, "identity", "pivot_draining", kGauge, "", {}, {}, true,
     "1 from the request to stop until the end."},
    {Id::kIndexOverlap, "recall", "pivot_index_overlap_ratio", kHistogram, "ratio", kDepthLabel, kShares, true,
     "Of the entries with the most attention (as many as were selected), the share that the indexer "
     "selected, per probed query, by the depth of the context."},
    {Id::kIndexMass, "recall", "pivot_index_mass_ratio", kHistogram, "ratio", kDepthLabel, kShares, true,
     "Share of all entries' attention that the selected entries keep, per probed query."},
    {Id::kIndexProbes, "recall", "pivot_index_probes_total", kCounter, "queries", kDepthLabel, {}, true,
     "Queries that were probed."},
    {Id::kCanaries, "recall", "pivot_canaries_total", kCounter, "canaries", kCanaryLabels, {}, true,
     "Facts hidden at a depth and asked for: found, lost, or not answered."},
    {Id::kCanarySuccess, "recall", "pivot_canary_success_ratio", kGauge, "ratio", kDepthLabel, {}, false,
     "Share found of the latest round of canaries at a depth."},
    {Id::kProcessStart, "process", "pivot_process_start_time_seconds", kGauge, "seconds", {}, {}, true,
     "When the process started, in seconds of Unix time."},
    {Id::kProcessCpu, "process", "pivot_process_cpu_seconds_total", kCounter, "seconds", {}, {}, true,
     "Processor time of the process, user and system."},
    {Id::kProcessResident, "process", "pivot_process_resident_bytes", kGauge, "bytes", {}, {}, true,
     "Resident memory of the process."},
    {Id::kProcessOpenFiles, "process", "pivot_process_open_files", kGauge, "files", {}, {}, true,
     "Open file descriptors."},
};
// clang-format on

constexpr bool in_order() {
  for (std::size_t i = 0; i < std::size(kTable); ++i)
    if (static_cast<std::size_t>(kTable[i].id) != i) return false;
  return static_cast<std::size_t>(Id::kProcessOpenFiles) + 1 == std::size(kTable);
}
static_assert(in_order(), "kTable must have one row for each MetricId, in its order");

}  // namespace

std::string_view to_string(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  PIVOT_CHECK(false, "metric type {}", static_cast<int>(type));
}

std::span<const MetricSpec> metric_table() { return kTable; }

const MetricSpec& metric(MetricId id) { return kTable[static_cast<std::size_t>(id)]; }

std::string_view to_string(RequestOutcome outcome) { return kOutcomes[static_cast<std::size_t>(outcome)]; }

std::string_view to_string(RequestEnd end) { return kReasons[static_cast<std::size_t>(end)]; }

RequestOutcome outcome_of(RequestEnd end) {
  if (end <= RequestEnd::kToolCalls) return RequestOutcome::kFinished;
  if (end <= RequestEnd::kShutdown) return RequestOutcome::kAborted;
  if (end <= RequestEnd::kInternal) return RequestOutcome::kFailed;
  return RequestOutcome::kRefused;
}

}  // namespace pivot
