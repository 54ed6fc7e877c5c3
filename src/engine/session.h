// One model and one sequence: what `generate`, `chat` and `logits` run on.
//
// A session owns its state memory (allocated once at creation, sized by max_context) and its sequence. Calls
// are made from one thread; only the cancel flag may be set from another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "checkpoint/model_weights.h"
#include "engine/sampler.h"
#include "ops/knobs.h"

namespace pivot {

class Backend;
class TapSink;

struct SessionOptions {
  std::shared_ptr<const ModelWeights> weights;
  std::shared_ptr<Backend> backend;  // engine/devices.h makes one
  Knobs knobs;
  std::int64_t max_context =
      0;  // tokens of prompt and answer; 0: as many as the model allows and half of memory holds
  std::int32_t chunk_tokens = 0;  // tokens of one prefill step; 0: 256 to 1024 by the size of the workspace
};

// What a session allocates through its back-end.
struct SessionMemory {
  std::int64_t max_context = 0;   // resolved
  std::int32_t chunk_tokens = 0;  // resolved
  std::int64_t state_bytes = 0;   // slot, pages, page tables
  std::int64_t workspace_bytes = 0;
};
// The plan behind Session::create: a pure function, exact. `memory_bytes` is what the device has (used only
// when max_context is 0; 0 means unknown). Errors: kInvalidArgument for a max_context or chunk_tokens out of
// range.
Result<SessionMemory> plan_session_memory(const ModelConfig& config, const Knobs& knobs, int activation_bytes,
                                          std::int64_t max_context, std::int32_t chunk_tokens,
                                          std::int64_t memory_bytes);

// Called after each prefill step with the tokens done and the tokens to do.
using ProgressFn = std::function<void(std::int64_t done, std::int64_t total)>;
// Set to true (by a signal handler, another thread) to stop between steps: the call returns kCancelled
// (prefill) or FinishReason::kCancelled (generate). What was already computed stays valid.
using CancelFlag = std::atomic<bool>;

enum class FinishReason : std::uint8_t {
  kStopToken,    // one of stop_tokens was generated
  kLength,       // max_new_tokens reached
  kContextFull,  // max_context reached
  kCallback,     // the per-token callback asked to stop (a stop string)
  kCancelled,
};
const char* to_string(FinishReason reason);  // "stop", "length", "context_full", "stop", "cancelled"

struct GenerateOptions {
  SamplingParams sampling = SamplingParams::greedy();
  std::int64_t max_new_tokens = 0;     // 0: until the context is full
  std::vector<TokenId> stop_tokens;    // usually the config's eos_token_id; empty: never stop on a token
  ProgressFn on_prefill;               // optional
  const CancelFlag* cancel = nullptr;  // optional
};

// Sees every generated token (the stop token too) as soon as it is chosen; false stops the generation.
using TokenFn = std::function<bool(const SampledToken& token)>;

// Wall-clock accounting of one generate call.
struct Timings {
  std::int64_t prompt_tokens = 0;  // of the prompt, in all
  std::int64_t reused_tokens = 0;  // of these, already in the session's state
  std::int64_t generated_tokens = 0;
  double prefill_seconds = 0;                // to the first token's logits
  double decode_seconds = 0;                 // steps after the first token
  double prefill_tokens_per_second() const;  // computed tokens / prefill_seconds; 0 when nothing was computed
  double decode_tokens_per_second() const;   // (generated_tokens - 1) / decode_seconds
};

struct GenerationResult {
  std::vector<SampledToken> tokens;  // generated, the stop token included
  FinishReason reason = FinishReason::kLength;
  Timings timings;
};

class Session {
 public:
  // Errors: kUnsupported when the back-end cannot run the model with these knobs; kInvalidArgument for
  // options out of range; kOutOfMemory with wanted and available bytes.
  static Result<std::unique_ptr<Session>> create(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const ModelConfig& config() const;
  const Knobs& knobs() const;
  std::int64_t max_context() const;
  std::int32_t chunk_tokens() const;
  // Bytes of cache state and of workspace that this session allocated.
  std::int64_t state_bytes() const;
  std::int64_t workspace_bytes() const;

  // Tokens whose state is held; position() == tokens().size() is the next token's position.
  std::span<const TokenId> tokens() const;
  std::int64_t position() const;

  // Appends tokens to the sequence. Afterwards logits() are those that follow the last one.
  // Errors: kInvalidArgument for an empty list or an id outside the vocabulary (nothing was computed);
  // kContextOverflow with both numbers (nothing was computed); kCancelled between steps.
  Result<> prefill(std::span<const TokenId> ids, const ProgressFn& progress = {},
                   const CancelFlag* cancel = nullptr);
  // prefill of one token.
  Result<> decode(TokenId id);

  // fp32 [vocab_size] after the last token; empty before the first prefill and after a rewind to 0.
  std::span<const float> logits() const;
  // Draws from logits(); does not append. The counter of the draw is position().
  Result<SampledToken> sample(const SamplingParams& params) const;

  // Keeps the longest prefix that the sequence shares with `ids` and from which it can go on, and returns its
  // length (0: nothing). At least one token of `ids` is left to prefill. Besides the current position, the
  // session can go back to the last prompt ends and to some multiples of 256.
  Result<std::int64_t> rewind_to_prefix(std::span<const TokenId> ids);
  // Forgets the whole sequence.
  void reset();

  // The usual loop: rewind_to_prefix(prompt), prefill of the rest, then sample and decode until a reason to
  // stop. The tokens of the result have been appended to the sequence, except the last one.
  Result<GenerationResult> generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                    const TokenFn& on_token = {});

  // Observes the forward pass from now on (model/taps.h); null to stop. The sink must outlive its use.
  void set_taps(TapSink* taps);

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pivot
