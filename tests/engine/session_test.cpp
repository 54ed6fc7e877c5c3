// The single-sequence session on the tiny checkpoint.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/devices.h"
#include "model/runner.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot::test {
namespace {

std::shared_ptr<const ModelWeights> tiny_weights() {
  static std::shared_ptr<const ModelWeights> weights;
  if (weights == nullptr) {
    const std::filesystem::path folder = scratch_dir() / "tiny_session";
    write_tiny_checkpoint(folder);
    weights = load_or_die(folder);
  }
  return weights;
}

std::unique_ptr<Session> make_session(std::int64_t max_context = 1024, std::int32_t chunk_tokens = 0) {
  SessionOptions options;
  options.weights = tiny_weights();
  options.backend = make_backend("cpu", 2).value();
  options.max_context = max_context;
  options.chunk_tokens = chunk_tokens;
  auto session = Session::create(options);
  EXPECT_TRUE(session) << session.error().to_string();
  return *std::move(session);
}

std::vector<TokenId> tokens(std::int64_t n, std::uint32_t seed) {
  std::vector<TokenId> ids;
  for (std::int32_t id : pseudo_random_ids(n, seed, 512)) ids.push_back(TokenId{id});
  return ids;
}

std::vector<float> logits_of(const Session& session) {
  return {session.logits().begin(), session.logits().end()};
}

std::vector<TokenId> ids_of(const GenerationResult& result) {
  std::vector<TokenId> ids;
  for (const SampledToken& token : result.tokens) ids.push_back(token.id);
  return ids;
}

void expect_error(const Result<>& result, ErrorCode code, std::vector<std::string> words) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, code);
  for (const std::string& word : words)
    EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
}

TEST(Session, BadInputIsRefusedAndNothingIsComputed) {
  const auto session = make_session(100);
  expect_error(session->prefill({}), ErrorCode::kInvalidArgument, {"no tokens"});
  expect_error(session->prefill(std::vector<TokenId>{TokenId{5}, TokenId{512}}), ErrorCode::kInvalidArgument,
               {"token id 512 at index 1", "512"});
  expect_error(session->prefill(std::vector<TokenId>{TokenId{-1}}), ErrorCode::kInvalidArgument, {"-1"});
  expect_error(session->prefill(tokens(101, 1)), ErrorCode::kContextOverflow, {"101", "100"});
  EXPECT_EQ(session->position(), 0);
  EXPECT_TRUE(session->logits().empty());
  EXPECT_FALSE(session->sample(SamplingParams::greedy()));
  ASSERT_TRUE(session->prefill(tokens(99, 1)));
  expect_error(session->prefill(tokens(2, 1)), ErrorCode::kContextOverflow, {"101", "100"});
  EXPECT_EQ(session->position(), 99);
  ASSERT_TRUE(session->decode(TokenId{1}));
  expect_error(session->decode(TokenId{1}), ErrorCode::kContextOverflow, {"101", "100"});
  EXPECT_FALSE(session->generate({}, {}));
  GenerateOptions bad;
  bad.sampling.top_p = 0;
  EXPECT_FALSE(session->generate(tokens(3, 1), bad));
}

TEST(Session, OptionsOutOfRangeAreRefused) {
  SessionOptions options;
  options.weights = tiny_weights();
  options.backend = make_backend("cpu", 1).value();
  options.max_context = tiny_weights()->config.max_position_embeddings + 1;
  EXPECT_EQ(Session::create(options).error().code, ErrorCode::kInvalidArgument);
  options.max_context = 100;
  options.chunk_tokens = -1;
  EXPECT_EQ(Session::create(options).error().code, ErrorCode::kInvalidArgument);
}

TEST(Session, GenerateIsSampleAndDecode) {
  const std::vector<TokenId> prompt = tokens(70, 2);
  GenerateOptions options;
  options.max_new_tokens = 8;
  std::vector<TokenId> seen;
  const auto session = make_session();
  const GenerationResult result = session
                                      ->generate(prompt, options,
                                                 [&](const SampledToken& token) {
                                                   seen.push_back(token.id);
                                                   return true;
                                                 })
                                      .value();
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(seen, ids_of(result));
  EXPECT_EQ(result.timings.prompt_tokens, 70);
  EXPECT_EQ(result.timings.reused_tokens, 0);
  EXPECT_EQ(result.timings.generated_tokens, 8);
  EXPECT_GT(result.timings.prefill_tokens_per_second(), 0);
  EXPECT_EQ(session->position(), 77) << "the last token is not appended";

  const auto by_hand = make_session();
  ASSERT_TRUE(by_hand->prefill(prompt));
  for (TokenId expected : seen) {
    const TokenId id = by_hand->sample(options.sampling).value().id;
    EXPECT_EQ(id, expected);
    ASSERT_TRUE(by_hand->decode(id));
  }
}

