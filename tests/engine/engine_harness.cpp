#include "engine/engine_harness.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "support/patience.h"

namespace pivot::test {

using namespace std::chrono_literals;

namespace {
[[noreturn]] void give_up(const std::string& why) {
  std::cerr << "engine harness: " << why << std::endl;
  std::abort();
}
}  // namespace

std::vector<std::int32_t> Answer::ids() const {
  std::vector<std::int32_t> result;
  for (const SampledToken& token : tokens) result.push_back(raw(token.id));
  return result;
}

EventSink Collector::sink() {
  return [this](RequestId id, std::int32_t choice, EngineEvent event) {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[raw(id)][choice];
    if (answer.finished || answer.failed) ++answer.events_after_end;
    if (auto* started = std::get_if<StartedEvent>(&event)) answer.started = *started;
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      EXPECT_EQ(token->index, static_cast<std::int64_t>(answer.tokens.size()));
      answer.tokens.push_back(std::move(token->token));
    }
    if (auto* logprobs = std::get_if<PromptLogprobsEvent>(&event)) answer.prompt_logprobs = logprobs->tokens;
    if (auto* finished = std::get_if<FinishedEvent>(&event)) answer.finished = *finished;
    if (auto* failed = std::get_if<FailedEvent>(&event)) answer.failed = std::move(*failed);
    changed_.notify_all();
  };
}

std::vector<Answer> Collector::wait(RequestId id, std::int32_t num_choices) {
  std::unique_lock lock(mutex_);
  const bool ended = changed_.wait_for(lock, kPatience, [&] {
    const auto found = answers_.find(raw(id));
    if (found == answers_.end()) return false;
    std::int32_t count = 0;
    for (const auto& [choice, answer] : found->second) count += answer.finished || answer.failed ? 1 : 0;
    return count == num_choices;
  });
  if (!ended) give_up("a request did not end");
  std::vector<Answer> result;
  for (auto& [choice, answer] : answers_[raw(id)]) result.push_back(answer);
  return result;
}

void Collector::wait_for_tokens(RequestId id, std::size_t count) {
  std::unique_lock lock(mutex_);
  const bool there = changed_.wait_for(lock, kPatience, [&] {
    const auto found = answers_.find(raw(id));
    return found != answers_.end() && found->second[0].tokens.size() >= count;
  });
  if (!there) give_up("a request made no tokens");
}

std::vector<TokenId> to_tokens(const std::vector<std::int32_t>& ids) {
  std::vector<TokenId> tokens;
  for (const std::int32_t id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

Answer run_request(Engine& engine, EngineRequest request) {
  Collector collector;
  Result<RequestId> id = engine.submit(std::move(request), collector.sink());
  if (!id) give_up(id.error().to_string());
  return collector.wait(*id).front();
}

void wait_until_idle(Engine& engine) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const EngineStats stats = engine.stats();
    if (stats.running == 0 && stats.waiting == 0 &&
        stats.submitted == stats.finished + stats.cancelled + stats.failed)
      return;
    if (std::chrono::steady_clock::now() > deadline) give_up("the engine is not idle");
    std::this_thread::sleep_for(2ms);
  }
}

}  // namespace pivot::test
