// Thousands of random operations on an engine that is turned by hand, against a model of what must come of
// each of them: every token is the one that the request gets alone, every choice ends exactly once and for
// the reason it was given, and after every operation every page, slot and counter is accounted for.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <random>
#include <set>

#include "engine/engine_probe.h"
#include "engine/faulty_backend.h"
#include "engine/tiny_engine.h"

namespace pivot::test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kContext = 640;
constexpr std::int32_t kSlots = 4;
constexpr std::int32_t kMaxQueued = 10;
constexpr std::int32_t kMaxQueuedPerClient = 5;
constexpr std::int32_t kChoices = 3;

// A request that may be made, and what each of its choices must answer.
struct Plan {
  std::vector<TokenId> prompt;
  SamplingParams sampling = SamplingParams::greedy();
  std::int64_t longest = 0;  // tokens of the answers
  std::vector<std::vector<SampledToken>> answers;
};

class Plans {
 public:
  Plans() {
    SessionOptions options;
    options.weights = small_weights();
    options.backend = make_backend("cpu", 1).value();
    options.max_context = kContext;
    session_ = Session::create(options).value();
    // Families that share prefixes, lengths around those of blocks and windows, and answers that outgrow the
    // room that their request was given when it started.
    for (const std::int64_t n : {40, 130, 256, 300, 520}) add(n, 1, 14);
    for (const std::int64_t n : {33, 257, 400}) add(n, 2, 14);
    for (const std::uint32_t seed : {3u, 4u, 5u}) add(seed, seed, 14);
    add(130, 6, 450);
    add(200, 7, 430);
  }
  const Plan& pick(std::mt19937& random) const { return plans_[random() % plans_.size()]; }

 private:
  void add(std::int64_t n, std::uint32_t seed, std::int64_t longest) {
    for (const bool sampled : {false, true}) {
      Plan plan;
      plan.prompt = to_tokens(pseudo_random_ids(n, seed, kVocab));
      if (sampled) plan.sampling = hot(seed * 100 + static_cast<std::uint64_t>(n));
      plan.sampling.top_logprobs = 0;
      plan.longest = longest;
      for (std::int32_t choice = 0; choice < (sampled ? kChoices : 1); ++choice) {
        GenerateOptions generate;
        generate.sampling = plan.sampling;
        generate.sampling.seed += static_cast<std::uint64_t>(choice);
        generate.max_new_tokens = longest;
        session_->reset();
        plan.answers.push_back(session_->generate(plan.prompt, generate).value().tokens);
      }
      plans_.push_back(std::move(plan));
    }
  }

  std::unique_ptr<Session> session_;
  std::vector<Plan> plans_;
};

// One request as the model sees it.
struct Watched {
  const Plan* plan = nullptr;
  RequestId id{};
  std::string client;
  std::int64_t max_new_tokens = 0;
  bool use_prefix_cache = true;
  bool started = false;
  bool cancelled = false;  // cancel() was called
  bool was_cancelled = false;
  bool failed = false;
  std::int64_t cancel_at = -1;  // the client goes while it gets this token
  std::int64_t finish_at = -1;  // choice 0 is complete with this token
  struct Choice {
    std::int64_t tokens = 0;
    bool finished = false;  // finish() was called
    bool ended = false;
  };
  std::vector<Choice> choices;
  bool ended() const {
    return std::all_of(choices.begin(), choices.end(), [](const Choice& c) { return c.ended; });
  }
};

struct Counts {
  std::uint64_t submitted = 0, refused = 0, finished = 0, cancelled = 0, failed = 0, tokens = 0;
};

