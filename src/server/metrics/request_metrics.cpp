#include <algorithm>
#include <chrono>

#include "server/metrics/metrics.h"

namespace pivot {
namespace {
using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
}  // namespace

struct RequestMetrics::State {
  Metrics* metrics = nullptr;
  Clock::time_point arrival;
  Histogram first_token;
  Histogram inter_token;
  std::vector<Clock::time_point> last_token;  // by choice; the epoch: none yet
  bool has_token = false;
  bool started = false;
  bool ended = false;
  std::int64_t generated = 0;
};

RequestMetrics::RequestMetrics(Metrics& metrics, std::string_view endpoint)
    : state_(new State{&metrics,
                       Clock::now(),
                       metrics.histogram(MetricId::kTimeToFirstToken),
                       metrics.histogram(MetricId::kInterToken),
                       {}}) {
  const std::lock_guard lock(metrics.request_lock());
  metrics.gauge(MetricId::kRequestsInFlight).add(1);
  metrics.counter(MetricId::kRequestsReceived, {endpoint}).add();
}

RequestMetrics::~RequestMetrics() {
  if (state_) end(RequestEnd::kInternal);
}

RequestMetrics::RequestMetrics(RequestMetrics&&) noexcept = default;

void RequestMetrics::started(std::int64_t prompt_tokens, double queue_seconds) {
  if (state_->started || state_->ended) return;
  state_->started = true;
  state_->metrics->histogram(MetricId::kRequestPromptTokens).observe(static_cast<double>(prompt_tokens));
  state_->metrics->histogram(MetricId::kRequestQueue).observe(std::max(0.0, queue_seconds));
}

void RequestMetrics::token(std::int32_t choice) {
  if (state_->ended || choice < 0) return;
  const Clock::time_point now = Clock::now();
  const auto index = static_cast<std::size_t>(choice);
  if (index >= state_->last_token.size()) state_->last_token.resize(index + 1);
  Clock::time_point& last = state_->last_token[index];
  ++state_->generated;
  if (last != Clock::time_point()) {
    state_->inter_token.observe(seconds_between(last, now));
  } else if (!state_->has_token) {
    state_->has_token = true;
    state_->first_token.observe(seconds_between(state_->arrival, now));
  }
  last = now;
}

void RequestMetrics::end(RequestEnd end, double prefill_seconds, double decode_seconds) {
  if (state_->ended) return;
  state_->ended = true;
  Metrics& metrics = *state_->metrics;
  const std::string_view outcome = to_string(outcome_of(end));
  const std::lock_guard lock(metrics.request_lock());
  if (state_->started)
    metrics.histogram(MetricId::kRequestGeneratedTokens).observe(static_cast<double>(state_->generated));
  if (state_->has_token) {
    metrics.histogram(MetricId::kRequestPrefill).observe(std::max(0.0, prefill_seconds));
    metrics.histogram(MetricId::kRequestDecode).observe(std::max(0.0, decode_seconds));
  }
  metrics.histogram(MetricId::kRequestDuration, {outcome})
      .observe(seconds_between(state_->arrival, Clock::now()));
  metrics.counter(MetricId::kRequests, {outcome, to_string(end)}).add();
  metrics.gauge(MetricId::kRequestsInFlight).add(-1);
}

bool RequestMetrics::ended() const { return state_->ended; }

}  // namespace pivot
