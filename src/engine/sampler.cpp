#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "numeric/philox.h"

namespace pivot {
namespace {

constexpr float kMaxPenalty = 2.0f;  // OpenAI's range
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// Candidate tokens in the order of preference: higher logit, then lower id.
struct Candidate {
  float logit;
  std::int32_t id;
};
bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}
// std::*_heap keep the greatest by this order at the front.
bool worse(const Candidate& a, const Candidate& b) { return better(b, a); }

// A logit that is NaN or +inf, or no finite one at all, comes from a fault of the computation.
std::optional<Error> find_fault(std::span<const float> logits) {
  std::int64_t nan_count = 0;
  std::int64_t infinity_count = 0;
  std::int64_t finite_count = 0;
  for (const float logit : logits) {
    nan_count += std::isnan(logit) ? 1 : 0;
    infinity_count += logit == std::numeric_limits<float>::infinity() ? 1 : 0;
    finite_count += std::isfinite(logit) ? 1 : 0;
  }
  if (nan_count == 0 && infinity_count == 0 && finite_count > 0) return std::nullopt;
  return Error{
      ErrorCode::kInternal,
      fmt::format(
          "the model's logits are unusable: of {} values {} are NaN, {} are +inf and {} are finite; no "
          "token was chosen. Check the weights with `pivot inspect`, then report the prompt",
          logits.size(), nan_count, infinity_count, finite_count),
      {}};
}

// max + log(sum exp(x - max)), summed in double.
double log_sum_exp(std::span<const float> logits) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - maximum);
  return maximum + std::log(sum);
}

// Keeps the tokens that top-k, top-p and min-p leave, with probabilities relative to the best one.
struct Distribution {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;  // exp((logit - max) / temperature)
};

// The logits that the draw sees where they differ from the model's: empty when they do not.
std::vector<float> adjust(std::span<const float> logits, const SamplingParams& params,
                          const SampleContext& context) {
  const bool penalise = context.history != nullptr && uses_history(params);
  if (!penalise && params.logit_bias.empty() && context.allowed.empty() && context.forbidden.empty())
    return {};
  std::vector<float> row(logits.begin(), logits.end());
  if (penalise) {
    for (const auto& [id, count] : context.history->counts()) {
      float& logit = row[static_cast<std::size_t>(id)];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      if (count > 0) logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const LogitBias& bias : params.logit_bias) row[static_cast<std::size_t>(raw(bias.id))] += bias.bias;
  if (!context.allowed.empty())
    for (std::size_t i = 0; i < row.size(); ++i)
      if ((context.allowed[i / 32] >> (i % 32) & 1u) == 0) row[i] = kNegativeInfinity;
  for (const TokenId id : context.forbidden) row[static_cast<std::size_t>(raw(id))] = kNegativeInfinity;
  return row;
}

Distribution truncate(std::vector<Candidate> candidates, const SamplingParams& params) {
  const double maximum = std::max_element(candidates.begin(), candidates.end(), worse)->logit;
  const auto weight = [&](const Candidate& c) { return std::exp((c.logit - maximum) / params.temperature); };
  Distribution result;
  const auto keep = [&](const Candidate& c, double w) {
    result.ids.push_back(c.id);
    result.weights.push_back(w);
  };
  const bool has_top_k = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < candidates.size();
  const bool has_top_p = params.top_p < 1.0f;
  if (!has_top_k && !has_top_p) {
    for (const Candidate& c : candidates) {
      const double w = weight(c);
      if (w >= params.min_p) keep(c, w);
    }
    return result;
  }
  if (has_top_k) {
    std::nth_element(candidates.begin(), candidates.begin() + params.top_k, candidates.end(), better);
    candidates.resize(static_cast<std::size_t>(params.top_k));
  }
  double total = 0;
  for (const Candidate& c : candidates) total += weight(c);
  // Best first from a heap: a nucleus is usually a handful of tokens, so nothing is sorted that is not
  // needed.
  std::make_heap(candidates.begin(), candidates.end(), worse);
  double sum = 0;
  for (auto end = candidates.end(); end != candidates.begin(); --end) {
    std::pop_heap(candidates.begin(), end, worse);
    const Candidate& c = *(end - 1);
    const double w = weight(c);
    if (w < params.min_p) break;
    keep(c, w);
    sum += w;
    if (has_top_p && sum >= params.top_p * total) break;
  }
  return result;
}

}  // namespace

void TokenHistory::add_prompt(std::span<const TokenId> ids) {
  for (const TokenId id : ids) counts_.try_emplace(raw(id), 0);
}

