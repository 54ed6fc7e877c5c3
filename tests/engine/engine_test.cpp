// The engine on the tiny checkpoint: what comes out of a batch equals what the request gives alone, and
// nothing is left behind.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <thread>

#include "engine/tiny_engine.h"
#include "support/patience.h"

namespace pivot::test {
namespace {

TEST(Engine, OneRequestEqualsASession) {
  auto engine = make_engine(tiny_options());
  for (const std::int64_t n : {1, 2, 130, 700}) {
    for (const bool sampled : {false, true}) {
      EngineRequest r = request(prompt(n, 5), 20);
      if (sampled) r.sampling = hot(17);
      const std::vector<SampledToken> expected = alone(r);
      const Answer answer = run_request(*engine, std::move(r));
      ASSERT_TRUE(answer.finished);
      EXPECT_EQ(answer.finished->reason, FinishReason::kLength);
      EXPECT_EQ(answer.finished->timings.generated_tokens, 20);
      expect_same(answer.tokens, expected, "prompt of " + std::to_string(n));
    }
  }
  expect_nothing_held(*engine);
}

TEST(Engine, TwoHundredConcurrentAnswersEqualTheSameRequestsAlone) {
  auto engine = make_engine(small_options(24, 512));
  constexpr std::int64_t kLengths[] = {1, 3, 31, 40, 64, 90, 127, 128, 129, 257};
  constexpr std::int64_t kNew[] = {1, 2, 5, 9, 14};
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 200; ++i) {
    EngineRequest r = request(prompt(kLengths[i % 10], i % 40), kNew[i % 5]);
    if (i % 3 == 0) r.sampling = hot(i);
    r.client = "client " + std::to_string(i % 7);
    requests.push_back(std::move(r));
  }
  Collector collector;
  std::vector<RequestId> ids;
  for (const EngineRequest& r : requests) ids.push_back(engine->submit(copy_of(r), collector.sink()).value());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Answer answer = collector.wait(ids[i]).front();
    ASSERT_TRUE(answer.finished) << answer.failed->error.to_string();
    EXPECT_EQ(answer.events_after_end, 0);
    expect_same(answer.tokens, alone(requests[i], 512, small_weights()), "request " + std::to_string(i));
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens, stats.prefix.query_tokens);
  EXPECT_GT(stats.prefix.hits, 0u);  // the prompts repeat
  EXPECT_GT(stats.batch_size_sum, 4 * stats.steps);
  expect_nothing_held(*engine);
}

TEST(Engine, FixedChunksGiveTheSameAnswers) {
  EngineOptions options = tiny_options(6, 768);
  options.deterministic = true;
  auto engine = make_engine(std::move(options));
  Collector collector;
  std::vector<RequestId> ids;
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 8; ++i) {
    requests.push_back(request(prompt(40 + 80 * i, 70 + i), 10));
    ids.push_back(engine->submit(copy_of(requests.back()), collector.sink()).value());
  }
  for (std::size_t i = 0; i < ids.size(); ++i)
    expect_same(collector.wait(ids[i]).front().tokens, alone(requests[i], 768),
                "request " + std::to_string(i));
}

// Fault B04: a hit must carry rings and compressor states, not only the pages.
TEST(Engine, PrefixHitEqualsCold) {
  auto engine = make_engine(small_options(4));
  for (const std::int64_t n : {127, 128, 129, 255, 256, 257, 500, 501, 502, 503}) {
    EXPECT_TRUE(run_request(*engine, request(prompt(n, 3))).finished);
    for (std::uint32_t dirty = 0; dirty < 2; ++dirty)
      run_request(*engine, request(prompt(200, 40 + 2 * static_cast<std::uint32_t>(n) + dirty)));
    std::vector<TokenId> longer = prompt(n, 3);
    for (TokenId id : prompt(9, 5)) longer.push_back(id);
    EngineRequest r = request(std::move(longer), 12);
    const std::vector<SampledToken> expected = alone(r, 2048, small_weights());
    const Answer warm = run_request(*engine, std::move(r));
    EXPECT_EQ(warm.started->cached_tokens, n);
    expect_same(warm.tokens, expected, "continuing " + std::to_string(n));

    // The identical prompt needs no computation at all.
    const std::uint64_t computed = engine->stats().computed_tokens;
    EngineRequest again = request(prompt(n, 3), 12);
    const std::vector<SampledToken> expected_again = alone(again, 2048, small_weights());
    const Answer repeated = run_request(*engine, std::move(again));
    EXPECT_EQ(repeated.started->cached_tokens, n);
    expect_same(repeated.tokens, expected_again, "repeating " + std::to_string(n));
    wait_until_idle(*engine);
    EXPECT_EQ(engine->stats().computed_tokens, computed);
  }
  expect_nothing_held(*engine);
}

