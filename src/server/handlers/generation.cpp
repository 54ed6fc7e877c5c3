#include "server/handlers/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "server/api/json_text.h"
#include "server/handlers/request_log.h"
#include "server/handlers/trace.h"

namespace pivot::server {
namespace {

using api::ApiError;

constexpr std::uint64_t kTraceRows = 64;  // requests share rows, so that a long trace stays readable

std::string random_hex() { return http::make_request_id().substr(4); }

RequestEnd end_of_refusal(const ApiError& error) {
  if (error.code == "context_length_exceeded") return RequestEnd::kContextLength;
  if (error.code == "insufficient_capacity") return RequestEnd::kCapacity;
  if (error.code == "unsupported") return RequestEnd::kUnsupported;
  if (error.status == 404) return RequestEnd::kNotFound;
  if (error.status == 429) return RequestEnd::kQueueFull;
  if (error.status == 503) return RequestEnd::kNotReady;
  return error.status < 500 ? RequestEnd::kInvalid : RequestEnd::kInternal;
}

http::Response error_response(api::Api api, const ApiError& error, const std::string& request_id) {
  http::Response response;
  response.status = error.status;
  response.body =
      api == api::Api::kMessages ? api::anthropic_error(error, request_id) : api::openai_error(error);
  if (error.retry_after_seconds)
    response.headers.add("retry-after", std::to_string(*error.retry_after_seconds));
  return response;
}

}  // namespace

void Generation::start(std::shared_ptr<Context> context, std::shared_ptr<http::Exchange> exchange,
                       api::Api api, RequestMetrics metrics) {
  auto generation = std::make_shared<Generation>(context, exchange, api, std::move(metrics));
  exchange->on_gone([generation](http::Gone reason) { generation->gone(reason); });
  if (!context->work.post([generation] { generation->prepare(); })) {
    generation->refuse(api::unavailable("too many requests are being read; try again soon",
                                        context->options.retry_after_seconds));
  }
}

Generation::Generation(std::shared_ptr<Context> context, std::shared_ptr<http::Exchange> exchange,
                       api::Api api, RequestMetrics metrics)
    : context_(std::move(context)),
      exchange_(std::move(exchange)),
      api_(api),
      metrics_(std::move(metrics)),
      client_(client_of(*context_, exchange_->request())) {}

void Generation::prepare() {
  const auto body = api::parse_body(exchange_->request().body);
  if (!body) return refuse(body.error());
  exchange_->request().body = {};
  auto request = api::read_generation_request(api_, *body);
  if (!request) return refuse(request.error());
  request_ = *std::move(request);
  if (!request_.ignored_fields.empty()) {
    LogLine line("ignored_fields");
    line.add("request_id", exchange_->request().id);
    line.add("fields",
             fmt::format("{}", fmt::join(request_.ignored_fields.begin(),
                                         request_.ignored_fields.begin() +
                                             std::min<std::ptrdiff_t>(8, std::ssize(request_.ignored_fields)),
                                         ", ")));
    line.warn();
  }
  if (const auto known = check_model(*context_, request_.model); !known) return refuse(known.error());
  auto sampling = prepare_sampling(*context_, request_);
  if (!sampling) return refuse(sampling.error());
  if (request_.chat() != nullptr) thinking_ = thinking_of(*context_, *request_.chat());
  sampling_ = *std::move(sampling);
  auto prompts = prepare_prompts(*context_, client_, request_);
  if (!prompts) return refuse(prompts.error());
  prompts_ = *std::move(prompts);
  // No work thread waits for a grammar: the next body may need none.
  prepare_constraint(
      *context_, request_,
      [self = shared_from_this()](api::ApiResult<std::unique_ptr<TokenConstraint>> constraint) {
        if (constraint)
          self->submit(*std::move(constraint));
        else
          self->refuse(constraint.error());
      });
}

void Generation::submit(std::unique_ptr<TokenConstraint> constraint) {
  std::vector<PreparedPrompt> prompts = std::move(prompts_);
  auto stops = StopStrings::create(request_.sampling.stop);
  if (!stops) return refuse(stops.error());
  stop_tokens_ = stop_tokens_of(*context_, request_.sampling);

  api::AnswerIdentity identity;
  const std::string tail = random_hex();
  identity.id = std::string(api::id_prefix(api_)) + tail;
  identity.created = std::time(nullptr);
  identity.model = request_.model.empty() ? context_->options.model_names.front() : request_.model;
  identity.fingerprint = context_->options.fingerprint;
  identity.request_id = exchange_->request().id;
  identity.temperature = sampling_.temperature;
  identity.top_p = sampling_.top_p;
  if (request_.echo) {
    for (PreparedPrompt& prompt : prompts) identity.echoes.push_back(std::move(prompt.echo));
  }
  num_prompts_ = prompts.size();
  identity.prompt_logprobs.resize(request_.prompt_logprobs >= 0 ? num_prompts_ : 0);
  writer_ = api::make_writer(request_, std::move(identity));

  const auto n = static_cast<std::size_t>(request_.sampling.n);
  choices_.reserve(num_prompts_ * n);
  for (std::size_t i = 0; i < num_prompts_ * n; ++i) {
    Choice& choice = choices_.emplace_back(
        api::ChoiceText(context_->tokenizer, *stops, request_.sampling.skip_special_tokens));
    api::AnswerOptions options;
    options.is_chat = request_.chat() != nullptr;
    options.thinking = thinking_;
    options.include_reasoning = request_.include_reasoning;
    options.wants_logprobs = request_.sampling.top_logprobs >= 0;
    options.parallel_tool_calls = request_.chat() == nullptr || request_.chat()->parallel_tool_calls;
    options.call_id_prefix =
        fmt::format("{}{}_", api_ == api::Api::kMessages ? "toolu_" : "call_", random_hex());
    choice.answer = std::make_unique<api::ChoiceAnswer>(context_->tokenizer, std::move(options));
  }
  for (const PreparedPrompt& prompt : prompts) {
    usage_.prompt_tokens += std::ssize(prompt.ids);
    first_tokens_.push_back(prompt.ids.front());
  }

  // Streams begin when the first prompt starts, so that whatever is refused has a status of its own. Until
  // then nothing is sent: the queue's wait is covered by the heartbeat from here on.
  for (std::size_t i = 0; i < num_prompts_; ++i) {
    EngineRequest request;
    request.prompt = std::move(prompts[i].ids);
    request.sampling = sampling_;
    request.sampling.seed += i * n;  // choice j of prompt i draws with seed + i * n + j
    request.max_new_tokens = request_.sampling.max_tokens;
    request.min_new_tokens = request_.sampling.min_tokens;
    request.stop_tokens = stop_tokens_;
    request.num_choices = request_.sampling.n;
    request.prompt_logprobs = request_.prompt_logprobs;
    request.priority = request_.sampling.priority;
    request.client = client_;
    if (constraint) request.constraint = i + 1 < num_prompts_ ? constraint->clone() : std::move(constraint);
    auto id = context_->engine.submit(std::move(request),
                                      [self = shared_from_this(), prompt = static_cast<std::int32_t>(i)](
                                          RequestId engine_id, std::int32_t choice, EngineEvent event) {
                                        self->on_engine_event(prompt, engine_id, choice, std::move(event));
                                      });
    if (!id) {
      cancel_all();
      return refuse(engine_error(id.error()));
    }
    bool too_late = false;
    {
      const std::lock_guard lock(mutex_);
      ids_.push_back(*id);
      too_late = cancelled_;
    }
    if (too_late) {
      context_->engine.cancel(*id);
      return;
    }
  }
  exchange_->post([self = shared_from_this()] {
    if (self->request_.stream) self->arm_heartbeat();
    self->arm_timeout();
  });
}

ApiError Generation::engine_error(const Error& error) const {
  ApiError out = api::from_error(error);
  if (error.code == ErrorCode::kUnavailable) {
    const bool busy = context_->engine.accepting();
    out.status = busy ? 429 : 503;
    out.type = busy ? "rate_limit_error" : "service_unavailable";
    out.code = busy ? "queue_full" : "unavailable";
    out.retry_after_seconds = context_->options.retry_after_seconds;
  }
  return out;
}

void Generation::refuse(const Error& error) { refuse(api::from_error(error)); }

void Generation::refuse(const ApiError& error) {
  exchange_->post([self = shared_from_this(), error] {
    if (self->done_) return;
    self->done_ = true;
    if (self->streaming_) {  // an earlier prompt of the same request was taken and has begun
      self->exchange_->send(self->writer_->failure(error));
      self->exchange_->end_stream();
    } else {
      self->exchange_->respond(error_response(self->api_, error, self->exchange_->request().id));
    }
    self->finish_metrics(end_of_refusal(error));
    self->log("refused", error.status);
  });
}

// ---- the engine's thread ----

void Generation::on_engine_event(std::int32_t prompt, RequestId id, std::int32_t choice, EngineEvent event) {
  Event item;
  item.prompt = prompt;
  item.choice = prompt * request_.sampling.n + choice;
  Choice& target = choices_[static_cast<std::size_t>(item.choice)];
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    const TokenId token_id = token->token.id;
    item.is_end_token = std::find(stop_tokens_.begin(), stop_tokens_.end(), token_id) != stop_tokens_.end();
    if (!item.is_end_token && !target.text.matched()) {
      item.released = target.text.push(token_id);
      if (target.text.matched()) context_->engine.finish(id, choice);
    }
  } else if (std::holds_alternative<FinishedEvent>(event)) {
    item.stopped_by_text = target.text.matched();
    item.released = target.text.finish();
  }
  item.event = std::move(event);
  bool post = false;
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(item));
    post = !std::exchange(drain_posted_, true);
  }
  if (post) exchange_->post([self = shared_from_this()] { self->drain(); });
}

