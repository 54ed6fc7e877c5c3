// Many requests on one model: continuous batching, admission by capacity, prefix cache, pre-emption.
//
// One loop thread owns the model, the sequences and the cache (CONTRACT.md). Every public method may be
// called from any thread, also from inside an event sink; none of them waits for a step, except the
// destructor, stop() and drain().
//
// The life of a request: submit() checks it and refuses it there or queues it; StartedEvent when its prefill
// begins; one TokenEvent per generated token; then exactly one FinishedEvent or FailedEvent per choice.
// Events of one choice arrive in that order, and none arrives after the last.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "checkpoint/model_weights.h"
#include "engine/engine_stats.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "ops/knobs.h"
#include "text/grammar/constraint.h"

namespace pivot {

class Backend;

enum class RequestId : std::uint64_t {};
constexpr std::uint64_t raw(RequestId id) { return static_cast<std::uint64_t>(id); }

enum class Admission : std::uint8_t {
  kOvercommit,  // a request starts when its prompt and some answer fit; a full pool pre-empts the youngest
  kWorstCase,   // a request starts when prompt + max_new_tokens fit beside all others: never a pre-emption
};

struct EngineOptions {
  std::shared_ptr<const ModelWeights> weights;
  std::shared_ptr<Backend> backend;  // engine/devices.h makes one
  Knobs knobs;

  std::int64_t max_context = 0;     // tokens of prompt and answer of one sequence; 0: as Session chooses
  std::int32_t max_sequences = 16;  // choices that run at the same time (slots), 1 to 4096
  // Bytes for slots, pages and page tables; 0: half of what the device has. At least one sequence of
  // max_context must fit, or create() refuses with both numbers.
  std::int64_t state_bytes = 0;
  std::int32_t step_tokens = 0;  // most tokens of one step; 0: 256 to 1024 by the size of the workspace

  std::int32_t max_queued = 1024;           // waiting requests; one more is refused with kUnavailable
  std::int32_t max_queued_per_client = 0;   // 0: no ceiling of its own
  std::int32_t max_running_per_client = 0;  // choices; 0: no ceiling of its own
  Admission admission = Admission::kOvercommit;
  // Host memory for the snapshots of pre-empted sequences. When it is used up, the state of a pre-empted
  // sequence is dropped and computed again from its tokens.
  std::int64_t preempted_bytes = std::int64_t{4} << 30;

  // While streams decode, prefill chunks are cut so that a step takes at most this multiple of a step that
  // only decodes. 1 < value.
  double max_step_stretch = 2.0;
  // Chunks are cut at fixed positions instead of by measured time, so that a request's steps do not depend on
  // the machine's speed. On the CPU back-ends results never depend on chunks or batch, with or without it.
  bool deterministic = false;

  bool prefix_cache = true;
  // Host memory for the fixed part (rings, compressor states) of cached prefixes; 0: half of state_bytes,
  // between 128 MiB and 4 GiB. Their pages stay in the
  // page pools and are given back whenever a running sequence needs them.
  std::int64_t prefix_cache_bytes = 0;
  std::filesystem::path disk_cache;  // folder of the disk tier; empty: none
  std::int64_t disk_cache_bytes = std::int64_t{16} << 30;