TEST(Session, SampledGenerationRepeatsWithItsSeed) {
  GenerateOptions options;
  options.max_new_tokens = 12;
  options.sampling = SamplingParams{};
  options.sampling.seed = 4;
  const auto session = make_session();
  const auto first = ids_of(session->generate(tokens(20, 3), options).value());
  EXPECT_EQ(ids_of(session->generate(tokens(20, 3), options).value()), first);
  options.sampling.seed = 5;
  EXPECT_NE(ids_of(session->generate(tokens(20, 3), options).value()), first);
}

TEST(Session, EveryReasonToStop) {
  const std::vector<TokenId> prompt = tokens(20, 4);
  GenerateOptions options;
  options.max_new_tokens = 30;
  const auto session = make_session(40);
  const auto all = session->generate(prompt, options).value();
  EXPECT_EQ(all.reason, FinishReason::kContextFull);
  EXPECT_EQ(all.tokens.size(), 21u) << "20 tokens fit, and one more is known";
  const TokenId third = all.tokens[2].id;
  options.stop_tokens = {third};
  const auto stopped = session->generate(prompt, options).value();
  EXPECT_EQ(stopped.reason, FinishReason::kStopToken);
  EXPECT_EQ(stopped.tokens.back().id, third);
  EXPECT_LE(stopped.tokens.size(), 3u);
  options.stop_tokens.clear();
  const auto cut =
      session->generate(prompt, options, [n = 0](const SampledToken&) mutable { return ++n < 2; }).value();
  EXPECT_EQ(cut.reason, FinishReason::kCallback);
  EXPECT_EQ(cut.tokens.size(), 2u);
  CancelFlag cancel{false};
  options.cancel = &cancel;
  const auto cancelled = session->generate(prompt, options, [&](const SampledToken&) {
    cancel = true;
    return true;
  });
  EXPECT_EQ(cancelled.value().reason, FinishReason::kCancelled);
  EXPECT_EQ(cancelled.value().tokens.size(), 1u);
  EXPECT_EQ(session->generate(tokens(30, 9), options).error().code, ErrorCode::kCancelled);
}

TEST(Session, ProgressAndCancelDuringPrefill) {
  const auto session = make_session(1024, 64);
  std::vector<std::int64_t> done;
  CancelFlag cancel{false};
  const auto progress = [&](std::int64_t d, std::int64_t total) {
    EXPECT_EQ(total, 300);
    done.push_back(d);
    if (d == 128) cancel = true;
  };
  const auto cancelled = session->prefill(tokens(300, 5), progress, &cancel);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(done, (std::vector<std::int64_t>{64, 128}));
  EXPECT_EQ(session->position(), 128);
  cancel = false;
  const auto rest = tokens(300, 5);
  ASSERT_TRUE(session->prefill(std::span(rest).subspan(128), {}, &cancel));
  const auto whole = make_session(1024, 512);
  ASSERT_TRUE(whole->prefill(tokens(300, 5)));
  EXPECT_EQ(logits_of(*session), logits_of(*whole));
}

// A chat: every turn's prompt begins with what was said before. Going on from the kept state equals computing
// anew.
TEST(Session, AChatReusesItsPrefix) {
  const auto session = make_session();
  std::vector<TokenId> conversation = tokens(300, 6);
  GenerateOptions options;
  options.max_new_tokens = 5;
  for (int turn = 0; turn < 3; ++turn) {
    const auto answer = session->generate(conversation, options).value();
    const auto fresh = make_session()->generate(conversation, options).value();
    EXPECT_EQ(ids_of(answer), ids_of(fresh)) << turn;
    if (turn > 0) {
      EXPECT_GE(answer.timings.reused_tokens, 300) << turn;
    }
    for (TokenId id : ids_of(answer)) conversation.push_back(id);
    for (TokenId id : tokens(40, 10 + static_cast<std::uint32_t>(turn))) conversation.push_back(id);
  }
}