// ---- the connection's strand ----

void Generation::drain() {
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
    drain_posted_ = false;
  }
  for (Event& event : events) {
    if (done_) return;
    take(event);
  }
  if (done_) return;
  write_deltas();
  if (ended_ == choices_.size()) complete();
}

void Generation::take(Event& event) {
  Choice& choice = choices_[static_cast<std::size_t>(event.choice)];
  if (const auto* started = std::get_if<StartedEvent>(&event.event)) {
    usage_.cached_tokens += started->cached_tokens;
    if (prompts_started_++ == 0) {
      queue_seconds_ = started->queue_seconds;
      metrics_.started(usage_.prompt_tokens, queue_seconds_);
    }
    if (request_.stream && can_begin()) begin_stream();
  } else if (auto* logprobs = std::get_if<PromptLogprobsEvent>(&event.event)) {
    const auto prompt = static_cast<std::size_t>(event.prompt);
    auto& list = writer_->identity.prompt_logprobs[prompt];
    api::TokenLogprobs first;
    first.bytes = std::string(context_->tokenizer.token_bytes(first_tokens_[prompt]));
    first.is_first = true;
    list.push_back(std::move(first));
    ++prompt_logprobs_seen_;
    for (const SampledToken& token : logprobs->tokens)
      list.push_back(api::token_logprobs(context_->tokenizer, token));
  } else if (const auto* token = std::get_if<TokenEvent>(&event.event)) {
    take_token(*token, event, choice);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event.event)) {
    end_choice(event.choice, *finished, event);
  } else if (const auto* failed = std::get_if<FailedEvent>(&event.event)) {
    prefill_seconds_ = failed->timings.prefill_seconds;
    decode_seconds_ = failed->timings.decode_seconds;
    fail_all(api::from_error(failed->error));
  }
}

