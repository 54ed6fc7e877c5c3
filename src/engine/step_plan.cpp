#include "engine/step_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace pivot {
namespace {

// Weight of the newest measurement.
constexpr double kNewest = 0.2;

double blend(double old, double newest) { return old > 0 ? old + kNewest * (newest - old) : newest; }

}  // namespace

std::size_t StepTimes::bucket_of(std::int32_t decode_tokens) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(decode_tokens - 1)));
}

void StepTimes::observe(std::int32_t decode_tokens, std::int32_t prefill_tokens, double seconds) {
  ++step_;
  if (prefill_tokens == 0) {
    if (decode_tokens <= 0) return;
    Bucket& bucket = decode_[std::min(bucket_of(decode_tokens), decode_.size() - 1)];
    bucket.seconds = blend(bucket.seconds, seconds);
    bucket.step = step_;
    return;
  }
  const double decode = decode_tokens > 0 ? decode_seconds(decode_tokens) : 0;
  // Without a yardstick for the decode part the step says nothing about a prompt token.
  if (decode_tokens > 0 && decode <= 0) return;
  const double per_token = std::max(seconds - decode, 0.0) / prefill_tokens;
  // Noise can make the difference vanish; a token never costs nothing.
  const double least = seconds / (16.0 * (prefill_tokens + std::max(decode_tokens, 0)));
  prefill_token_seconds_ = blend(prefill_token_seconds_, std::max(per_token, least));
}

double StepTimes::decode_seconds(std::int32_t decode_tokens) const {
  if (decode_tokens <= 0) return 0;
  const std::size_t wanted = std::min(bucket_of(decode_tokens), decode_.size() - 1);
  // Steps of fewer streams are not longer: a smaller measured batch is a safe yardstick. A larger one is
  // scaled down by the streams, which is less than it would take.
  for (std::size_t i = wanted + 1; i-- > 0;)
    if (decode_[i].seconds > 0) return decode_[i].seconds;
  for (std::size_t i = wanted + 1; i < decode_.size(); ++i)
    if (decode_[i].seconds > 0) return std::ldexp(decode_[i].seconds, -static_cast<int>(i - wanted));
  return 0;
}

bool StepTimes::needs_probe(std::int32_t decode_tokens) const {
  if (decode_tokens <= 0) return false;
  const Bucket& bucket = decode_[std::min(bucket_of(decode_tokens), decode_.size() - 1)];
  return bucket.step < 0 || step_ - bucket.step >= kProbeInterval;
}

std::int32_t StepTimes::prefill_budget(std::int32_t decode_tokens, double max_step_stretch,
                                       std::int32_t most) const {
  if (most <= 0) return 0;
  const auto clamped = [&](double tokens, std::int32_t least) {
    return static_cast<std::int32_t>(
        std::clamp(tokens, static_cast<double>(std::min(least, most)), static_cast<double>(most)));
  };
  if (decode_tokens <= 0)
    return prefill_token_seconds_ > 0 ? clamped(kAloneSeconds / prefill_token_seconds_, kMinAloneChunk)
                                      : most;
  const double decode = decode_seconds(decode_tokens);
  if (decode <= 0 || prefill_token_seconds_ <= 0) return std::min(kFirstChunk, most);
  return clamped(decode * (max_step_stretch - 1.0) / prefill_token_seconds_, kMinChunk);
}

std::vector<std::int32_t> share_prefill(std::span<const PrefillJob> jobs, const PrefillLimits& limits) {
  std::vector<std::int32_t> tokens(jobs.size(), 0);
  std::int64_t budget = limits.budget_tokens;
  std::int32_t room = limits.max_jobs;
  const auto wanted = [&](std::size_t i) {
    const PrefillJob& job = jobs[i];
    PIVOT_CHECK(job.remaining >= 1 && job.next_stop > job.position, "{} {} {}", job.position, job.remaining,
                job.next_stop);
    std::int64_t most = std::min(job.remaining, job.next_stop - job.position);
    if (limits.fixed_chunks) most = std::min(most, limits.chunk_tokens - job.position % limits.chunk_tokens);
    return most;
  };
  const auto give = [&](std::size_t i, std::int64_t most) {
    if (room <= 0 && tokens[i] == 0) return;
    std::int64_t given = std::min({most, budget, wanted(i) - tokens[i]});
    if (limits.fixed_chunks && given < wanted(i)) given = 0;
    if (given <= 0) return;
    if (tokens[i] == 0) --room;
    tokens[i] += static_cast<std::int32_t>(given);
    budget -= given;
  };
  if (jobs.empty()) return tokens;
  const std::int64_t half = (budget + 1) / 2;
  give(0, jobs.size() > 1 && !limits.fixed_chunks ? half : budget);
  std::vector<std::size_t> order(jobs.size() - 1);
  std::iota(order.begin(), order.end(), std::size_t{1});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return jobs[a].remaining < jobs[b].remaining; });
  for (std::size_t i : order) give(i, budget);
  give(0, budget);
  return tokens;
}

std::vector<std::int64_t> cache_stops(std::int64_t position, std::int64_t prompt_tokens,
                                      std::int64_t shared_tokens, std::int64_t block_tokens) {
  std::vector<std::int64_t> stops;
  const std::int64_t last = (prompt_tokens - 1) / block_tokens * block_tokens;
  std::int64_t at = 0;
  while (true) {
    const std::int64_t eighth = std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(at / 8, 1)));
    const std::int64_t stride = std::max(eighth / block_tokens, std::int64_t{1}) * block_tokens;
    at = (at / stride + 1) * stride;
    if (at > last) break;
    if (at > position) stops.push_back(at);
  }
  for (const std::int64_t extra : {shared_tokens / block_tokens * block_tokens, last})
    if (extra > position && extra < prompt_tokens && !std::binary_search(stops.begin(), stops.end(), extra))
      stops.insert(std::upper_bound(stops.begin(), stops.end(), extra), extra);
  return stops;
}

bool admits(const PoolRoom& room, std::int64_t soon, std::int64_t worst, bool worst_case) {
  if (worst > room.capacity) return false;
  if (worst_case) return room.worst + worst <= room.capacity;
  return soon <= room.available - room.promised;
}

}  // namespace pivot