// The history changes inside the last prompt (reasoning dropped): the session goes back to an earlier point.
TEST(Session, AChangedHistoryGoesBackToAnEarlierPoint) {
  const auto session = make_session();
  const std::vector<TokenId> first = tokens(600, 7);
  ASSERT_TRUE(session->prefill(first));
  for (TokenId id : tokens(20, 8)) ASSERT_TRUE(session->decode(id));
  std::vector<TokenId> second(first.begin(), first.begin() + 590);
  for (TokenId id : tokens(60, 9)) second.push_back(id);
  EXPECT_EQ(session->rewind_to_prefix(second).value(), 512);
  EXPECT_EQ(session->position(), 512);
  EXPECT_TRUE(session->logits().empty());
  ASSERT_TRUE(session->prefill(std::span(second).subspan(512)));
  const auto fresh = make_session();
  ASSERT_TRUE(fresh->prefill(second));
  EXPECT_EQ(logits_of(*session), logits_of(*fresh));
  // The same prompt again: its end is kept, but the last token is computed for its logits.
  const std::int64_t kept = session->rewind_to_prefix(second).value();
  EXPECT_LT(kept, 650);
  EXPECT_GE(kept, 512);
  // Nothing in common.
  EXPECT_EQ(session->rewind_to_prefix(tokens(50, 99)).value(), 0);
  EXPECT_EQ(session->position(), 0);
}

TEST(Session, ResetForgets) {
  const auto session = make_session();
  ASSERT_TRUE(session->prefill(tokens(300, 1)));
  session->reset();
  EXPECT_EQ(session->position(), 0);
  EXPECT_TRUE(session->logits().empty());
  ASSERT_TRUE(session->prefill(tokens(70, 2)));
  const auto fresh = make_session();
  ASSERT_TRUE(fresh->prefill(tokens(70, 2)));
  EXPECT_EQ(logits_of(*session), logits_of(*fresh));
}

// ---- memory ----

// The CPU back-end with its allocations counted.
class CountingBackend : public Backend {
 public:
  explicit CountingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}
  std::int64_t live_bytes() const {
    std::int64_t total = 0;
    for (const auto& [memory, bytes] : live_) total += bytes;
    return total;
  }
  std::int64_t allocations() const { return allocations_; }

  Result<std::byte*> allocate(std::int64_t bytes, std::string_view purpose) override {
    if (live_bytes() + bytes > limit_)
      return fail(ErrorCode::kOutOfMemory, "{} bytes for {}", bytes, purpose);
    auto memory = inner_->allocate(bytes, purpose);
    if (memory) live_[*memory] = bytes;
    ++allocations_;
    return memory;
  }
  void release(std::byte* memory) override {
    ASSERT_EQ(live_.erase(memory), 1u);
    inner_->release(memory);
  }
  void set_limit(std::int64_t bytes) { limit_ = bytes; }

  std::string_view name() const override { return inner_->name(); }
  DeviceInfo device() const override { return inner_->device(); }
  int activation_bytes() const override { return inner_->activation_bytes(); }
  Result<> supports(const ModelWeights& w, const Knobs& k) const override { return inner_->supports(w, k); }
  void fill(std::byte* m, int value, std::int64_t bytes) override { inner_->fill(m, value, bytes); }
  void upload(void* d, const void* h, std::int64_t bytes) override { inner_->upload(d, h, bytes); }
  void download(void* h, const void* d, std::int64_t bytes) override { inner_->download(h, d, bytes); }
  Result<> synchronize() override { return inner_->synchronize(); }
  Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> w) override {
    return inner_->place(std::move(w));
  }
  void embed(const StepBatch& b, const EmbedParams& p) override { inner_->embed(b, p); }
  void hc_seam(const LayerContext& l, const Knobs& k, const StepBatch& b, const HcSeamParams& p) override {
    inner_->hc_seam(l, k, b, p);
  }
  void hc_head(const ModelConfig& c, const Knobs& k, const StepBatch& b, const HcHeadParams& p) override {
    inner_->hc_head(c, k, b, p);
  }
  void latent(const LayerContext& l, const Knobs& k, const StepBatch& b, const LatentParams& p) override {
    inner_->latent(l, k, b, p);
  }
  void query(const LayerContext& l, const Knobs& k, const StepBatch& b, const QueryParams& p) override {
    inner_->query(l, k, b, p);
  }
  void index_select(const LayerContext& l, const Knobs& k, const StepBatch& b,
                    const IndexSelectParams& p) override {
    inner_->index_select(l, k, b, p);
  }
  void attention(const LayerContext& l, const Knobs& k, const StepBatch& b,
                 const AttentionParams& p) override {
    inner_->attention(l, k, b, p);
  }
  void attention_out(const LayerContext& l, const Knobs& k, const StepBatch& b,
                     const AttentionOutParams& p) override {
    inner_->attention_out(l, k, b, p);
  }
  void route(const LayerContext& l, const Knobs& k, const StepBatch& b, const RouteParams& p) override {
    inner_->route(l, k, b, p);
  }
  void moe(const LayerContext& l, const Knobs& k, const StepBatch& b, const MoeParams& p) override {
    inner_->moe(l, k, b, p);
  }
  void logits(const Knobs& k, const LogitsParams& p) override { inner_->logits(k, p); }

 private:
  std::shared_ptr<Backend> inner_;
  std::map<std::byte*, std::int64_t> live_;
  std::int64_t allocations_ = 0;
  std::int64_t limit_ = std::int64_t{1} << 50;
};

