// Small needle probes on a live server: facts hidden at several distances and residues, asked for at the
// lowest priority, so that a fault that only shows in production is seen there.
//
// Cost is bounded by construction: after a canary that ran for t seconds (its steps shared with users' or
// not) none is sent for t (1 / max_share - 1). Its requests neither use nor enter the prefix cache, and a
// full server pre-empts them first.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "recall/task.h"

namespace pivot {
class Engine;
class Tokenizer;
}  // namespace pivot

namespace pivot::recall {

enum class CanaryOutcome : std::uint8_t {
  kFound,
  kLost,    // answered, and wrongly
  kFailed,  // not answered: refused, failed, or not served within the limit
};
std::string_view to_string(CanaryOutcome outcome);  // "found", "lost", "failed"

struct CanaryResult {
  CanaryOutcome outcome = CanaryOutcome::kFailed;
  std::string id;  // of the case
  std::int64_t prompt_tokens = 0;
  std::int64_t distance_tokens = 0;  // from the fact to the end of the prompt
  std::string expected;
  std::string answer;       // or why there is none
  double busy_seconds = 0;  // from its start to its end in the engine
  double share_found = 1;   // of the latest round at this distance, this one included; failed ones left out
};

struct CanaryOptions {
  const Tokenizer* tokenizer = nullptr;  // must outlive the canary
  std::vector<TokenId> stop_tokens;
  std::string text;  // to hide facts in, one sentence or verse a line
  Wording wording = Wording::kInstruct;
  std::vector<std::int64_t> lengths = {1024, 2048, 4096, 8192};  // those that the engine's context holds
  std::vector<double> depths = {0.1, 0.5, 0.9};
  double max_share = 0.005;  // of the engine's time
  std::chrono::milliseconds first_delay{10'000};
  std::chrono::milliseconds limit{120'000};  // of one canary, the queue included
  std::uint64_t seed = 1;
  std::function<void(const CanaryResult&)> on_result;  // on the canary's thread
};

// "1k", "2k", ... "1m": the power of two that a distance is nearest to from above; the label of metrics.
std::string_view distance_label(std::int64_t tokens);

class Canary {
 public:
  // Errors: kInvalidArgument for a share outside (0, 1], no length that fits, or a text that is too short.
  // The engine must outlive the canary.
  static Result<std::unique_ptr<Canary>> start(Engine& engine, CanaryOptions options);
  ~Canary();  // stops its thread; a canary in flight is cancelled
  Canary(const Canary&) = delete;
  Canary& operator=(const Canary&) = delete;

 private:
  struct State;
  explicit Canary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The i-th canary: lengths first, then depths, residues modulo 4 going round with both.
CaseSpec canary_spec(const CanaryOptions& options, std::int64_t i);

}  // namespace pivot::recall
