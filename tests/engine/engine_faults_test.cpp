// What goes wrong stays where it went wrong; what is on disk comes back; nothing leaks.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <random>

#include "engine/faulty_backend.h"
#include "engine/tiny_engine.h"

namespace pivot::test {
namespace {

std::vector<TokenId> prompt_without(std::int32_t id, std::int64_t n, std::uint32_t seed) {
  std::vector<TokenId> ids = prompt(n, seed);
  for (TokenId& token : ids)
    if (raw(token) == id) token = TokenId{id + 1};
  return ids;
}

TEST(EngineFaults, UnusableLogitsFailOneRequestAndLeaveNoStateBehind) {
  constexpr std::int32_t kBad = 499;
  EngineOptions options = tiny_options(4);
  const auto faulty = std::make_shared<FaultyBackend>(options.backend);
  faulty->nan_token = kBad;
  options.backend = faulty;
  auto engine = make_engine(std::move(options));
  Collector collector;
  std::vector<RequestId> good;
  for (std::uint32_t i = 0; i < 3; ++i) {
    EngineRequest r = request(prompt_without(kBad, 300, i), 10);
    r.sampling.logit_bias = {{TokenId{kBad}, -std::numeric_limits<float>::infinity()}};
    good.push_back(engine->submit(std::move(r), collector.sink()).value());
  }
  std::vector<TokenId> ids = prompt_without(kBad, 300, 9);
  ids.back() = TokenId{kBad};
  const RequestId bad = engine->submit(request(ids, 10), collector.sink()).value();
  const Answer failed = collector.wait(bad).front();
  ASSERT_TRUE(failed.failed);
  EXPECT_EQ(failed.failed->error.code, ErrorCode::kInternal);
  EXPECT_NE(failed.failed->error.to_string().find("1 are NaN"), std::string::npos);
  EXPECT_NE(failed.failed->error.to_string().find("300 prompt"), std::string::npos)
      << failed.failed->error.to_string();
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Answer answer = collector.wait(good[i]).front();
    ASSERT_TRUE(answer.finished);
    EngineRequest r = request(prompt_without(kBad, 300, i), 10);
    r.sampling.logit_bias = {{TokenId{kBad}, -std::numeric_limits<float>::infinity()}};
    expect_same(answer.tokens, alone(r), "beside the failing one");
  }
  // Its states are gone: the same prompt finds nothing once the fault is over.
  faulty->nan_token = -1;
  const Answer again = run_request(*engine, request(ids, 10));
  ASSERT_TRUE(again.finished);
  EXPECT_EQ(again.started->cached_tokens, 0);
  expect_same(again.tokens, alone(request(ids, 10)), "after the fault");
  EXPECT_EQ(engine->stats().failed, 1u);
  expect_nothing_held(*engine);
}

TEST(EngineFaults, AFailingStepFailsItsRequestsAndTheEngineGoesOn) {
  EngineOptions options = tiny_options(2);
  const auto faulty = std::make_shared<FaultyBackend>(options.backend);
  options.backend = faulty;
  auto engine = make_engine(std::move(options));
  faulty->failing_steps = 1;
  const Answer failed = run_request(*engine, request(prompt(40, 1), 5));
  ASSERT_TRUE(failed.failed);
  EXPECT_EQ(failed.failed->error.code, ErrorCode::kInternal);
  const Answer answer = run_request(*engine, request(prompt(40, 1), 5));
  ASSERT_TRUE(answer.finished);
  expect_same(answer.tokens, alone(request(prompt(40, 1), 5)), "after a failed step");
  EXPECT_EQ(engine->stats().failed_steps, 1u);
  EXPECT_TRUE(engine->accepting());

  faulty->failing_steps = 1000000;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_request(*engine, request(prompt(40, 1), 5)).failed);
  EXPECT_FALSE(engine->accepting());  // the device is lost
  wait_until_idle(*engine);
}

// A constraint that allows one given token after the other.
class Script : public TokenConstraint {
 public:
  explicit Script(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
  Result<bool> fill_mask(std::span<std::uint32_t> mask) override {
    if (at_ >= tokens_.size()) return fail(ErrorCode::kInternal, "the script is over");
    std::fill(mask.begin(), mask.end(), 0u);
    const auto id = static_cast<std::size_t>(raw(tokens_[at_]));
    mask[id / 32] |= 1u << (id % 32);
    return true;
  }
  Result<> accept(TokenId token) override {
    if (token != tokens_[at_]) return fail(ErrorCode::kInternal, "not what the script says");
    ++at_;
    return {};
  }
  bool is_finished() const override { return at_ == tokens_.size(); }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Script>(*this); }

 private:
  std::vector<TokenId> tokens_;
  std::size_t at_ = 0;
};

TEST(EngineFaults, AConstraintDecidesEveryTokenOfEveryChoice) {
  auto engine = make_engine(tiny_options(3));
  const std::vector<TokenId> script = prompt(7, 33);
  EngineRequest r = request(prompt(20, 1), 0);
  r.sampling = hot(1);
  r.num_choices = 3;
  r.constraint = std::make_unique<Script>(script);
  Collector collector;
  const RequestId id = engine->submit(std::move(r), collector.sink()).value();
  for (const Answer& answer : collector.wait(id, 3)) {
    ASSERT_TRUE(answer.finished);
    EXPECT_EQ(answer.finished->reason, FinishReason::kStopToken);
    ASSERT_EQ(answer.tokens.size(), script.size());
    for (std::size_t i = 0; i < script.size(); ++i) EXPECT_EQ(answer.tokens[i].id, script[i]);
  }
}