void Generation::take_token(const TokenEvent& token, const Event& event, Choice& choice) {
  metrics_.token(event.choice);
  choice.answer->token(token.token, event.released, event.is_end_token);
  if (choice.answer->has_enough() && !choice.cut) {
    choice.cut = true;
    std::optional<RequestId> id;
    {
      const std::lock_guard lock(mutex_);
      if (static_cast<std::size_t>(event.prompt) < ids_.size())
        id = ids_[static_cast<std::size_t>(event.prompt)];
    }
    if (id) context_->engine.finish(*id, event.choice % request_.sampling.n);
  }
  if (touched_.empty() || touched_.back() != static_cast<std::size_t>(event.choice)) {
    touched_.push_back(static_cast<std::size_t>(event.choice));
  }
}

void Generation::end_choice(std::int32_t index, const FinishedEvent& finished, const Event& event) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  if (choice.ended) return;
  choice.ended = true;
  ++ended_;
  choice.answer->finish(event.released);
  touched_.push_back(static_cast<std::size_t>(index));
  prefill_seconds_ = std::max(prefill_seconds_, finished.timings.prefill_seconds);
  decode_seconds_ = std::max(decode_seconds_, finished.timings.decode_seconds);
  if (ttft_seconds_ == 0) ttft_seconds_ = finished.timings.ttft_seconds;
  if (finished.reason == FinishReason::kCancelled && !choice.cut) {
    // Nobody at this end asked for it: the server shuts down, or the time is up.
    if (timed_out_) {
      return fail_all({504, "the request's time is up", "server_error", "timeout", {}, {}});
    }
    return fail_all(api::unavailable("the server is shutting down", context_->options.retry_after_seconds));
  }
  const bool by_length =
      finished.reason == FinishReason::kLength || finished.reason == FinishReason::kContextFull;
  // A stop token of the client's is a stop of its own; the model's end of sentence is the plain one.
  const auto& model_ends = context_->options.stop_tokens;
  const bool by_own_token =
      finished.reason == FinishReason::kStopToken &&
      std::find(model_ends.begin(), model_ends.end(), finished.stop_token) == model_ends.end();
  const bool by_client_token = by_own_token && raw(finished.stop_token) >= 0;
  choice.end.word = choice.answer->finish_word(by_length, event.stopped_by_text || by_client_token);
  if (event.stopped_by_text) choice.end.stop_text = choice.text.match();
  if (by_client_token) choice.end.stop_token_id = raw(finished.stop_token);
  if (!event.stopped_by_text) remember(choice);
  const RequestEnd end = choice.end.word == api::FinishWord::kLength      ? RequestEnd::kLength
                         : choice.end.word == api::FinishWord::kToolCalls ? RequestEnd::kToolCalls
                                                                          : RequestEnd::kStop;
  if (end == RequestEnd::kLength || worst_end_ == RequestEnd::kStop) worst_end_ = end;
}

