// What one step computes: pure decisions, no state of the engine.
//
// Decode comes first: every running stream gets its token in every step. Prompt tokens fill what is left, cut
// so that a step takes at most `max_step_stretch` times as long as one that only decodes (a 128K prompt then
// slows the others down by a known factor instead of stopping them).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_layout.h"

namespace pivot {

// Learns from measured steps how long decoding takes and what a prompt token adds.
class StepTimes {
 public:
  // One step of `decode_tokens` streams and `prefill_tokens` prompt tokens took `seconds`.
  void observe(std::int32_t decode_tokens, std::int32_t prefill_tokens, double seconds);

  // Prompt tokens that may join a step of `decode_tokens` streams, between kMinChunk and `most`. When nothing
  // decodes, as many as take kAloneSeconds, so that a new request or a cancellation does not wait long for a
  // slow device. Before anything was measured, kFirstChunk beside streams and `most` alone.
  std::int32_t prefill_budget(std::int32_t decode_tokens, double max_step_stretch, std::int32_t most) const;

  // True when the next step should only decode, because the time of such a step was not measured for
  // kProbeInterval steps: context grows, and the yardstick with it.
  bool needs_probe(std::int32_t decode_tokens) const;

  // Estimates; 0 while unknown.
  double decode_seconds(std::int32_t decode_tokens) const;
  double prefill_token_seconds() const { return prefill_token_seconds_; }

  static constexpr std::int32_t kMinChunk = 4;
  static constexpr std::int32_t kFirstChunk = 32;
  static constexpr std::int64_t kProbeInterval = 64;
  static constexpr double kAloneSeconds = 0.25;
  static constexpr std::int32_t kMinAloneChunk = 64;

 private:
  // By ceil(log2(streams)): of decode-only steps.
  struct Bucket {
    double seconds = 0;
    std::int64_t step = -1;  // when it was measured last
  };
  static std::size_t bucket_of(std::int32_t decode_tokens);

  std::array<Bucket, 14> decode_;
  double prefill_token_seconds_ = 0;
  std::int64_t step_ = 0;
};

// A sequence that still has prompt tokens to compute.
struct PrefillJob {
  std::int64_t position = 0;
  std::int64_t remaining = 0;  // >= 1
  // The chunk must not cross this position (a cached state is taken there); above position.
  std::int64_t next_stop = 0;
};

struct PrefillLimits {
  std::int32_t budget_tokens = 0;   // of this step, all jobs together
  std::int32_t max_jobs = 0;        // sequences that may still join the step
  bool fixed_chunks = false;        // deterministic: a job gets its next whole chunk or nothing
  std::int32_t chunk_tokens = 256;  // with fixed_chunks: chunks end at multiples of it
};

// Tokens of each job in this step, 0 for those that wait. `jobs` are in order of urgency. At least half of
// the budget goes to the most urgent job; the rest goes to the jobs that are nearest to their end, so that a
// short prompt does not wait for a long one.
std::vector<std::int32_t> share_prefill(std::span<const PrefillJob> jobs, const PrefillLimits& limits);

// Where a prompt's state is worth keeping: multiples of the block, in steps that grow with the position (an
// eighth of it), so that at most an eighth of a shared prefix is computed again and the number of states
// grows with the logarithm of the length. The last multiple below `prompt_tokens` is always one, and so is
// `shared_tokens` (where other prompts were seen to branch off). Ascending, above `position`.
std::vector<std::int64_t> cache_stops(std::int64_t position, std::int64_t prompt_tokens,
                                      std::int64_t shared_tokens, std::int64_t block_tokens);

// ---- admission ----

// One page pool. All in pages.
struct PoolRoom {
  std::int64_t capacity = 0;
  std::int64_t available = 0;  // free, or held by cached prefixes alone
  std::int64_t promised = 0;   // that running sequences will still take before long
  std::int64_t worst = 0;      // that running sequences hold and may take at the worst
};
// Whether a sequence that needs `soon` pages before long (its prompt and some answer) and `worst` at the
// worst may start beside the running ones. With worst_case, what was promised can never exceed the pool;
// otherwise pre-emption covers the difference. Both pools must agree.
bool admits(const PoolRoom& room, std::int64_t soon, std::int64_t worst, bool worst_case);

}  // namespace pivot
