// Requests on an engine, waited for: what the engine's tests share.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace pivot::test {

// Everything that came back for one choice.
struct Answer {
  std::optional<StartedEvent> started;
  std::vector<SampledToken> tokens;
  std::vector<SampledToken> prompt_logprobs;
  std::optional<FinishedEvent> finished;
  std::optional<FailedEvent> failed;
  std::int32_t events_after_end = 0;
  std::vector<std::int32_t> ids() const;
};

// Collects the events of many requests; thread-safe.
class Collector {
 public:
  EventSink sink();
  // Waits until every choice of the request has ended (a minute at most), and takes the answers by choice.
  std::vector<Answer> wait(RequestId id, std::int32_t num_choices = 1);
  // Waits until the request has this many tokens in choice 0.
  void wait_for_tokens(RequestId id, std::size_t count);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::map<std::int32_t, Answer>> answers_;
};

std::vector<TokenId> to_tokens(const std::vector<std::int32_t>& ids);

// Submits and waits; ends the test binary when the request is refused.
Answer run_request(Engine& engine, EngineRequest request);

// Waits until nothing runs or waits, then until the figures say so.
void wait_until_idle(Engine& engine);

}  // namespace pivot::test