void Generation::remember(const Choice& choice) const {
  if (request_.chat() == nullptr) return;
  ReplayTurn turn;
  turn.ids.assign(choice.answer->ids().begin(), choice.answer->ids().end());
  while (!turn.ids.empty() &&
         std::find(stop_tokens_.begin(), stop_tokens_.end(), turn.ids.back()) != stop_tokens_.end()) {
    turn.ids.pop_back();
  }
  turn.thinking = thinking_ == ThinkingMode::kThinking;
  turn.reasoning = choice.answer->reasoning();
  turn.content = choice.answer->content();
  turn.calls = choice.answer->tool_calls();
  const bool whole =
      std::all_of(turn.calls.begin(), turn.calls.end(), [](const auto& call) { return call.complete; });
  if (whole) context_->replay.put(client_, std::move(turn));
}

// Echoed prompts come before everything else, with their probabilities where these are wanted.
bool Generation::can_begin() const {
  if (!request_.echo) return prompts_started_ > 0;
  return (request_.prompt_logprobs >= 0 ? prompt_logprobs_seen_ : prompts_started_) == num_prompts_;
}

void Generation::begin_stream() {
  if (!streaming_) {
    streaming_ = true;
    http::Response head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers.add("cache-control", "no-cache");
    head.headers.add("x-accel-buffering", "no");
    exchange_->begin_stream(head);
  }
  if (!begun_ && can_begin()) {
    begun_ = true;
    if (const std::string text = writer_->begin(usage()); !text.empty()) exchange_->send(text);
    wrote_since_tick_ = true;
  }
}

void Generation::write_deltas() {
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  if (!request_.stream) {
    for (const std::size_t index : touched_) choices_[index].answer->take();
    touched_.clear();
    return;
  }
  if (touched_.empty() || !can_begin()) return;
  begin_stream();
  std::string out;
  for (const std::size_t index : touched_) {
    Choice& choice = choices_[index];
    const api::Delta delta = choice.answer->take(choice.ended);
    if (!delta.empty()) out += writer_->delta(static_cast<std::int32_t>(index), delta, usage());
    if (choice.ended) out += writer_->end_choice(static_cast<std::int32_t>(index), choice.end, usage());
  }
  touched_.clear();
  if (out.empty()) return;
  wrote_since_tick_ = true;
  exchange_->send(out);
}

api::Usage Generation::usage() const {
  api::Usage usage = usage_;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.answer->generated_tokens();
    usage.reasoning_tokens += choice.answer->reasoning_tokens();
  }
  return usage;
}

