// Sampling from one row of logits: pure functions, no state but the caller's counter.
//
// Order: penalties, logit bias, forbidden tokens, temperature, top-k, top-p, min-p, then one draw.
// temperature 0 is greedy (the lowest id of equal logits). The random number of a draw is a function of
// (seed, counter) alone, so a token never depends on what else runs, and a restored sequence continues with
// the numbers that it would have had.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace pivot {

struct LogitBias {
  TokenId id{};
  float bias = 0.0f;  // added to the logit; -inf forbids the token
};

struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0 is greedy
  float top_p = 1.0f;        // (0, 1]
  std::int32_t top_k = 0;    // 0: no limit
  float min_p = 0.0f;        // [0, 1]: relative to the most likely token
  std::uint64_t seed = 0;
  // > 0: the logit of a token of the prompt or the answer is divided (positive) or multiplied (negative) by
  // it.
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;   // subtracted from the logit of each token of the answer
  float frequency_penalty = 0.0f;  // subtracted once per occurrence in the answer
  std::vector<LogitBias> logit_bias;
  std::int32_t top_logprobs =
      -1;  // -1: no logprobs; 0: of the chosen token; n: and of the n most likely tokens

  static SamplingParams greedy() {
    SamplingParams params;
    params.temperature = 0.0f;
    return params;
  }
};

struct TokenLogprob {
  TokenId id{};
  float logprob =
      0.0f;  // natural log of the model's own distribution: before bias, temperature and truncation
};

struct SampledToken {
  TokenId id{};
  float logprob = 0.0f;           // valid when SamplingParams::top_logprobs >= 0
  std::vector<TokenLogprob> top;  // most likely first
};

// What the penalties look at: which tokens came, and how often in the answer.
class TokenHistory {
 public:
  void add_prompt(std::span<const TokenId> ids);
  void add(TokenId id) { ++counts_[raw(id)]; }
  // Occurrences in the answer by token; 0 for one that only the prompt has.
  const std::unordered_map<std::int32_t, std::int32_t>& counts() const { return counts_; }

 private:
  std::unordered_map<std::int32_t, std::int32_t> counts_;
};
// Whether these parameters need a TokenHistory.
bool uses_history(const SamplingParams& params);

// What else decides a draw.
struct SampleContext {
  std::uint64_t counter = 0;              // number of this draw in its sequence (the position works)
  const TokenHistory* history = nullptr;  // needed when uses_history
  // Bit t mod 32 of word t / 32: whether token t is allowed (engine/constraint.h). Empty: all are.
  std::span<const std::uint32_t> allowed;
  std::span<const TokenId> forbidden;  // ids inside the vocabulary
};

// kInvalidArgument naming the parameter, its value and its range; ids of logit_bias must lie in [0,
// vocab_size).
Result<> validate(const SamplingParams& params, std::int64_t vocab_size);

// Draws one token.
// Errors: kInternal when a logit is NaN or +inf, or when no token has a finite logit (faults of the
// computation, never answered with token 0); kInvalidArgument when bias and constraints together forbid every
// token.
Result<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                            const SampleContext& context);
// The same without penalties and constraints.
Result<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                            std::uint64_t counter);

// The most likely token, lowest id first. Errors as `sample`.
Result<TokenId> argmax(std::span<const float> logits);

// Natural-log probability of one token in the row's own softmax.
float token_logprob(std::span<const float> logits, TokenId id);

// Natural-log probabilities of the row's own softmax: the n most likely tokens, best first.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::int32_t n);

// Uniform in [0, 1) with 53 bits: Philox4x32-10 of (seed, counter).
double uniform(std::uint64_t seed, std::uint64_t counter);

}  // namespace pivot
