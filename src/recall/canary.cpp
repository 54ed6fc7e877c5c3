#include "recall/canary.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/engine.h"
#include "recall/haystack.h"
#include "recall/step_probe.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRound = 8;  // canaries at one distance that a share is taken over
constexpr std::chrono::seconds kPauseAfterFailure{1};

// What the engine tells of one request; shared with the sink, which may outlive the canary's wait for it.
struct Flight {
  std::mutex mutex;
  std::condition_variable ended;
  std::vector<TokenId> tokens;
  std::optional<RequestTimings> timings;  // set: it has ended
  std::string failure;
};

}  // namespace

std::string_view to_string(CanaryOutcome outcome) {
  constexpr std::array<std::string_view, 3> kNames = {"found", "lost", "failed"};
  return kNames[static_cast<std::size_t>(outcome)];
}

std::string_view distance_label(std::int64_t tokens) {
  constexpr std::array<std::string_view, 11> kLabels = {"1k",  "2k",   "4k",   "8k",   "16k", "32k",
                                                        "64k", "128k", "256k", "512k", "1m"};
  std::size_t i = 0;
  while (i + 1 < kLabels.size() && tokens > std::int64_t{1024} << i) ++i;
  return kLabels[i];
}

CaseSpec canary_spec(const CanaryOptions& options, std::int64_t i) {
  const auto lengths = static_cast<std::int64_t>(options.lengths.size());
  const auto depths = static_cast<std::int64_t>(options.depths.size());
  CaseSpec spec;
  spec.task = Task::kSingle;
  spec.length_tokens = options.lengths[static_cast<std::size_t>(i % lengths)];
  spec.depth = options.depths[static_cast<std::size_t>(i / lengths % depths)];
  // Shifted by one each time round, so that every length and depth meets every residue.
  const std::int64_t round = i / (lengths * depths);
  spec.residue = (i - round * lengths * depths + round) % 4;
  spec.modulus = 4;
  spec.sample = i;
  spec.seed = options.seed;
  return spec;
}

struct Canary::State {
  Engine& engine;
  CanaryOptions options;
  Haystack haystack;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::map<std::string_view, std::deque<bool>> rounds;  // by distance label
  std::thread thread;

  State(Engine& served, CanaryOptions chosen, Haystack text)
      : engine(served), options(std::move(chosen)), haystack(std::move(text)) {}

  bool sleep(Clock::duration time) {
    std::unique_lock lock(mutex);
    return !wake.wait_for(lock, time, [this] { return stopping; });
  }

  void run() {
    if (!sleep(options.first_delay)) return;
    for (std::int64_t i = 0;; ++i) {
      CanaryResult result = ask(i);
      {
        const std::lock_guard lock(mutex);
        if (stopping) return;
      }
      note(result);
      if (options.on_result) options.on_result(result);
      const std::chrono::duration<double> pause(pause_seconds(result.busy_seconds, options.max_share));
      // A refusal costs nothing and must not be repeated at once.
      const Clock::duration least =
          result.outcome == CanaryOutcome::kFailed ? Clock::duration(kPauseAfterFailure) : Clock::duration(0);
      if (!sleep(std::max(least, std::chrono::duration_cast<Clock::duration>(pause)))) return;
    }
  }

