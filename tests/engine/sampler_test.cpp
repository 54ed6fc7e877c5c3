#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace pivot::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

SamplingParams with_temperature(float temperature) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = 17;
  return params;
}

std::map<std::int32_t, int> histogram(const std::vector<float>& logits, const SamplingParams& params,
                                      int draws) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < draws; ++i)
    ++counts[raw(sample(logits, params, static_cast<std::uint64_t>(i)).value().id)];
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualLogits) {
  EXPECT_EQ(raw(argmax(std::vector<float>{1, 3, 3, -kInf}).value()), 1);
  EXPECT_EQ(raw(sample(std::vector<float>{1, 3, 3}, SamplingParams::greedy(), 5).value().id), 1);
}

// B18: a row that is not a distribution is an error, never token 0.
TEST(Sampler, UnusableLogitsAreAnError) {
  for (const auto& logits : {std::vector<float>{0, kNan, 1}, std::vector<float>{-kInf, -kInf},
                             std::vector<float>{kNan}, std::vector<float>{0, kInf}, std::vector<float>{}}) {
    for (float temperature : {0.0f, 1.0f}) {
      const auto token = sample(logits, with_temperature(temperature), 0);
      ASSERT_FALSE(token);
      EXPECT_EQ(token.error().code, ErrorCode::kInternal);
    }
    EXPECT_FALSE(argmax(logits));
  }
  const auto token = sample(std::vector<float>{0, kNan, kInf, -kInf}, with_temperature(1), 0);
  EXPECT_NE(token.error().message.find("of 4 values 1 are NaN, 1 are +inf"), std::string::npos)
      << token.error().message;
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -kInf};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    constexpr int kDraws = 40000;
    const auto counts = histogram(logits, with_temperature(temperature), kDraws);
    double total = 0;
    for (int i = 0; i < 3; ++i) total += std::exp(i / temperature);
    for (int i = 0; i < 3; ++i) {
      const double p = std::exp(i / temperature) / total;
      // Five standard deviations of a binomial count.
      EXPECT_NEAR(counts.count(i) > 0 ? counts.at(i) : 0, p * kDraws, 5 * std::sqrt(kDraws * p * (1 - p)))
          << i;
    }
    EXPECT_EQ(counts.count(3), 0u);
  }
}

TEST(Sampler, TopKKeepsTheBestAndTiesGoToLowerIds) {
  SamplingParams params = with_temperature(1);
  params.top_k = 2;
  const auto counts = histogram({1, 2, 1, 1}, params, 2000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts.count(1), 1u);
  EXPECT_EQ(counts.count(0), 1u);
  params.top_k = 1;
  EXPECT_EQ(histogram({1, 2, 1, 1}, params, 100).size(), 1u);
  params.top_k = 100;
  EXPECT_EQ(histogram({1, 2, 1, 1}, params, 2000).size(), 4u);
}

TEST(Sampler, TopPKeepsTheSmallestSufficientSet) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f), std::log(0.125f)};
  SamplingParams params = with_temperature(1);
  const auto kept = [&](float top_p) {
    params.top_p = top_p;
    return histogram(logits, params, 4000).size();
  };
  EXPECT_EQ(kept(0.01f), 1u);
  EXPECT_EQ(kept(0.49f), 1u);
  EXPECT_EQ(kept(0.6f), 2u);
  EXPECT_EQ(kept(0.76f), 3u);
  EXPECT_EQ(kept(0.9f), 4u);
  EXPECT_EQ(kept(1.0f), 4u);
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f), std::log(0.125f)};
  SamplingParams params = with_temperature(1);
  params.min_p = 0.3f;
  EXPECT_EQ(histogram(logits, params, 4000).size(), 2u);
  params.top_p = 0.99f;
  EXPECT_EQ(histogram(logits, params, 4000).size(), 2u);
  params.min_p = 1.0f;
  EXPECT_EQ(histogram(logits, params, 100).size(), 1u);
}

TEST(Sampler, BiasForbidsAndPrefers) {
  SamplingParams params = with_temperature(1);
  params.logit_bias = {{TokenId{1}, -kInf}, {TokenId{0}, 50.0f}};
  EXPECT_EQ(histogram({0, 10, 5}, params, 500).size(), 1u);
  params.temperature = 0;
  EXPECT_EQ(raw(sample(std::vector<float>{0, 10, 5}, params, 0).value().id), 0);
  params.logit_bias = {{TokenId{0}, -kInf}, {TokenId{1}, -kInf}};
  const auto none = sample(std::vector<float>{1, 2}, params, 0);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f), std::log(0.125f)};
  SamplingParams params = with_temperature(0);
  params.top_logprobs = 3;
  params.logit_bias = {{TokenId{3}, 100.0f}};
  const SampledToken token = sample(logits, params, 0).value();
  EXPECT_EQ(raw(token.id), 3);
  EXPECT_NEAR(token.logprob, std::log(0.125), 1e-6);
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(raw(token.top[0].id), 1);
  EXPECT_EQ(raw(token.top[1].id), 2);
  EXPECT_EQ(raw(token.top[2].id), 0);
  EXPECT_NEAR(token.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(top_logprobs(logits, 100).size(), 4u);
}

