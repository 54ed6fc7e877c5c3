#include "server/handlers/health_probe.h"

#include <algorithm>
#include <limits>

namespace pivot::server {
namespace {

// Where the queue is full: long enough for a step of others.
constexpr std::chrono::milliseconds kBusyWait{1'000};

}  // namespace

void HealthProbe::ask(std::shared_ptr<http::Exchange> exchange, const PostAfter& post_after) {
  const std::uint64_t tokens = engine_.stats().generated_tokens;
  std::uint64_t round = 0;
  {
    const std::lock_guard lock(mutex_);
    asking_.push_back(std::move(exchange));
    if (running_) return;
    running_ = true;
    tokens_before_ = tokens;
    request_.reset();
    round = ++round_;
  }
  begin(round, post_after);
}

void HealthProbe::begin(std::uint64_t round, const PostAfter& post_after) {
  EngineRequest request;
  request.prompt = {prompt_};
  request.max_new_tokens = 1;
  request.priority = std::numeric_limits<std::int32_t>::max();
  request.client = "health";
  request.use_prefix_cache = false;
  const auto id = engine_.submit(std::move(request), [self = shared_from_this(), round](
                                                         RequestId, std::int32_t, const EngineEvent& event) {
    self->take(round, event);
  });
  if (!id && !engine_.accepting()) return answer(round, "the engine takes no requests");
  if (id) {
    const std::lock_guard lock(mutex_);
    if (round == round_ && running_) request_ = *id;
  }
  post_after(id ? patience_ : std::min(patience_, kBusyWait), [weak = weak_from_this(), round] {
    if (const auto self = weak.lock()) self->time_is_up(round);
  });
}

void HealthProbe::take(std::uint64_t round, const EngineEvent& event) {
  if (const auto* finished = std::get_if<FinishedEvent>(&event))
    answer(round, finished->timings.generated_tokens > 0 ? "" : "the engine ended before it made a token");
  if (const auto* failed = std::get_if<FailedEvent>(&event)) answer(round, failed->error.to_string());
}

void HealthProbe::time_is_up(std::uint64_t round) {
  const std::uint64_t tokens = engine_.stats().generated_tokens;
  std::optional<RequestId> request;
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    if (round != round_ || !running_) return;
    request = request_;
    moved = tokens > tokens_before_;
  }
  answer(round, moved ? "" : fmt::format("the engine made no token within {} ms", patience_.count()));
  if (request) engine_.cancel(*request);
}

void HealthProbe::answer(std::uint64_t round, const std::string& trouble) {
  std::vector<std::shared_ptr<http::Exchange>> asking;
  {
    const std::lock_guard lock(mutex_);
    if (round != round_ || !running_) return;
    running_ = false;
    asking.swap(asking_);
  }
  for (const auto& exchange : asking) {
    http::Response response;
    response.status = trouble.empty() ? 200 : 503;
    response.content_type = "text/plain; charset=utf-8";
    if (!trouble.empty()) response.body = trouble + "\n";
    exchange->respond(std::move(response));
  }
}

}  // namespace pivot::server