class Harness {
 public:
  Harness(const Plans& plans, std::uint32_t seed)
      : plans_(plans), random_(seed), folder_(scratch_dir() / fmt::format("model_disk_{}", seed)) {
    open();
  }

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operate();
      const std::string problem = probe_->problem();
      ASSERT_EQ(problem, "") << "after operation " << i << ": " << last_;
      ASSERT_FALSE(testing::Test::HasFailure()) << "after operation " << i << ": " << last_;
    }
    // Whatever was admitted finishes.
    for (int i = 0; i < 50'000 && !live_.empty(); ++i) turn();
    EXPECT_TRUE(live_.empty()) << live_.size() << " requests never end";
    probe_->clear_prefix_cache();
    turn();
    EXPECT_EQ(probe_->problem(), "");
    const EngineStats stats = probe_->stats();
    EXPECT_EQ(stats.slots.used, 0);
    EXPECT_EQ(stats.prefix.host_bytes, 0);
    for (const PoolUse& use : stats.pages) EXPECT_EQ(use.free, use.total);
    close();
    // All of it has happened.
    EXPECT_GT(total_.prefix.hits, 0u);
    EXPECT_GT(total_.prefix.evictions, 0u);
    EXPECT_GT(total_.disk.hits, 0u);
    EXPECT_GT(total_.disk.writes, 0u);
    EXPECT_GT(total_.preemptions, 0u);
    EXPECT_GT(total_.recomputed_preemptions, 0u);
    EXPECT_GT(total_.refused, 0u);
    EXPECT_GT(total_.cancelled, 0u);
    EXPECT_GT(total_.failed, 0u);
  }

 private:
  bool chance(int per_mille) { return static_cast<int>(random_() % 1000) < per_mille; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  void open() {
    EngineOptions options;
    options.weights = small_weights();
    faulty_ = std::make_shared<FaultyBackend>(make_backend("cpu", 1).value());
    options.backend = faulty_;
    options.max_context = kContext;
    options.max_sequences = kSlots;
    options.max_queued = kMaxQueued;
    options.max_queued_per_client = kMaxQueuedPerClient;
    options.max_running_per_client = one_of({0, 2});
    options.admission = one_of({Admission::kOvercommit, Admission::kOvercommit, Admission::kWorstCase});
    options.deterministic = true;
    options.poison = true;
    const CacheLayout layout = make_cache_layout(options.weights->config, options.knobs).value();
    const std::int64_t of_one = layout.planned_bytes_for(1, kContext) - layout.slot_bytes;
    options.state_bytes =
        kSlots * layout.slot_bytes + PageTables::planned_bytes(layout, kSlots, kContext) + of_one * 3 / 2;
    options.preempted_bytes = one_of<std::int64_t>({0, 400'000, std::int64_t{1} << 30});
    options.prefix_cache_bytes = one_of<std::int64_t>({2'000'000, 8'000'000});
    options.disk_cache = folder_;
    options.disk_cache_bytes = 4'000'000;
    probe_ = EngineProbe::create(std::move(options));
    counts_ = {};
    steps_at_fault_ = 0;
  }

  // Every request that is left is told so, once.
  void close() {
    stopping_ = true;
    probe_->stop();
    stopping_ = false;
    std::erase_if(live_, [](const auto& watched) { return watched->ended(); });
    EXPECT_TRUE(live_.empty()) << live_.size() << " requests were not told of the end";
    EXPECT_EQ(probe_->problem(), "");
    const EngineStats stats = probe_->stats();
    compare(stats);
    total_.prefix.hits += stats.prefix.hits;
    total_.prefix.evictions += stats.prefix.evictions;
    total_.disk.hits += stats.disk.hits;
    total_.disk.writes += stats.disk.writes;
    total_.preemptions += stats.preemptions;
    total_.recomputed_preemptions += stats.recomputed_preemptions;
    total_.refused += stats.refused;
    total_.cancelled += stats.cancelled;
    total_.failed += stats.failed;
    probe_.reset();
  }

  void restart() {
    last_ = "restart";
    close();
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_EQ(entry.path().filename().string().find(".tmp."), std::string::npos) << entry.path();
      if (entry.path().filename() != "lock") files.push_back(entry.path());
    }
    if (!files.empty() && chance(500)) {
      std::sort(files.begin(), files.end());
      const fs::path& path = files[random_() % files.size()];
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(random_() % fs::file_size(path)));
      file.put(static_cast<char>(random_()));
    }
    open();
  }

  void operate() {
    const auto kind = static_cast<int>(random_() % 1000);
    if (kind < 330) return submit();
    if (kind < 345) return submit_bad();
    if (kind < 395) return cancel_one();
    if (kind < 425) return finish_one();
    if (kind < 435) return clear();
    if (kind < 445) return fault();
    if (kind < 450) return restart();
    last_ = "turn";
    const int turns = kind < 500 ? 40 : kind < 700 ? 4 : 1;
    for (int i = 0; i < turns; ++i) turn();
  }

  void submit() {
    auto watched = std::make_shared<Watched>();
    const Plan& plan = plans_.pick(random_);
    watched->plan = &plan;
    watched->client = one_of({"a", "b", "c"});
    watched->max_new_tokens =
        plan.longest > 100 && chance(700) ? plan.longest : 1 + static_cast<std::int64_t>(random_() % 14);
    watched->use_prefix_cache = !chance(100);
    if (chance(40)) watched->cancel_at = 1 + static_cast<std::int64_t>(random_() % 8);
    if (chance(60)) watched->finish_at = 1 + static_cast<std::int64_t>(random_() % 8);
    watched->choices.resize(chance(150) ? kChoices : 1);
    last_ = fmt::format("submit {} tokens, answer of {}, {} choices", plan.prompt.size(),
                        watched->max_new_tokens, watched->choices.size());

    EngineRequest request;
    request.prompt = plan.prompt;
    request.sampling = plan.sampling;
    request.max_new_tokens = watched->max_new_tokens;
    request.num_choices = static_cast<std::int32_t>(watched->choices.size());
    request.priority = static_cast<std::int32_t>(random_() % 3);
    request.client = watched->client;
    request.use_prefix_cache = watched->use_prefix_cache;
    const auto id = probe_->submit(std::move(request),
                                   [this, watched](RequestId, std::int32_t choice, EngineEvent event) {
                                     take(*watched, choice, event);
                                   });
    std::int32_t queued = 0, of_client = 0;
    for (const auto& other : live_) {
      if (other->started) continue;
      ++queued;
      of_client += other->client == watched->client ? 1 : 0;
    }
    const bool full = queued >= kMaxQueued || of_client >= kMaxQueuedPerClient;
    ASSERT_EQ(id.has_value(), !full) << queued << " wait, " << of_client << " of this client";
    if (!id) {
      EXPECT_EQ(id.error().code, ErrorCode::kUnavailable);
      ++counts_.refused;
      return;
    }
    watched->id = *id;
    ids_.push_back(*id);
    live_.push_back(std::move(watched));
    ++counts_.submitted;
  }

  void submit_bad() {
    last_ = "submit what cannot run";
    EngineRequest request;
    request.prompt = plans_.pick(random_).prompt;
    if (chance(500))
      request.max_new_tokens = kContext;
    else
      request.prompt.push_back(TokenId{kVocab});
    const auto id = probe_->submit(std::move(request), [](RequestId, std::int32_t, EngineEvent) {
      ADD_FAILURE() << "an event of a refused request";
    });
    EXPECT_FALSE(id.has_value());
    ++counts_.refused;
  }

  // Of those that were ever submitted to any engine: most of them have ended, some are of an earlier one.
  void cancel_one() {
    if (ids_.empty()) return;
    const bool any = chance(300) || live_.empty();
    const RequestId id = any ? ids_[random_() % ids_.size()] : live_[random_() % live_.size()]->id;
    last_ = fmt::format("cancel {}", raw(id));
    probe_->cancel(id);
    for (const auto& watched : live_)
      if (watched->id == id) watched->cancelled = true;
  }

  void finish_one() {
    if (live_.empty()) return;
    Watched& watched = *live_[random_() % live_.size()];
    const std::size_t choice = random_() % watched.choices.size();
    last_ = fmt::format("finish {}, choice {}", raw(watched.id), choice);
    watched.choices[choice].finished = true;
    probe_->finish(watched.id, static_cast<std::int32_t>(choice));
  }

  void clear() {
    last_ = "clear the prefix cache";
    probe_->clear_prefix_cache();
  }

  // The device fails once; not again before a step succeeded, or it counts as lost.
  void fault() {
    const EngineStats stats = probe_->stats();
    if (faulty_->failing_steps > 0 || stats.steps - stats.failed_steps <= steps_at_fault_) return;
    last_ = "let the next step fail";
    steps_at_fault_ = stats.steps - stats.failed_steps;
    faulty_->failing_steps = 1;
  }

  void turn() {
    std::vector<std::shared_ptr<Watched>> told;
    std::vector<std::pair<std::shared_ptr<Watched>, std::size_t>> completed;
    for (const auto& watched : live_) {
      if (watched->cancelled) told.push_back(watched);
      for (std::size_t c = 0; c < watched->choices.size(); ++c)
        if (watched->choices[c].finished) completed.emplace_back(watched, c);
    }
    may_fail_ = faulty_->failing_steps > 0;
    probe_->turn();
    may_fail_ = false;
    for (const auto& watched : told) EXPECT_TRUE(watched->ended()) << "cancelled, and goes on";
    for (const auto& [watched, c] : completed)
      EXPECT_TRUE(watched->choices[c].ended) << "finished, and goes on";
    std::erase_if(live_, [](const auto& watched) { return watched->ended(); });
    compare(probe_->stats());
  }

  void compare(const EngineStats& stats) {
    EXPECT_EQ(stats.submitted, counts_.submitted);
    EXPECT_EQ(stats.refused, counts_.refused);
    EXPECT_EQ(stats.finished, counts_.finished);
    EXPECT_EQ(stats.cancelled, counts_.cancelled);
    EXPECT_EQ(stats.failed, counts_.failed);
    EXPECT_EQ(stats.generated_tokens, counts_.tokens);
    EXPECT_LE(stats.cached_tokens, stats.prompt_tokens);
    EXPECT_LE(stats.prefix.hits, stats.prefix.queries);
    for (const PoolUse& use : stats.pages) EXPECT_EQ(use.used + use.cached + use.free, use.total);
  }

  // What the engine tells of one choice.
  void take(Watched& watched, std::int32_t index, const EngineEvent& event) {
    Watched::Choice& choice = watched.choices.at(static_cast<std::size_t>(index));
    ASSERT_FALSE(choice.ended) << "an event after the last";
    if (const auto* started = std::get_if<StartedEvent>(&event)) {
      EXPECT_FALSE(watched.started);
      watched.started = true;
      EXPECT_EQ(started->prompt_tokens, std::ssize(watched.plan->prompt));
      EXPECT_LE(started->cached_tokens, started->prompt_tokens);
      if (!watched.use_prefix_cache) {
        EXPECT_EQ(started->cached_tokens, 0);
      }
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      EXPECT_TRUE(watched.started);
      EXPECT_EQ(token->index, choice.tokens);
      const auto& answers = watched.plan->answers;
      const SampledToken& expected = answers[static_cast<std::size_t>(index) % answers.size()].at(
          static_cast<std::size_t>(choice.tokens));
      ASSERT_EQ(raw(token->token.id), raw(expected.id))
          << "token " << choice.tokens << " after a prompt of " << watched.plan->prompt.size();
      EXPECT_EQ(std::bit_cast<std::uint32_t>(token->token.logprob),
                std::bit_cast<std::uint32_t>(expected.logprob));
      ++choice.tokens;
      ++counts_.tokens;
      if (index != 0) return;
      if (choice.tokens == watched.cancel_at) {
        watched.cancelled = true;
        probe_->cancel(watched.id);
      }
      if (choice.tokens == watched.finish_at) {
        choice.finished = true;
        probe_->finish(watched.id, index);
      }
    } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
      choice.ended = true;
      EXPECT_EQ(finished->timings.generated_tokens, choice.tokens);
      switch (finished->reason) {
        case FinishReason::kLength:
          EXPECT_EQ(choice.tokens, watched.max_new_tokens);
          break;
        case FinishReason::kCallback:
          EXPECT_TRUE(choice.finished);
          break;
        case FinishReason::kCancelled:
          EXPECT_TRUE(watched.cancelled || stopping_);
          watched.was_cancelled = true;
          break;
        default:
          ADD_FAILURE() << "nothing ends an answer but its length here";
      }
    } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
      choice.ended = true;
      watched.failed = true;
      EXPECT_TRUE(may_fail_) << failed->error.to_string();
      EXPECT_EQ(failed->error.code, ErrorCode::kInternal);
    }
    if (!watched.ended()) return;
    // The ends of its choices as one: failed before cancelled before finished.
    ++(watched.failed ? counts_.failed : watched.was_cancelled ? counts_.cancelled : counts_.finished);
  }

  const Plans& plans_;
  std::mt19937 random_;
  fs::path folder_;
  std::shared_ptr<FaultyBackend> faulty_;
  std::unique_ptr<EngineProbe> probe_;
  std::vector<std::shared_ptr<Watched>> live_;
  std::vector<RequestId> ids_;
  Counts counts_;      // of this engine
  EngineStats total_;  // of all before it
  std::uint64_t steps_at_fault_ = 0;
  bool stopping_ = false;
  bool may_fail_ = false;
  std::string last_;
};

const Plans& plans() {
  static const Plans all;
  return all;
}

TEST(EngineModel, TwoThousandOperations) { Harness(plans(), 1).run(2'000); }

TEST(EngineModel, TenThousandOperations) {
  for (std::uint32_t seed = 2; seed < 7; ++seed) {
    Harness(plans(), seed).run(2'000);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace pivot::test