void Generation::complete() {
  done_ = true;
  if (request_.stream) {
    begin_stream();
    exchange_->send(writer_->end(usage()));
    exchange_->end_stream();
  } else {
    std::vector<api::ChoiceRecord> records;
    for (Choice& choice : choices_) {
      choice.answer->take(/*all=*/true);
      api::ChoiceRecord& record = records.emplace_back();
      record.content = choice.answer->content();
      if (request_.include_reasoning) record.reasoning = choice.answer->reasoning();
      record.tool_calls = choice.answer->tool_calls();
      record.content_logprobs = choice.answer->content_logprobs();
      record.reasoning_logprobs = choice.answer->reasoning_logprobs();
      record.end = choice.end;
    }
    http::Response response;
    response.body = writer_->body(records, usage());
    exchange_->respond(std::move(response));
  }
  finish_metrics(worst_end_);
  log("finished", 200);
}

void Generation::fail_all(const ApiError& error) {
  if (done_) return;
  done_ = true;
  cancel_all();
  if (streaming_) {
    exchange_->send(writer_->failure(error));
    exchange_->end_stream();
  } else {
    exchange_->respond(error_response(api_, error, exchange_->request().id));
  }
  finish_metrics(error.code == "timeout"    ? RequestEnd::kTimeout
                 : error.status == 503      ? RequestEnd::kShutdown
                 : error.code == "internal" ? RequestEnd::kComputation
                                            : RequestEnd::kInternal);
  log("failed", error.status);
}

void Generation::gone(http::Gone reason) {
  cancel_all();
  if (done_) return;
  done_ = true;
  finish_metrics(reason == http::Gone::kShutdown ? RequestEnd::kShutdown : RequestEnd::kClientGone);
  log(reason == http::Gone::kTooSlow ? "client_too_slow" : "client_gone", 499);
}

void Generation::cancel_all() {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (const RequestId id : ids) context_->engine.cancel(id);
}

void Generation::arm_heartbeat() {
  const auto interval = context_->options.heartbeat;
  if (interval.count() <= 0) return;
  context_->post_after(interval, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->exchange_->post([self] {
      if (self->done_) return;
      if (!std::exchange(self->wrote_since_tick_, false)) {
        self->begin_stream();
        self->exchange_->send(self->writer_->ping());
      }
      self->arm_heartbeat();
    });
  });
}

void Generation::arm_timeout() {
  const auto limit = context_->options.request_timeout;
  if (limit.count() <= 0) return;
  context_->post_after(limit, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->exchange_->post([self] {
      if (self->done_) return;
      self->timed_out_ = true;
      self->cancel_all();
    });
  });
}

void Generation::finish_metrics(RequestEnd end) { metrics_.end(end, prefill_seconds_, decode_seconds_); }

void Generation::log(std::string_view outcome, int status) const {
  const http::Request& request = exchange_->request();
  const api::Usage figures = usage();
  const double total = std::chrono::duration<double>(Clock::now() - arrived_).count();
  LogLine line("request");
  line.add("request_id", request.id)
      .add("path", request.path)
      .add("outcome", outcome)
      .add("status", status)
      .add("client", client_)
      .add("prompt_tokens", figures.prompt_tokens)
      .add("cached_tokens", figures.cached_tokens)
      .add("completion_tokens", figures.completion_tokens)
      .add_seconds("ttft_seconds", ttft_seconds_)
      .add_seconds("total_seconds", total)
      .info();
  if (context_->trace != nullptr) trace_phases(request.id, total);
}

void Generation::trace_phases(const std::string& request_id, double total_seconds) const {
  const std::uint64_t row = context_->next_id.fetch_add(1) % kTraceRows;
  auto at = arrived_;
  double left = total_seconds;
  const auto phase = [&](std::string_view name, double seconds) {
    if (seconds <= 0) return;
    context_->trace->phase(request_id, row, name, at, seconds);
    at += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    left -= seconds;
  };
  // What is left at the end is reading the body, and sending what was held back.
  phase("queue", queue_seconds_);
  phase("prefill", prefill_seconds_);
  phase("decode", decode_seconds_);
  phase("other", left);
}

}  // namespace pivot::server