TEST(Engine, TheNextTurnGoesOnFromTheAnswersEnd) {
  auto engine = make_engine(tiny_options(2));
  std::vector<TokenId> conversation = prompt(300, 21);
  for (std::uint32_t turn = 0; turn < 4; ++turn) {
    EngineRequest r = request(conversation, 30);
    const std::vector<SampledToken> expected = alone(r);
    const Answer answer = run_request(*engine, std::move(r));
    expect_same(answer.tokens, expected, "turn " + std::to_string(turn));
    // All of the earlier conversation but the answer's last token, whose state nobody computed.
    const std::int64_t told = turn == 0 ? 0 : static_cast<std::int64_t>(conversation.size()) - 12 - 1;
    EXPECT_EQ(answer.started->cached_tokens, told);
    for (const SampledToken& token : answer.tokens) conversation.push_back(token.id);
    for (TokenId id : prompt(12, 100 + turn)) conversation.push_back(id);
  }
}

TEST(Engine, ASharedPrefixIsFoundWhereItBranches) {
  auto engine = make_engine(tiny_options(2));
  const auto with_question = [](std::uint32_t question) {
    std::vector<TokenId> ids = prompt(1100, 50);
    for (TokenId id : prompt(300, question)) ids.push_back(id);
    return ids;
  };
  EXPECT_EQ(run_request(*engine, request(with_question(1))).started->cached_tokens, 0);
  EXPECT_EQ(run_request(*engine, request(with_question(2))).started->cached_tokens, 1024);
  EngineRequest third = request(with_question(3));
  const std::vector<SampledToken> expected = alone(third);
  const Answer answer = run_request(*engine, std::move(third));
  EXPECT_EQ(answer.started->cached_tokens, 1024);
  expect_same(answer.tokens, expected, "third question");
}

TEST(Engine, ChoicesEqualSeparateRequests) {
  for (const bool cached : {true, false}) {
    EngineOptions options = tiny_options(3);
    options.prefix_cache = cached;
    auto engine = make_engine(std::move(options));
    Collector collector;
    EngineRequest r = request(prompt(301, 6), 10);
    r.sampling = hot(40);
    r.num_choices = 5;
    const RequestId id = engine->submit(std::move(r), collector.sink()).value();
    const std::vector<Answer> answers = collector.wait(id, 5);
    ASSERT_EQ(answers.size(), 5u);
    std::set<std::vector<std::int32_t>> different;
    for (std::uint32_t i = 0; i < 5; ++i) {
      EngineRequest single = request(prompt(301, 6), 10);
      single.sampling = hot(40 + i);
      expect_same(answers[i].tokens, alone(single), "choice " + std::to_string(i));
      different.insert(answers[i].ids());
    }
    EXPECT_GT(different.size(), 1u);
    wait_until_idle(*engine);
    EXPECT_EQ(engine->stats().computed_tokens, 301u);  // one prefill for all
    EXPECT_EQ(engine->stats().finished, 1u);
    expect_nothing_held(*engine);
  }
}

TEST(Engine, APoolTooSmallForAllPreemptsAndAnswersAreUnchanged) {
  for (const std::int64_t kept_bytes : {std::int64_t{1} << 30, std::int64_t{0}}) {
    EngineOptions options = small_options(4, 768);
    options.preempted_bytes = kept_bytes;
    // Slots and tables, and pages of one and a half full sequences.
    const CacheLayout layout = make_cache_layout(options.weights->config, options.knobs).value();
    const std::int64_t of_one = layout.planned_bytes_for(1, 768) - layout.slot_bytes;
    options.state_bytes =
        4 * layout.slot_bytes + PageTables::planned_bytes(layout, 4, 768) + of_one * 3 / 2 + 4096;
    auto engine = make_engine(std::move(options));
    std::vector<EngineRequest> requests;
    for (std::uint32_t i = 0; i < 4; ++i) {
      EngineRequest r = request(prompt(60 + 5 * i, 60 + i), 0);
      r.max_new_tokens = 470;
      if (i % 2 == 0) r.sampling = hot(i);
      requests.push_back(std::move(r));
    }
    Collector collector;
    std::vector<RequestId> ids;
    for (const EngineRequest& r : requests)
      ids.push_back(engine->submit(copy_of(r), collector.sink()).value());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Answer answer = collector.wait(ids[i]).front();
      ASSERT_TRUE(answer.finished) << answer.failed->error.to_string();
      expect_same(answer.tokens, alone(requests[i], 768, small_weights()), "request " + std::to_string(i));
    }
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.preemptions, 0u);
    EXPECT_EQ(stats.recomputed_preemptions > 0, kept_bytes == 0);
    expect_nothing_held(*engine);
  }
}