  // For tests: freed slots and pages are filled with NaN.
  bool poison = false;
  // Called on the engine thread after each step; must not block. For tracing.
  std::function<void(const StepRecord&)> on_step;
};

struct EngineRequest {
  std::vector<TokenId> prompt;  // at least 1 token
  SamplingParams sampling = SamplingParams::greedy();
  // Generated tokens at most; 0: until the context is full.
  std::int64_t max_new_tokens = 0;
  // Stop tokens cannot be chosen before this many tokens (OpenAI-compatible servers call it min_tokens).
  std::int64_t min_new_tokens = 0;
  std::vector<TokenId>
      stop_tokens;  // usually the config's eos_token_id; empty (ignore_eos): never stop on one
  // Independent answers to one prompt, which is computed once. Choice i draws with seed sampling.seed + i.
  std::int32_t num_choices = 1;
  // -1: none; n >= 0: the log-probability of each prompt token after the first and the n most likely ones
  // (StartedEvent comes before them, TokenEvent after: PromptLogprobsEvent). The prompt is then not taken
  // from the prefix cache.
  std::int32_t prompt_logprobs = -1;
  std::int32_t priority =
      0;               // lower runs first; ties are served client by client, each first come first served
  std::string client;  // fairness key (API key, address); "" is a client too
  // Optional; copied with clone() for every choice after the first.
  std::unique_ptr<TokenConstraint> constraint;
  // false: the prompt neither uses nor enters the prefix cache.
  bool use_prefix_cache = true;
};

// ---- events ----

struct StartedEvent {  // the request left the queue
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of these, taken from the prefix cache (memory or disk)
  double queue_seconds = 0;        // from submit
};
struct PrefillEvent {            // after each step that computed prompt tokens but not yet the first logits
  std::int64_t done_tokens = 0;  // cached ones included
  std::int64_t prompt_tokens = 0;
};
struct PromptLogprobsEvent {         // before the first token, when asked for
  std::vector<SampledToken> tokens;  // [prompt_tokens - 1]: of prompt[1], prompt[2], ...
};
struct TokenEvent {
  SampledToken token;      // stop tokens too
  std::int64_t index = 0;  // of the generated token, from 0
};
struct RequestTimings {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t generated_tokens = 0;
  std::int32_t preemptions = 0;
  double queue_seconds = 0;    // submit to start
  double prefill_seconds = 0;  // start to first token
  double ttft_seconds = 0;     // submit to first token; 0 when there was none
  double decode_seconds = 0;   // first to last token
  double total_seconds = 0;    // submit to end
};
struct FinishedEvent {
  FinishReason reason = FinishReason::kLength;  // kCallback: finish() was called (a stop string)
  TokenId stop_token{-1};                       // with kStopToken by a stop token: which
  RequestTimings timings;
};
struct FailedEvent {
  Error
      error;  // kInternal: fault of the computation; kInvalidArgument: nothing allowed by bias and constraint
  RequestTimings timings;
};
using EngineEvent =
    std::variant<StartedEvent, PrefillEvent, PromptLogprobsEvent, TokenEvent, FinishedEvent, FailedEvent>;

// Called on the engine thread; must not block and must not throw. `choice` counts from 0. StartedEvent comes
// once, with the choice that starts first: 0, unless finish() ended that one while it waited. PrefillEvent
// and PromptLogprobsEvent come with choice 0. The sink is destroyed on the engine thread after the last event
// of the last choice.
using EventSink = std::function<void(RequestId id, std::int32_t choice, EngineEvent event)>;

class Engine {
 public:
  // Errors: as Session::create, and kOutOfMemory with wanted and available bytes when one sequence of
  // max_context does not fit state_bytes; kCannotCreate or kIo for the disk cache's folder.
  static Result<std::unique_ptr<Engine>> create(EngineOptions options);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelConfig& config() const;
  const EngineOptions& options() const;  // with the defaults resolved
  const EngineCapacity& capacity() const;

  // Checks a request completely and queues it. Refusals, all before any computation and without an event:
  // kInvalidArgument naming the field; kContextOverflow when prompt (+ max_new_tokens where given) exceeds
  // max_context, with the numbers; kOutOfMemory when the request could not run even alone; kUnavailable when
  // the queue or the client's share of it is full (accepting() is true: HTTP 429) or the engine no longer
  // takes requests (accepting() is false: 503).
  Result<RequestId> submit(EngineRequest request, EventSink sink);

  // Ends a request before its next step: every live choice gets FinishedEvent{kCancelled}, memory is free
  // before the next step starts. Unknown and finished ids are ignored.
  void cancel(RequestId id);
  // Ends one choice as complete (FinishReason::kCallback) before its next token: the server saw a stop
  // string. Called from inside the sink on a TokenEvent, that token is the last one.
  void finish(RequestId id, std::int32_t choice);

  // No new requests from now on; waits until the running and waiting ones have ended, at most `timeout`.
  // True when all have ended.
  bool drain(std::chrono::milliseconds timeout);
  bool accepting() const;
  // Cancels what is left (each choice gets its last event), writes the disk tier, ends the thread.
  // Idempotent. Must not be called from a sink.
  void stop();

  // A consistent copy of the figures, at most one step old.
  EngineStats stats() const;
  // Drops every cached prefix that no running sequence uses (memory; the disk tier stays). Effective before
  // the next step.
  void clear_prefix_cache();
  // Rises at least every second while the loop is alive, also when idle: what a watchdog looks at. A step
  // that hangs stops it.
  std::uint64_t heartbeat() const;

 private:
  friend class EngineProbe;  // the engine's tests turn a loop by hand
  class Loop;
  explicit Engine(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace pivot
