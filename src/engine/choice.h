// The engine thread's records of a request and of its choices (answers). Internal to the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/sequence_state.h"
#include "cache/snapshot.h"
#include "cache/state_image.h"
#include "engine/engine.h"

namespace pivot {

using Clock = std::chrono::steady_clock;
inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Request;

// One answer. Its sequence is `ids` (prompt, then generated tokens); what of them is computed is the position
// of `sequence`. So prefill, decode, and computing again after a dropped pre-emption are one case: tokens
// [position, ids.size()) are still to be computed, and a draw follows the last one.
struct Choice {
  enum class Stage : std::uint8_t {
    kHeld,     // waits for the first choice's prompt
    kWaiting,  // in the queue
    kRunning,  // has a slot
    kEnded,    // its last event was sent
  };

  Request* request = nullptr;
  std::int32_t index = 0;
  Stage stage = Stage::kHeld;
  std::vector<TokenId> ids;
  SamplingParams sampling;
  std::unique_ptr<TokenConstraint> constraint;
  std::unique_ptr<TokenHistory> history;  // where penalties need one

  std::unique_ptr<SequenceState> sequence;  // kRunning
  std::unique_ptr<Snapshot> preempted;      // kWaiting after a pre-emption whose state was kept
  std::uint64_t rank = 0;                   // number of its first start, from 1; 0: never started
  std::vector<std::int64_t> stops;          // descending: prompt positions whose state will be kept
  // Positions of states that this choice put into the prefix index; taken out again when its computation
  // turns out to be faulty.
  std::vector<std::int64_t> cached_positions;

  std::int32_t preemptions = 0;
  Clock::time_point first_token{};
  Clock::time_point last_token{};

  std::int64_t prompt_tokens() const;
  std::int64_t generated_tokens() const { return static_cast<std::int64_t>(ids.size()) - prompt_tokens(); }
  std::int64_t position() const { return sequence == nullptr ? 0 : sequence->position(); }
  std::int64_t remaining() const { return static_cast<std::int64_t>(ids.size()) - position(); }
  // One token left of an answer that has begun.
  bool decodes() const { return generated_tokens() > 0 && remaining() == 1; }
};

struct Request {
  RequestId id{};
  EngineRequest spec;  // the prompt and the constraint have moved into the choices
  std::int64_t prompt_tokens = 0;
  EventSink sink;
  std::vector<std::unique_ptr<Choice>> choices;
  std::int32_t live = 0;
  bool started = false;
  std::int64_t cached_tokens = 0;
  // State and logits at the prompt's end for the choices that have not started; given up when memory is
  // short.
  std::shared_ptr<const StateImage> fork;
  std::vector<SampledToken> prompt_logprobs;
  bool any_failed = false;
  bool any_cancelled = false;
  Clock::time_point submitted{};
  Clock::time_point start{};
};

inline std::int64_t Choice::prompt_tokens() const { return request->prompt_tokens; }

// Order of urgency: priority, then first start.
inline bool more_urgent(const Choice& a, const Choice& b) {
  if (a.request->spec.priority != b.request->spec.priority)
    return a.request->spec.priority < b.request->spec.priority;
  return a.rank < b.rank;
}

}  // namespace pivot