TEST(Engine, WorstCaseAdmissionNeverPreempts) {
  EngineOptions options = small_options(6, 512);
  options.admission = Admission::kWorstCase;
  const CacheLayout layout = make_cache_layout(options.weights->config, options.knobs).value();
  const std::int64_t of_one = layout.planned_bytes_for(1, 512) - layout.slot_bytes;
  options.state_bytes =
      6 * layout.slot_bytes + PageTables::planned_bytes(layout, 6, 512) + of_one * 3 / 2 + 4096;
  auto engine = make_engine(std::move(options));
  Collector collector;
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 6; ++i)
    ids.push_back(engine->submit(request(prompt(150, 60 + i), 120), collector.sink()).value());
  for (const RequestId id : ids) ASSERT_TRUE(collector.wait(id).front().finished);
  EXPECT_EQ(engine->stats().preemptions, 0u);
  expect_nothing_held(*engine);
}

TEST(Engine, AMoreUrgentRequestTakesTheSlot) {
  auto engine = make_engine(small_options(1));
  Collector collector;
  EngineRequest slow = request(prompt(40, 1), 1200);
  slow.priority = 5;
  const std::vector<SampledToken> expected = alone(slow, 2048, small_weights());
  const RequestId slow_id = engine->submit(std::move(slow), collector.sink()).value();
  collector.wait_for_tokens(slow_id, 3);
  EngineRequest urgent = request(prompt(50, 2), 4);
  urgent.priority = -1;
  const std::vector<SampledToken> expected_urgent = alone(urgent, 2048, small_weights());
  const RequestId urgent_id = engine->submit(std::move(urgent), collector.sink()).value();
  const Answer first = collector.wait(urgent_id).front();
  EXPECT_GT(engine->stats().running + engine->stats().waiting, 0);  // the slow one is not over
  expect_same(first.tokens, expected_urgent, "urgent");
  const Answer second = collector.wait(slow_id).front();
  expect_same(second.tokens, expected, "pre-empted");
  EXPECT_EQ(second.finished->timings.preemptions, 1);
}

TEST(Engine, CancellingFreesEverything) {
  auto engine = make_engine(tiny_options(2));
  Collector collector;
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 6; ++i) {
    EngineRequest r = request(prompt(600, i), 0);
    r.num_choices = i == 3 ? 3 : 1;
    ids.push_back(engine->submit(std::move(r), collector.sink()).value());
  }
  collector.wait_for_tokens(ids[0], 2);
  for (const RequestId id : ids) engine->cancel(id);
  engine->cancel(RequestId{12345});
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (const Answer& answer : collector.wait(ids[i], i == 3 ? 3 : 1)) {
      ASSERT_TRUE(answer.finished);
      EXPECT_EQ(answer.finished->reason, FinishReason::kCancelled);
      EXPECT_EQ(answer.events_after_end, 0);
    }
  wait_until_idle(*engine);
  EXPECT_EQ(engine->stats().cancelled, 6u);
  expect_nothing_held(*engine);
}

TEST(Engine, FinishFromTheSinkMakesThatTokenTheLast) {
  auto engine = make_engine(tiny_options(2));
  Collector collector;
  const EventSink inner = collector.sink();
  Engine* const raw_engine = engine.get();
  const RequestId id = engine
                           ->submit(request(prompt(20, 8), 100),
                                    [inner, raw_engine](RequestId r, std::int32_t choice, EngineEvent event) {
                                      const auto* token = std::get_if<TokenEvent>(&event);
                                      if (token != nullptr && token->index == 4)
                                        raw_engine->finish(r, choice);
                                      inner(r, choice, std::move(event));
                                    })
                           .value();
  const Answer answer = collector.wait(id).front();
  EXPECT_EQ(answer.tokens.size(), 5u);
  EXPECT_EQ(answer.finished->reason, FinishReason::kCallback);
}

TEST(Engine, StopTokensAndMinimumLength) {
  auto engine = make_engine(tiny_options(2));
  const Answer free_run = run_request(*engine, request(prompt(20, 8), 12));
  const TokenId stop = free_run.tokens[3].id;
  EngineRequest stopped = request(prompt(20, 8), 12);
  stopped.stop_tokens = {stop};
  const Answer cut = run_request(*engine, std::move(stopped));
  EXPECT_LE(cut.tokens.size(), 4u);
  EXPECT_EQ(cut.tokens.back().id, stop);
  EXPECT_EQ(cut.finished->reason, FinishReason::kStopToken);
  EXPECT_EQ(raw(cut.finished->stop_token), raw(stop));
  EngineRequest longer = request(prompt(20, 8), 12);
  longer.stop_tokens = {stop};
  longer.min_new_tokens = 10;
  const Answer held = run_request(*engine, std::move(longer));
  EXPECT_GE(held.tokens.size(), 10u);
  for (std::size_t i = 0; i + 1 < 10; ++i) EXPECT_NE(held.tokens[i].id, stop);
}