  CanaryResult ask(std::int64_t i) {
    CanaryResult result;
    const CaseSpec spec = canary_spec(options, i);
    result.id = spec.id();
    const CaseBuilder builder{options.tokenizer, &haystack, options.wording};
    const auto built = builder.build(spec);
    if (!built) {
      result.answer = built.error().to_string();
      return result;
    }
    result.prompt_tokens = static_cast<std::int64_t>(built->prompt.size());
    result.distance_tokens = result.prompt_tokens - built->facts.front().begin;
    result.expected = built->expected.front();

    auto flight = std::make_shared<Flight>();
    EngineRequest request;
    request.prompt = built->prompt;
    request.max_new_tokens = built->answer_tokens;
    request.stop_tokens = options.stop_tokens;
    request.priority = std::numeric_limits<std::int32_t>::max();
    request.client = "canary";
    request.use_prefix_cache = false;
    const auto id = engine.submit(std::move(request), [flight](RequestId, std::int32_t, EngineEvent event) {
      const std::lock_guard lock(flight->mutex);
      if (const auto* token = std::get_if<TokenEvent>(&event)) flight->tokens.push_back(token->token.id);
      if (const auto* end = std::get_if<FinishedEvent>(&event)) {
        flight->timings = end->timings;
        if (end->reason == FinishReason::kCancelled) flight->failure = "cancelled";
      }
      if (const auto* end = std::get_if<FailedEvent>(&event)) {
        flight->timings = end->timings;
        flight->failure = end->error.to_string();
      }
      if (flight->timings) flight->ended.notify_all();
    });
    if (!id) {
      result.answer = id.error().to_string();
      return result;
    }
    wait(*id, *flight);
    const std::lock_guard lock(flight->mutex);
    if (!flight->timings) return result;  // only while stopping
    result.busy_seconds = flight->timings->total_seconds - flight->timings->queue_seconds;
    if (!flight->failure.empty()) {
      result.answer = flight->failure;
      return result;
    }
    result.answer = options.tokenizer->decode(flight->tokens, /*skip_special=*/true);
    result.outcome = score_answer(*built, result.answer).exact ? CanaryOutcome::kFound : CanaryOutcome::kLost;
    return result;
  }

  // Until the request has ended; cancels it when its time is over or the canary stops.
  void wait(RequestId id, Flight& flight) {
    const Clock::time_point deadline = Clock::now() + options.limit;
    bool cancelled = false;
    std::unique_lock lock(flight.mutex);
    while (!flight.timings) {
      flight.ended.wait_for(lock, std::chrono::milliseconds(100));
      if (flight.timings || cancelled) continue;
      bool stop = false;
      {
        const std::lock_guard own(mutex);
        stop = stopping;
      }
      if (!stop && Clock::now() < deadline) continue;
      cancelled = true;
      lock.unlock();
      engine.cancel(id);
      lock.lock();
    }
  }

  void note(CanaryResult& result) {
    std::deque<bool>& round = rounds[distance_label(result.distance_tokens)];
    if (result.outcome != CanaryOutcome::kFailed) round.push_back(result.outcome == CanaryOutcome::kFound);
    if (round.size() > kRound) round.pop_front();
    if (!round.empty())
      result.share_found = static_cast<double>(std::count(round.begin(), round.end(), true)) /
                           static_cast<double>(round.size());
  }
};

Result<std::unique_ptr<Canary>> Canary::start(Engine& engine, CanaryOptions options) {
  if (!(options.max_share > 0 && options.max_share <= 1))
    return fail(ErrorCode::kInvalidArgument,
                "the canary's share of the time is {}; more than 0 and at most 1 is wanted",
                options.max_share);
  const std::int64_t context = engine.capacity().max_context;
  // 128 tokens of answer are more than a single fact takes.
  std::erase_if(options.lengths, [&](std::int64_t length) { return length + 128 > context; });
  if (options.lengths.empty() || options.depths.empty())
    return fail(
        ErrorCode::kInvalidArgument,
        "no canary fits: the engine's context is {} tokens; raise --max-model-len, or leave the canary out",
        context);
  PIVOT_TRY(Haystack haystack, Haystack::create(options.text, *options.tokenizer));
  auto state = std::make_unique<State>(engine, std::move(options), std::move(haystack));
  State* const running = state.get();
  std::unique_ptr<Canary> canary(new Canary(std::move(state)));
  running->thread = std::thread([running] { running->run(); });
  return canary;
}

Canary::Canary(std::unique_ptr<State> state) : state_(std::move(state)) {}

Canary::~Canary() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace pivot::recall
