// Engines on the tiny checkpoint, and the same requests without an engine.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/devices.h"
#include "engine/engine.h"
#include "engine/engine_harness.h"
#include "engine/session.h"
#include "model/runner.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot::test {

inline constexpr std::int32_t kVocab = 512;

inline std::shared_ptr<const ModelWeights> tiny_weights() {
  static const std::shared_ptr<const ModelWeights> weights = [] {
    const std::filesystem::path folder = scratch_dir() / "tiny_engine";
    write_tiny_checkpoint(folder);
    return load_or_die(folder);
  }();
  return weights;
}

// As little of the architecture as has every kind of layer and state: for tests of the engine's books, where
// a step should take well under a millisecond.
inline std::shared_ptr<const ModelWeights> small_weights() {
  static const std::shared_ptr<const ModelWeights> weights = [] {
    TinyOptions small;
    small.compress_ratios = {0, 4, 128};
    small.vocab_size = kVocab;
    small.hidden_size = 64;
    small.num_attention_heads = 2;
    small.head_dim = 128;
    small.q_lora_rank = 64;
    small.o_groups = 1;
    small.o_lora_rank = 64;
    small.index_n_heads = 2;
    small.n_routed_experts = 4;
    small.moe_intermediate_size = 64;
    small.format = TinyFormat::kBf16;
    const std::filesystem::path folder = scratch_dir() / "small_engine";
    write_tiny_checkpoint(folder, small);
    return load_or_die(folder);
  }();
  return weights;
}

inline EngineOptions options_for(std::shared_ptr<const ModelWeights> weights, std::int32_t max_sequences,
                                 std::int64_t max_context) {
  EngineOptions options;
  options.weights = std::move(weights);
  options.backend = make_backend("cpu", 2).value();
  options.max_context = max_context;
  options.max_sequences = max_sequences;
  options.poison = true;
  return options;
}
inline EngineOptions tiny_options(std::int32_t max_sequences = 8, std::int64_t max_context = 2048) {
  return options_for(tiny_weights(), max_sequences, max_context);
}
inline EngineOptions small_options(std::int32_t max_sequences = 8, std::int64_t max_context = 2048) {
  return options_for(small_weights(), max_sequences, max_context);
}

inline std::unique_ptr<Engine> make_engine(EngineOptions options) {
  auto engine = Engine::create(std::move(options));
  EXPECT_TRUE(engine) << engine.error().to_string();
  return *std::move(engine);
}

inline std::vector<TokenId> prompt(std::int64_t n, std::uint32_t seed) {
  return to_tokens(pseudo_random_ids(n, seed, kVocab));
}

inline EngineRequest request(std::vector<TokenId> ids, std::int64_t max_new_tokens = 8) {
  EngineRequest r;
  r.prompt = std::move(ids);
  r.max_new_tokens = max_new_tokens;
  r.sampling.top_logprobs = 3;
  return r;
}

inline SamplingParams hot(std::uint64_t seed) {
  SamplingParams params;
  params.temperature = 1.5f;
  params.top_p = 0.95f;
  params.seed = seed;
  params.top_logprobs = 3;
  return params;
}

// Tokens and, bit for bit, log-probabilities.
inline void expect_same(const std::vector<SampledToken>& actual, const std::vector<SampledToken>& expected,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(raw(actual[i].id), raw(expected[i].id)) << what << ", token " << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i].logprob),
              std::bit_cast<std::uint32_t>(expected[i].logprob))
        << what << ", token " << i;
    ASSERT_EQ(actual[i].top.size(), expected[i].top.size()) << what;
    for (std::size_t k = 0; k < actual[i].top.size(); ++k)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i].top[k].logprob),
                std::bit_cast<std::uint32_t>(expected[i].top[k].logprob))
          << what << ", token " << i;
  }
}

// The same request on a session of its own: nothing of the engine but the sampler takes part.
inline std::vector<SampledToken> alone(const EngineRequest& r, std::int64_t max_context = 2048,
                                       const std::shared_ptr<const ModelWeights>& weights = tiny_weights()) {
  static std::map<std::pair<const ModelWeights*, std::int64_t>, std::unique_ptr<Session>> sessions;
  std::unique_ptr<Session>& session = sessions[{weights.get(), max_context}];
  if (session == nullptr) {
    SessionOptions options;
    options.weights = weights;
    options.backend = make_backend("cpu", 2).value();
    options.max_context = max_context;
    session = Session::create(options).value();
  }
  session->reset();
  GenerateOptions options;
  options.sampling = r.sampling;
  options.max_new_tokens = r.max_new_tokens;
  options.stop_tokens = r.stop_tokens;
  return session->generate(r.prompt, options).value().tokens;
}

inline EngineRequest copy_of(const EngineRequest& r) {
  EngineRequest c;
  c.prompt = r.prompt;
  c.sampling = r.sampling;
  c.max_new_tokens = r.max_new_tokens;
  c.stop_tokens = r.stop_tokens;
  c.client = r.client;
  c.priority = r.priority;
  c.use_prefix_cache = r.use_prefix_cache;
  return c;
}

inline void expect_nothing_held(Engine& engine) {
  engine.clear_prefix_cache();
  wait_until_idle(engine);
  // The cleared figures come with the next turn of the loop.
  for (int i = 0; i < 1000 && engine.stats().prefix.entries > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.slots.used, 0);
  EXPECT_EQ(stats.prefix.entries, 0);
  EXPECT_EQ(stats.prefix.host_bytes, 0);
  EXPECT_EQ(stats.preempted, 0);
  EXPECT_EQ(stats.preempted_bytes, 0);
  for (const PoolUse& use : stats.pages) EXPECT_EQ(use.free, use.total);
  EXPECT_EQ(stats.submitted, stats.finished + stats.cancelled + stats.failed);
}

}  // namespace pivot::test
