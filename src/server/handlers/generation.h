// One request for a completion, from its body to its last byte: reads it, gives it to the engine, turns the
// engine's events into the API's answer.
//
// Threads: it is read on a work thread, and submitted there or where its grammar was compiled; the engine's
// thread puts events into a queue and cuts stop strings; everything else runs on the connection's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/api/answer.h"
#include "server/api/request.h"
#include "server/api/writer.h"
#include "server/handlers/context.h"
#include "server/handlers/translate.h"
#include "server/http/exchange.h"
#include "server/metrics/metrics.h"

namespace pivot::server {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Takes the exchange over. REQUIRES: the context lives longer than every exchange.
  static void start(std::shared_ptr<Context> context, std::shared_ptr<http::Exchange> exchange, api::Api api,
                    RequestMetrics metrics);

  Generation(std::shared_ptr<Context> context, std::shared_ptr<http::Exchange> exchange, api::Api api,
             RequestMetrics metrics);

 private:
  using Clock = std::chrono::steady_clock;

  // What the engine's thread hands over.
  struct Event {
    std::int32_t prompt = 0;
    std::int32_t choice = 0;  // of the whole answer
    EngineEvent event;
    std::string released;
    bool is_end_token = false;
    bool stopped_by_text = false;
  };
  struct Choice {
    explicit Choice(api::ChoiceText choice_text) : text(std::move(choice_text)) {}
    api::ChoiceText text;  // engine thread
    std::unique_ptr<api::ChoiceAnswer> answer;
    api::ChoiceEnd end;
    bool ended = false;
    bool cut = false;  // the server ended it itself; what still comes is not part of the answer
  };

  void prepare();  // work thread
  // Where prepare() ended, or where the answer's grammar was compiled.
  void submit(std::unique_ptr<TokenConstraint> constraint);
  void refuse(const api::ApiError& error);
  void refuse(const Error& error);

  void on_engine_event(std::int32_t prompt, RequestId id, std::int32_t choice, EngineEvent event);
  void drain();  // strand
  void take(Event& event);
  void take_token(const TokenEvent& token, const Event& event, Choice& choice);
  void end_choice(std::int32_t index, const FinishedEvent& finished, const Event& event);
  void fail_all(const api::ApiError& error);
  void write_deltas();
  void complete();
  bool can_begin() const;
  void begin_stream();
  void gone(http::Gone reason);
  void cancel_all();
  void arm_heartbeat();
  void arm_timeout();
  void remember(const Choice& choice) const;
  void finish_metrics(RequestEnd end);
  void log(std::string_view outcome, int status) const;
  void trace_phases(const std::string& request_id, double total_seconds) const;
  api::Usage usage() const;
  api::ApiError engine_error(const Error& error) const;

  std::shared_ptr<Context> context_;
  std::shared_ptr<http::Exchange> exchange_;
  api::Api api_;
  RequestMetrics metrics_;
  Clock::time_point arrived_ = Clock::now();
  std::string client_;
  api::GenerationRequest request_;
  std::vector<PreparedPrompt> prompts_;  // until they are submitted
  SamplingParams sampling_;
  ThinkingMode thinking_ = ThinkingMode::kChat;
  std::vector<TokenId> stop_tokens_;
  std::vector<TokenId> first_tokens_;  // by prompt
  std::unique_ptr<api::Writer> writer_;
  std::vector<Choice> choices_;
  std::vector<std::size_t> touched_;  // choices with something to write
  std::size_t ended_ = 0;
  api::Usage usage_;
  std::size_t prompts_started_ = 0;
  std::size_t prompt_logprobs_seen_ = 0;  // prompts whose probabilities have come
  std::size_t num_prompts_ = 0;
  bool streaming_ = false;  // the head is sent
  bool begun_ = false;      // the writer's begin is sent
  bool done_ = false;
  bool timed_out_ = false;
  bool wrote_since_tick_ = false;
  double queue_seconds_ = 0;
  double prefill_seconds_ = 0;
  double decode_seconds_ = 0;
  double ttft_seconds_ = 0;
  RequestEnd worst_end_ = RequestEnd::kStop;

  std::mutex mutex_;  // guards the following
  std::vector<RequestId> ids_;
  std::vector<Event> events_;
  bool drain_posted_ = false;
  bool cancelled_ = false;
};

}  // namespace pivot::server