TEST(SessionMemory, ThePlanIsWhatIsAllocated) {
  for (std::int64_t context : {1, 100, 256, 1000, 4096})
    for (std::int32_t chunk : {0, 1, 64, 700}) {
      const auto backend = std::make_shared<CountingBackend>(make_backend("cpu", 1).value());
      SessionOptions options;
      options.weights = tiny_weights();
      options.backend = backend;
      options.max_context = context;
      options.chunk_tokens = chunk;
      const SessionMemory plan = plan_session_memory(tiny_weights()->config, options.knobs,
                                                     backend->activation_bytes(), context, chunk, 0)
                                     .value();
      {
        const auto session = Session::create(options).value();
        EXPECT_EQ(session->state_bytes(), plan.state_bytes);
        EXPECT_EQ(session->workspace_bytes(), plan.workspace_bytes);
        EXPECT_EQ(backend->live_bytes(), plan.state_bytes + plan.workspace_bytes);
        const std::int64_t before = backend->allocations();
        ASSERT_TRUE(session->prefill(tokens(std::min<std::int64_t>(context, 80), 1)));
        EXPECT_EQ(backend->allocations(), before) << "a step allocates nothing";
      }
      EXPECT_EQ(backend->live_bytes(), 0);
    }
}

TEST(SessionMemory, TooLittleIsAnErrorAndNothingLeaks) {
  const auto backend = std::make_shared<CountingBackend>(make_backend("cpu", 1).value());
  SessionOptions options;
  options.weights = tiny_weights();
  options.backend = backend;
  options.max_context = 4096;
  const SessionMemory plan =
      plan_session_memory(tiny_weights()->config, options.knobs, backend->activation_bytes(), 4096, 0, 0)
          .value();
  for (std::int64_t limit :
       {std::int64_t{0}, plan.workspace_bytes, plan.workspace_bytes + plan.state_bytes / 2,
        plan.workspace_bytes + plan.state_bytes - 1}) {
    backend->set_limit(limit);
    const auto session = Session::create(options);
    ASSERT_FALSE(session) << limit;
    EXPECT_EQ(session.error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(backend->live_bytes(), 0);
  }
}

TEST(SessionMemory, TheDefaultContextFitsHalfOfMemory) {
  const ModelConfig& config = tiny_weights()->config;
  const auto plan = [&](std::int64_t memory) {
    return plan_session_memory(config, {}, 4, 0, 0, memory).value();
  };
  EXPECT_EQ(plan(std::int64_t{1} << 40).max_context, config.max_position_embeddings);
  EXPECT_EQ(plan(0).max_context, 32768);
  const SessionMemory small = plan(40 << 20);
  EXPECT_LT(small.max_context, config.max_position_embeddings);
  EXPECT_GT(small.max_context, 256);
  EXPECT_LE(small.state_bytes, 20 << 20);
}

}  // namespace
}  // namespace pivot::test