bool uses_history(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

Result<> validate(const SamplingParams& params, std::int64_t vocab_size) {
  const auto outside = [](std::string_view name, double value, std::string_view range) {
    return fail(ErrorCode::kInvalidArgument, "{} is {}; it must be {}", name, value, range);
  };
  if (!(params.temperature >= 0.0f) || !std::isfinite(params.temperature))
    return outside("temperature", params.temperature, "a finite number of at least 0");
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f))
    return outside("top_p", params.top_p, "above 0 and at most 1");
  if (params.top_k < 0) return outside("top_k", params.top_k, "0 (no limit) or a positive count");
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f))
    return outside("min_p", params.min_p, "between 0 and 1");
  if (!(params.repetition_penalty > 0.0f) || !std::isfinite(params.repetition_penalty))
    return outside("repetition_penalty", params.repetition_penalty, "a finite number above 0");
  if (!(std::abs(params.presence_penalty) <= kMaxPenalty))
    return outside("presence_penalty", params.presence_penalty, "between -2 and 2");
  if (!(std::abs(params.frequency_penalty) <= kMaxPenalty))
    return outside("frequency_penalty", params.frequency_penalty, "between -2 and 2");
  if (params.top_logprobs < -1) return outside("top_logprobs", params.top_logprobs, "at least 0");
  for (const LogitBias& bias : params.logit_bias) {
    if (raw(bias.id) < 0 || raw(bias.id) >= vocab_size)
      return fail(ErrorCode::kInvalidArgument, "logit_bias names token {}, outside the vocabulary of {}",
                  raw(bias.id), vocab_size);
    if (std::isnan(bias.bias) || bias.bias == std::numeric_limits<float>::infinity())
      return fail(ErrorCode::kInvalidArgument, "logit_bias of token {} is {}; it must be finite or -inf",
                  raw(bias.id), bias.bias);
  }
  return {};
}

Result<TokenId> argmax(std::span<const float> logits) {
  if (std::optional<Error> fault = find_fault(logits)) return fail(*std::move(fault));
  return TokenId{static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
}

float token_logprob(std::span<const float> logits, TokenId id) {
  return static_cast<float>(logits[static_cast<std::size_t>(raw(id))] - log_sum_exp(logits));
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::int32_t n) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    candidates.push_back({logits[i], static_cast<std::int32_t>(i)});
  const std::size_t count = std::min(static_cast<std::size_t>(std::max(n, 0)), candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count),
                    candidates.end(), better);
  std::vector<TokenLogprob> top;
  if (count == 0) return top;
  const double normaliser = log_sum_exp(logits);
  for (std::size_t i = 0; i < count; ++i)
    top.push_back({TokenId{candidates[i].id}, static_cast<float>(candidates[i].logit - normaliser)});
  return top;
}

double uniform(std::uint64_t seed, std::uint64_t counter) { return philox_uniform(seed, counter); }

Result<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                            std::uint64_t counter) {
  SampleContext context;
  context.counter = counter;
  return sample(logits, params, context);
}

Result<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                            const SampleContext& context) {
  if (std::optional<Error> fault = find_fault(logits)) return fail(*std::move(fault));

  const std::vector<float> adjusted = adjust(logits, params, context);
  if (!adjusted.empty() &&
      std::none_of(adjusted.begin(), adjusted.end(), [](float x) { return x > kNegativeInfinity; }))
    return fail(
        ErrorCode::kInvalidArgument,
        "logit_bias, constraint and stop-token rules together forbid every token; allow at least one");
  const std::span<const float> row = adjusted.empty() ? logits : std::span<const float>(adjusted);

  SampledToken result;
  if (params.temperature == 0.0f) {
    result.id = TokenId{static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin())};
  } else {
    std::vector<Candidate> candidates;
    candidates.reserve(row.size());
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i] > kNegativeInfinity) candidates.push_back({row[i], static_cast<std::int32_t>(i)});
    const Distribution distribution = truncate(std::move(candidates), params);
    double total = 0;
    for (const double w : distribution.weights) total += w;
    const double target = uniform(params.seed, context.counter) * total;
    double sum = 0;
    // The last token takes what rounding may leave over.
    std::size_t chosen = distribution.ids.size() - 1;
    for (std::size_t i = 0; i < distribution.ids.size(); ++i) {
      sum += distribution.weights[i];
      if (target < sum) {
        chosen = i;
        break;
      }
    }
    result.id = TokenId{distribution.ids[chosen]};
  }
  if (params.top_logprobs >= 0) {
    result.logprob = token_logprob(logits, result.id);
    result.top = top_logprobs(logits, params.top_logprobs);
  }
  return result;
}

}  // namespace pivot