// The known answer of Philox4x32-10 for key 0 and counter 0 begins 6627e8d5 e169c58d.
TEST(Sampler, RandomNumbersArePhilox) {
  EXPECT_EQ(uniform(0, 0), static_cast<double>(0x6627e8d5e169c58dULL >> 11) * 0x1p-53);
  EXPECT_NE(uniform(1, 0), uniform(0, 0));
  EXPECT_NE(uniform(0, 1), uniform(0, 0));
}

TEST(Sampler, ADrawDependsOnSeedAndCounterAlone) {
  const std::vector<float> logits(100, 0.0f);
  const SamplingParams params = with_temperature(1);
  for (std::uint64_t counter = 0; counter < 50; ++counter)
    EXPECT_EQ(raw(sample(logits, params, counter).value().id),
              raw(sample(logits, params, counter).value().id));
  EXPECT_GT(histogram(logits, params, 500).size(), 80u);
}

TEST(Sampler, ParametersAreChecked) {
  EXPECT_TRUE(validate(SamplingParams{}, 10));
  EXPECT_TRUE(validate(SamplingParams::greedy(), 10));
  const auto refused = [](auto change, const char* name) {
    SamplingParams params;
    change(params);
    const auto result = validate(params, 10);
    ASSERT_FALSE(result) << name;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(result.error().message.find(name), std::string::npos) << result.error().message;
  };
  refused([](auto& p) { p.temperature = -1; }, "temperature");
  refused([](auto& p) { p.temperature = kNan; }, "temperature");
  refused([](auto& p) { p.temperature = kInf; }, "temperature");
  refused([](auto& p) { p.top_p = 0; }, "top_p");
  refused([](auto& p) { p.top_p = 1.5f; }, "top_p");
  refused([](auto& p) { p.top_p = kNan; }, "top_p");
  refused([](auto& p) { p.top_k = -1; }, "top_k");
  refused([](auto& p) { p.min_p = 2; }, "min_p");
  refused([](auto& p) { p.top_logprobs = -2; }, "top_logprobs");
  refused([](auto& p) { p.logit_bias = {{TokenId{10}, 1.0f}}; }, "logit_bias names token 10");
  refused([](auto& p) { p.logit_bias = {{TokenId{-1}, 1.0f}}; }, "logit_bias names token -1");
  refused([](auto& p) { p.logit_bias = {{TokenId{1}, kNan}}; }, "logit_bias of token 1");
}

TEST(Sampler, PenaltiesTouchWhatCameAndNothingElse) {
  const std::vector<float> logits = {3.0f, 2.9f, -1.0f, 2.5f};
  TokenHistory history;
  const std::vector<TokenId> prompt = {TokenId{1}};
  history.add_prompt(prompt);
  history.add(TokenId{0});
  history.add(TokenId{0});
  SampleContext context;
  context.history = &history;
  const auto best = [&](const SamplingParams& params) { return raw(sample(logits, params, context)->id); };
  SamplingParams params = SamplingParams::greedy();
  EXPECT_EQ(best(params), 0);
  params.frequency_penalty =
      0.3f;  // twice: 3.0 becomes 2.4, below the prompt's token, which it does not touch
  EXPECT_EQ(best(params), 1);
  params = SamplingParams::greedy();
  params.presence_penalty = 0.05f;  // once, however often it came
  EXPECT_EQ(best(params), 0);
  params.repetition_penalty = 2.0f;  // prompt and answer: 1.5 and 1.45 are left
  EXPECT_EQ(best(params), 3);
  params.presence_penalty = 3.0f;
  EXPECT_FALSE(validate(params, 4));
  params = SamplingParams::greedy();
  params.repetition_penalty = 0.0f;
  EXPECT_FALSE(validate(params, 4));
}

TEST(Sampler, MaskAndForbiddenTokensAreNeverDrawn) {
  const std::vector<float> logits(70, 0.0f);
  SamplingParams params;
  SampleContext context;
  const std::uint32_t mask[3] = {0, 1u << 3, 1u << 1};  // 35 and 65
  context.allowed = mask;
  bool seen[2] = {};
  for (std::uint64_t counter = 0; counter < 200; ++counter) {
    context.counter = counter;
    const std::int32_t id = raw(sample(logits, params, context)->id);
    ASSERT_TRUE(id == 35 || id == 65) << id;
    seen[id == 65] = true;
  }
  EXPECT_TRUE(seen[0] && seen[1]);
  const std::vector<TokenId> forbidden = {TokenId{65}};
  context.forbidden = forbidden;
  EXPECT_EQ(raw(sample(logits, params, context)->id), 35);
  const std::vector<TokenId> both = {TokenId{35}, TokenId{65}};
  context.forbidden = both;
  const Result<SampledToken> none = sample(logits, params, context);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pivot::test