TEST(EngineFaults, TheDiskTierServesAfterARestartAndDamageIsAMiss) {
  const std::filesystem::path folder = scratch_dir() / "engine_disk";
  const auto options = [&] {
    EngineOptions o = tiny_options(2);
    o.disk_cache = folder;
    return o;
  };
  const EngineRequest first = request(prompt(600, 3), 20);
  const std::vector<SampledToken> expected = alone(first);
  std::vector<TokenId> next_turn = first.prompt;
  for (const SampledToken& token : expected) next_turn.push_back(token.id);
  for (const TokenId id : prompt(15, 4)) next_turn.push_back(id);
  const EngineRequest second = request(next_turn, 10);
  {
    auto engine = make_engine(options());
    run_request(*engine, copy_of(first));
  }
  {
    auto engine = make_engine(options());
    EXPECT_EQ(engine->stats().disk.entries, 2);
    const Answer repeated = run_request(*engine, copy_of(first));
    EXPECT_EQ(repeated.started->cached_tokens, 512);
    expect_same(repeated.tokens, expected, "repeated after a restart");
    const Answer turn = run_request(*engine, copy_of(second));
    EXPECT_EQ(turn.started->cached_tokens, 619);
    expect_same(turn.tokens, alone(second), "next turn after a restart");
    wait_until_idle(*engine);
    EXPECT_EQ(engine->stats().disk.hits, 1u);  // the second came from memory
    expect_nothing_held(*engine);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.file_size() < 1000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.put('x').put('y').put('z');
  }
  auto engine = make_engine(options());
  const Answer cold = run_request(*engine, copy_of(first));
  EXPECT_EQ(cold.started->cached_tokens, 0);
  expect_same(cold.tokens, expected, "with every file damaged");
  EXPECT_GT(engine->stats().disk.damaged, 0u);
}

// Random requests, cancellations and early ends from several threads on a pool that is too small for them.
TEST(EngineProperty, RandomUseLeavesNothingBehind) {
  EngineOptions options = small_options(6, 512);
  const CacheLayout layout = make_cache_layout(options.weights->config, options.knobs).value();
  const std::int64_t of_one = layout.planned_bytes_for(1, 512) - layout.slot_bytes;
  options.state_bytes = 6 * layout.slot_bytes + PageTables::planned_bytes(layout, 6, 512) + of_one * 2 + 4096;
  options.prefix_cache_bytes = std::int64_t{24} << 20;
  options.max_queued = 100;
  auto engine = make_engine(std::move(options));
  std::atomic<int> ended{0}, refused{0}, choices{0};
  std::vector<std::thread> clients;
  for (std::uint32_t c = 0; c < 3; ++c)
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      std::vector<RequestId> mine;
      for (int i = 0; i < 60; ++i) {
        const std::int64_t lengths[] = {1, 3, 4, 31, 127, 128, 129, 255, 256, 257};
        EngineRequest r = request(prompt(lengths[random() % 10], random() % 6), 1 + random() % 12);
        r.client = std::to_string(random() % 4);
        r.priority = static_cast<std::int32_t>(random() % 3);
        r.num_choices = random() % 8 == 0 ? 3 : 1;
        if (random() % 11 == 0) r.max_new_tokens = 100000;  // refused for length
        if (random() % 10 == 0) r.max_new_tokens = 120;
        const std::int32_t wanted = r.num_choices;
        Engine* const raw_engine = engine.get();
        const bool stops = random() % 9 == 0;
        auto id = engine->submit(
            std::move(r),
            [&, raw_engine, stops](RequestId request_id, std::int32_t choice, EngineEvent event) {
              if (stops && std::holds_alternative<TokenEvent>(event)) raw_engine->finish(request_id, choice);
              if (std::holds_alternative<FinishedEvent>(event) || std::holds_alternative<FailedEvent>(event))
                ++ended;
              EXPECT_FALSE(std::holds_alternative<FailedEvent>(event));
            });
        if (!id) {
          ++refused;
          continue;
        }
        choices += wanted;
        mine.push_back(*id);
        if (random() % 7 == 0) engine->cancel(mine[random() % mine.size()]);
        if (random() % 25 == 0) engine->clear_prefix_cache();
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
      }
    });
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < 60000 && ended < choices; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  wait_until_idle(*engine);
  EXPECT_EQ(ended, choices);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.refused, static_cast<std::uint64_t>(refused));
  EXPECT_EQ(stats.submitted + stats.refused, 180u);
  EXPECT_EQ(stats.failed, 0u);
  for (const PoolUse& use : stats.pages) EXPECT_EQ(use.used, 0);
  expect_nothing_held(*engine);
}

TEST(EngineFaults, StatisticsTellTheReplaysOfTheBackend) {
  EngineOptions options = tiny_options(1);
  const auto backend = std::make_shared<FaultyBackend>(options.backend);
  options.backend = backend;
  auto engine = make_engine(std::move(options));
  ASSERT_TRUE(run_request(*engine, request(prompt(20, 1), 3)).finished);
  EXPECT_EQ(engine->stats().graph_replays, 0u);
  backend->replayed = 7;
  ASSERT_TRUE(run_request(*engine, request(prompt(20, 2), 3)).finished);
  EXPECT_EQ(engine->stats().graph_replays, 7u);
}

}  // namespace
}  // namespace pivot::test
