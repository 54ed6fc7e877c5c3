// What must come out the same although it was computed another way (docs/public-faults.md, section 0),
// through the HTTP API. M1 and M8 are in server_test.cpp.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/devices.h"
#include "replaying_backend.h"
#include "server_fixture.h"

namespace pivot {
namespace {

using nlohmann::json;
using test::TestServer;

// SEQ(n, s) of docs/public-faults.md, in the embedded model's vocabulary.
std::vector<int> sequence(int n, std::uint32_t seed) {
  std::vector<int> ids;
  std::uint32_t x = seed * 2654435761u;
  for (int i = 0; i < n; ++i) {
    x = 1664525u * x + 1013904223u;
    ids.push_back(static_cast<int>(x / 65536 % 1500) + 100);
  }
  return ids;
}

std::vector<int> joined(std::vector<int> ids, const std::vector<int>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// Greedy, with the probabilities behind every token. `forced`: the one token that may come.
json complete(TestServer& server, const std::vector<int>& ids, int tokens, int forced = -1) {
  json body = {
      {"prompt", ids}, {"max_tokens", tokens}, {"temperature", 0}, {"logprobs", 5}, {"ignore_eos", true}};
  // Probabilities are told as the model has them, before the bias.
  if (forced >= 0) body["logit_bias"] = {{std::to_string(forced), 100}};
  const auto reply = server.client().post("/v1/completions", body.dump());
  EXPECT_EQ(reply.status, 200) << reply.body;
  return json::parse(reply.body, nullptr, false);
}

const json& logprobs(const json& reply) { return reply["choices"][0]["logprobs"]; }

int cached(const json& reply) { return reply["usage"]["prompt_tokens_details"]["cached_tokens"]; }

// M2: tokens that were decoded leave the state that the same tokens leave in a prompt. Lengths around 128, so
// that decoding closes groups of both ratios, and in every residue class of 4 (fault B01).
TEST(Relations, DecodedTokensAreAsGoodAsPromptTokens) {
  TestServer server([](server::InstanceOptions& options) {
    options.engine.prefix_cache = false;
    options.engine.poison = true;
  });
  for (int n = 124; n < 132; ++n) {
    const int forced = 200 + n;
    constexpr int kTokens = 7;
    const json decoded = complete(server, sequence(n, 1), kTokens, forced);
    ASSERT_EQ(logprobs(decoded)["tokens"].size(), static_cast<std::size_t>(kTokens));
    for (const int steps : {1, 2, 4, 6}) {
      const json prompted =
          complete(server, joined(sequence(n, 1), std::vector<int>(steps, forced)), 1, forced);
      EXPECT_EQ(logprobs(prompted)["token_logprobs"][0], logprobs(decoded)["token_logprobs"][steps])
          << n << " + " << steps;
      EXPECT_EQ(logprobs(prompted)["top_logprobs"][0], logprobs(decoded)["top_logprobs"][steps])
          << n << " + " << steps;
    }
  }
}

// M3, fault B04: a hit carries rings and compressor states, also after others have used the memory.
TEST(Relations, APrefixHitEqualsACacheThatIsOff) {
  TestServer warm([](server::InstanceOptions& options) {
    options.engine.poison = true;
    options.engine.max_sequences = 2;
  });
  TestServer cold([](server::InstanceOptions& options) { options.engine.prefix_cache = false; });
  for (const int n : {127, 128, 129, 255, 256, 257}) {
    const std::vector<int> ids = sequence(n, 3);
    const json first = complete(warm, ids, 4);
    EXPECT_EQ(cached(first), 0);
    for (std::uint32_t i = 0; i < 2; ++i)
      complete(warm, sequence(150, 1000u + static_cast<std::uint32_t>(2 * n) + i), 1);
    const std::vector<int> longer = joined(ids, sequence(9, 5));
    const json hit = complete(warm, longer, 8);
    EXPECT_EQ(cached(hit), n);
    const json miss = complete(cold, longer, 8);
    EXPECT_EQ(cached(miss), 0);
    EXPECT_EQ(hit["choices"], miss["choices"]) << n;
    const json again = complete(warm, ids, 4);
    EXPECT_EQ(cached(again), n);
    EXPECT_EQ(again["choices"], first["choices"]) << n;
    warm.instance().engine().clear_prefix_cache();  // the next length begins like this one
  }
}

// M4, faults B12 and B13: replayed steps answer as computed ones, below and beyond the point where the
// indexer begins to choose.
void expect_replays_equal(std::shared_ptr<Backend> replaying, std::shared_ptr<Backend> eager,
                          double tolerance) {
  const auto on = [](std::shared_ptr<Backend> backend) {
    return [backend](server::InstanceOptions& options) {
      options.engine.backend = backend;
      options.engine.prefix_cache = false;
    };
  };
  TestServer recorded(on(std::move(replaying)));
  TestServer computed(on(std::move(eager)));
  // Short ones first: what is recorded must not hold for short sequences alone.
  for (const int n : {3, 40, 250, 600}) {
    const json a = complete(recorded, sequence(n, 6), 16);
    const json b = complete(computed, sequence(n, 6), 16);
    EXPECT_EQ(logprobs(a)["tokens"], logprobs(b)["tokens"]) << n;
    const json& of_a = logprobs(a)["token_logprobs"];
    const json& of_b = logprobs(b)["token_logprobs"];
    ASSERT_EQ(of_a.size(), of_b.size());
    for (std::size_t i = 0; i < of_a.size(); ++i)
      EXPECT_NEAR(of_a[i].get<double>(), of_b[i].get<double>(), tolerance) << n << ", token " << i;
  }
  EXPECT_GT(recorded.metric("pivot_graph_replays_total"), 30);
  EXPECT_EQ(computed.metric("pivot_graph_replays_total"), 0);
}

TEST(Relations, ReplayedStepsEqualComputedOnes) {
  const auto cpu = [] { return make_backend("cpu", 2).value(); };
  expect_replays_equal(std::make_shared<test::ReplayingBackend>(cpu()), cpu(), 0);
}

TEST(Relations, ReplayedStepsEqualComputedOnesOnTheGpu) {
  auto gpu = make_backend("cuda");
  if (!gpu) GTEST_SKIP() << gpu.error().to_string();
  // What forwards does not replay.
  expect_replays_equal(*gpu, std::make_shared<ForwardingBackend>(make_backend("cuda").value()), 1e-2);
}

}  // namespace
}  // namespace pivot