TEST(Engine, PromptLogprobsAreThoseOfTheTokensThatCame) {
  auto engine = make_engine(tiny_options(2));
  EngineRequest r = request(prompt(150, 9), 4);
  r.prompt_logprobs = 2;
  const Answer answer = run_request(*engine, std::move(r));
  ASSERT_EQ(answer.prompt_logprobs.size(), 149u);
  // The oracle: prefixes of growing length, each asked for the log-probabilities of its next token.
  const std::vector<TokenId> ids = prompt(150, 9);
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{64}, std::size_t{149}}) {
    EngineRequest prefix = request({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n)}, 1);
    prefix.sampling.top_logprobs = kVocab;
    const std::vector<SampledToken> next = alone(prefix);
    const auto wanted = std::find_if(next[0].top.begin(), next[0].top.end(),
                                     [&](const TokenLogprob& t) { return t.id == ids[n]; });
    EXPECT_EQ(answer.prompt_logprobs[n - 1].logprob, wanted->logprob);
    EXPECT_EQ(answer.prompt_logprobs[n - 1].id, ids[n]);
    ASSERT_EQ(answer.prompt_logprobs[n - 1].top.size(), 2u);
    EXPECT_EQ(answer.prompt_logprobs[n - 1].top[0].id, next[0].top[0].id);
  }
}

TEST(Engine, RefusesWithNumbersBeforeAnyStep) {
  EngineOptions options = tiny_options(1, 512);
  options.max_queued = 3;
  options.max_queued_per_client = 2;
  auto engine = make_engine(std::move(options));
  const auto refusal = [&](EngineRequest r) {
    const auto result = engine->submit(std::move(r), [](RequestId, std::int32_t, EngineEvent) { FAIL(); });
    EXPECT_FALSE(result);
    return result ? Error{} : result.error();
  };
  EXPECT_EQ(refusal(request({}, 4)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(request(to_tokens({kVocab}), 4)).code, ErrorCode::kInvalidArgument);
  const Error too_long = refusal(request(prompt(500, 1), 13));
  EXPECT_EQ(too_long.code, ErrorCode::kContextOverflow);
  for (const char* number : {"500", "13", "513", "512"})
    EXPECT_NE(too_long.message.find(number), std::string::npos) << too_long.message;
  EngineRequest bad = request(prompt(5, 1), 4);
  bad.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal(std::move(bad)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine->stats().steps, 0u);
  EXPECT_EQ(engine->stats().refused, 4u);

  Collector collector;
  const RequestId running = engine->submit(request(prompt(5, 1), 0), collector.sink()).value();
  collector.wait_for_tokens(running, 1);
  std::vector<RequestId> waiting;
  for (const char* client : {"a", "a", "b"}) {
    EngineRequest r = request(prompt(5, 1), 2);
    r.client = client;
    if (waiting.size() == 2) {
      EngineRequest third = copy_of(r);
      third.client = "a";
      EXPECT_EQ(refusal(std::move(third)).code, ErrorCode::kUnavailable);
    }
    waiting.push_back(engine->submit(std::move(r), collector.sink()).value());
  }
  EXPECT_EQ(refusal(request(prompt(5, 1), 2)).code, ErrorCode::kUnavailable);
  EXPECT_TRUE(engine->accepting());
  engine->cancel(running);
  EXPECT_TRUE(engine->drain(kPatience));
  EXPECT_FALSE(engine->accepting());
  EXPECT_EQ(refusal(request(prompt(5, 1), 2)).code, ErrorCode::kUnavailable);
  for (const RequestId id : waiting) EXPECT_TRUE(collector.wait(id).front().finished);
}

TEST(Engine, StopEndsEveryRequest) {
  Collector collector;
  std::vector<RequestId> ids;
  auto engine = make_engine(tiny_options(2));
  for (std::uint32_t i = 0; i < 5; ++i)
    ids.push_back(engine->submit(request(prompt(30, i), 0), collector.sink()).value());
  collector.wait_for_tokens(ids[0], 1);
  engine.reset();
  for (const RequestId id : ids) EXPECT_TRUE(collector.wait(id).front().finished);
}

TEST(Engine, AskingForTooMuchMemoryNamesBothNumbers) {
  EngineOptions options = tiny_options(4, 2048);
  options.state_bytes = 1 << 20;
  const auto engine = Engine::create(std::move(options));
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(engine.error().message.find("1048576"), std::string::npos) << engine.error().message;
}

}  // namespace
}  // namespace pivot::test
