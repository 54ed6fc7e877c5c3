// Starting, pre-empting, resuming and ending choices.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/loop.h"

namespace pivot {
namespace {

constexpr PagePool kPools[] = {PagePool::kRatio4, PagePool::kRatio128};
// Tokens of answer that a starting choice is given room for when the pool is over-committed.
constexpr std::int64_t kAnswerRoom = 256;

std::int64_t snapshot_bytes(const CacheLayout& layout, std::int64_t position) {
  std::int64_t bytes = 0;
  for (const SnapshotPart& part : required_parts(layout, position)) bytes += part.size_bytes;
  return bytes;
}

}  // namespace

void Engine::Loop::enqueue(std::unique_ptr<Request> owned) {
  Request& request = *owned;
  requests_.emplace(raw(request.id), std::move(owned));
  Choice& first = *request.choices.front();
  first.stage = Choice::Stage::kWaiting;
  queue_.push(&first, request.spec.priority, request.spec.client);
}

void Engine::Loop::measure_room(PoolRoom (&room)[kNumPagePools]) const {
  const CacheLayout& layout = pool_->layout();
  for (PagePool pool : kPools) {
    PoolRoom& r = room[static_cast<int>(pool)];
    const PageAllocator& pages = pool_->pages(pool);
    r = {pages.capacity(), std::int64_t{pages.free()} + pages.cached_only(), 0, 0};
    for (const Choice* choice : running_) {
      const std::int64_t worst = worst_tokens(choice->request->spec, choice->prompt_tokens());
      const std::int64_t soon = std::min(worst, static_cast<std::int64_t>(choice->ids.size()) + kAnswerRoom);
      const auto held = static_cast<std::int64_t>(choice->sequence->pages(pool).size());
      r.promised += std::max<std::int64_t>(0, layout.pages_for(pool, soon) - held);
      r.worst += layout.pages_for(pool, worst);
    }
  }
}

bool Engine::Loop::may_start(const Choice& choice, const PoolRoom (&room)[kNumPagePools]) const {
  const CacheLayout& layout = pool_->layout();
  const std::int64_t worst = worst_tokens(choice.request->spec, choice.prompt_tokens());
  const std::int64_t soon = std::min(worst, static_cast<std::int64_t>(choice.ids.size()) + kAnswerRoom);
  return std::all_of(std::begin(kPools), std::end(kPools), [&](PagePool pool) {
    return admits(room[static_cast<int>(pool)], layout.pages_for(pool, soon), layout.pages_for(pool, worst),
                  options_.admission == Admission::kWorstCase);
  });
}

void Engine::Loop::admit() {
  const auto blocked = [this](const std::string& client) {
    const auto found = running_per_client_.find(client);
    return options_.max_running_per_client > 0 && found != running_per_client_.end() &&
           found->second >= options_.max_running_per_client;
  };
  PoolRoom room[kNumPagePools];
  bool measured = false;
  while (Choice* choice = queue_.front(blocked)) {
    if (pool_->slots().free() > 0) {
      if (!measured) measure_room(room);
      measured = true;
      if (may_start(*choice, room)) {
        if (!start(*choice)) return;
        measured = false;
        continue;
      }
    }
    // A more urgent request takes the place of the least urgent running one.
    if (running_.empty() || running_.back()->request->spec.priority <= choice->request->spec.priority) return;
    preempt(*running_.back());
    measured = false;
  }
}

bool Engine::Loop::start(Choice& choice) {
  Request& request = *choice.request;
  Result<std::unique_ptr<SequenceState>> sequence = SequenceState::create(pool_);
  if (!sequence) return false;
  choice.sequence = std::move(*sequence);
  if (choice.preempted != nullptr) {
    while (true) {
      Result<> restored = import_sequence(*choice.sequence, *choice.preempted, model_->weights().fingerprint);
      if (restored) break;
      if (restored.error().code == ErrorCode::kUnavailable) {
        if (give_back_one()) continue;
        choice.sequence.reset();
        return false;
      }
      queue_.remove(&choice);
      choice.sequence.reset();
      fail_choice(choice, std::move(restored).error().with("resuming a pre-empted sequence"));
      return true;
    }
    live_stats_.preempted_bytes -= static_cast<std::int64_t>(choice.preempted->bytes.size());
    choice.preempted.reset();
  }
  queue_.start(&choice);
  choice.stage = Choice::Stage::kRunning;
  const bool first_start = choice.rank == 0;
  if (first_start)
    choice.rank = ++starts_;
  else
    --live_stats_.preempted;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &choice,
                                   [](const Choice* a, const Choice* b) { return more_urgent(*a, *b); }),
                  &choice);
  ++running_per_client_[request.spec.client];

  std::shared_ptr<const StateImage> fork;
  if (first_start && choice.index > 0) {
    fork = request.fork;
    const bool last = std::none_of(request.choices.begin(), request.choices.end(), [](const auto& c) {
      return c->rank == 0 && c->stage != Choice::Stage::kEnded;
    });
    if (last) request.fork.reset();
  }
  if (fork != nullptr)
    restore(choice, std::move(fork));
  else if (choice.position() == 0)
    restore_longest_prefix(choice);
  if (!request.started) announce_start(choice);
  return true;
}

void Engine::Loop::restore(Choice& choice, std::shared_ptr<const StateImage> image) {
  image->restore(*choice.sequence, std::span(choice.ids).first(static_cast<std::size_t>(image->position())));
  if (choice.remaining() == 0) ready_.emplace_back(&choice, std::move(image));
}

void Engine::Loop::restore_longest_prefix(Choice& choice) {
  const EngineRequest& spec = choice.request->spec;
  if (index_ == nullptr || !spec.use_prefix_cache || spec.prompt_logprobs >= 0) return;
  const bool counts = choice.generated_tokens() == 0 && choice.index == 0;
  const PrefixIndex::Match match = index_->find(choice.ids);
  const std::int64_t in_memory = match.image == nullptr ? 0 : match.image->position();
  const std::int64_t on_disk = store_ == nullptr ? 0 : store_->find(choice.ids);
  if ((on_disk <= in_memory || !restore_from_disk(choice, on_disk)) && match.image != nullptr)
    restore(choice, match.image);
  if (choice.generated_tokens() == 0) {
    choice.stops = cache_stops(choice.position(), choice.prompt_tokens(), match.shared_tokens,
                               pool_->layout().options.block_tokens);
    std::reverse(choice.stops.begin(), choice.stops.end());
  }
  if (!counts) return;
  choice.request->cached_tokens = choice.position();
  PrefixCacheStats& stats = live_stats_.prefix;
  ++stats.queries;
  stats.query_tokens += static_cast<std::uint64_t>(choice.prompt_tokens());
  stats.hits += choice.position() > 0 ? 1 : 0;
  stats.hit_tokens += static_cast<std::uint64_t>(choice.position());
}

bool Engine::Loop::restore_from_disk(Choice& choice, std::int64_t position) {
  const std::optional<Snapshot> snapshot = store_->load(choice.ids, position);
  if (!snapshot) return false;
  while (true) {
    const Result<> restored = import_sequence(*choice.sequence, *snapshot, model_->weights().fingerprint);
    if (restored) break;
    if (restored.error().code == ErrorCode::kUnavailable && give_back_one()) continue;
    spdlog::warn("a cached prefix from disk was not used: {}", restored.error().to_string());
    return false;
  }
  ++live_stats_.disk.hits;
  live_stats_.disk.hit_tokens += static_cast<std::uint64_t>(position);
  keep_state(choice, {});  // the next one finds it in memory
  return true;
}

void Engine::Loop::store_prefixes(const Choice& choice) {
  if (store_ == nullptr || !choice.request->spec.use_prefix_cache) return;
  const std::int64_t block = pool_->layout().options.block_tokens;
  // The prompt's last whole block serves repeats and other questions, the answer's end the next turn.
  const std::int64_t prompt_end = (choice.prompt_tokens() - 1) / block * block;
  for (const std::int64_t position : {prompt_end, choice.position()}) {
    if (position < block) continue;
    const std::span<const TokenId> ids = choice.sequence->tokens().first(static_cast<std::size_t>(position));
    const std::shared_ptr<const StateImage> image = index_->peek(ids);
    if (image == nullptr || store_->contains(ids)) continue;
    const std::int64_t parent = store_->parent_of(ids);
    // Where the writer is too busy nothing is copied, and write() counts a skipped one. Only this thread
    // queues, so what accepts() said still holds.
    PrefixFile file{parent, position, {}};
    if (store_->accepts()) file.state = export_image(*image, ids, parent, model_->weights().fingerprint);
    store_->write(ids, std::move(file));
  }
}

void Engine::Loop::leave_queue(Request& request) {
  const std::lock_guard lock(inbox_mutex_);
  --queued_;
  const auto found = queued_per_client_.find(request.spec.client);
  if (--found->second == 0) queued_per_client_.erase(found);
}

void Engine::Loop::announce_start(const Choice& choice) {
  Request& request = *choice.request;
  request.started = true;
  request.start = Clock::now();
  leave_queue(request);
  live_stats_.prompt_tokens += static_cast<std::uint64_t>(request.prompt_tokens);
  live_stats_.cached_tokens += static_cast<std::uint64_t>(request.cached_tokens);
  // The first choice, unless it was finished while it waited: nothing comes after a choice's last event.
  request.sink(request.id, choice.index,
               StartedEvent{request.prompt_tokens, request.cached_tokens,
                            seconds_between(request.submitted, request.start)});
}

bool Engine::Loop::give_back_one() {
  if (index_ != nullptr && index_->evict_one()) return true;
  for (const auto& [id, request] : requests_) {
    if (request->fork == nullptr) continue;
    request->fork.reset();  // its choices compute the prompt again
    return true;
  }
  return false;
}

bool Engine::Loop::reserve(Choice& choice, std::int32_t tokens) {
  while (true) {
    Result<> reserved = choice.sequence->reserve(tokens);
    if (reserved) return true;
    if (give_back_one()) continue;
    Choice& victim = *running_.back();
    if (&victim == &choice && running_.size() == 1) {
      // Alone in the pool and still too large: submit() has checked that this cannot be.
      fail_choice(choice, Error{ErrorCode::kInternal, std::move(reserved).error().message, {}});
      return false;
    }
    preempt(victim);
    if (&victim == &choice) return false;
  }
}

void Engine::Loop::preempt(Choice& choice) {
  ++choice.preemptions;
  ++live_stats_.preemptions;
  // A state without tokens to compute needs the logits that came with it: it is found again instead.
  if (choice.position() > 0 && choice.remaining() > 0) {
    const std::int64_t bytes = snapshot_bytes(pool_->layout(), choice.position());
    if (live_stats_.preempted_bytes + bytes <= options_.preempted_bytes) {
      choice.preempted =
          std::make_unique<Snapshot>(export_sequence(*choice.sequence, model_->weights().fingerprint));
      live_stats_.preempted_bytes += bytes;
    } else {
      ++live_stats_.recomputed_preemptions;
    }
  }
  ++live_stats_.preempted;
  stop_running(choice);
  choice.stage = Choice::Stage::kWaiting;
  queue_.push_resumed(&choice, choice.request->spec.priority, choice.rank);
}

void Engine::Loop::wake_held_choices(Request& request) {
  for (std::size_t i = request.choices.size(); i-- > 1;) {
    Choice& choice = *request.choices[i];
    if (choice.stage != Choice::Stage::kHeld) continue;
    choice.stage = Choice::Stage::kWaiting;
    queue_.push_front(&choice, request.spec.priority, request.spec.client);
  }
}

void Engine::Loop::stop_running(Choice& choice) {
  choice.sequence.reset();
  std::erase_if(ready_, [&](const auto& ready) { return ready.first == &choice; });
  running_.erase(std::find(running_.begin(), running_.end(), &choice));
  const auto found = running_per_client_.find(choice.request->spec.client);
  if (--found->second == 0) running_per_client_.erase(found);
}

RequestTimings Engine::Loop::timings(const Choice& choice) const {
  const Request& request = *choice.request;
  const Clock::time_point now = Clock::now();
  RequestTimings t;
  t.prompt_tokens = request.prompt_tokens;
  t.cached_tokens = request.cached_tokens;
  t.generated_tokens = choice.generated_tokens();
  t.preemptions = choice.preemptions;
  t.total_seconds = seconds_between(request.submitted, now);
  t.queue_seconds = request.started ? seconds_between(request.submitted, request.start) : t.total_seconds;
  if (choice.generated_tokens() > 0) {
    t.prefill_seconds = seconds_between(request.start, choice.first_token);
    t.ttft_seconds = seconds_between(request.submitted, choice.first_token);
    t.decode_seconds = seconds_between(choice.first_token, choice.last_token);
  } else if (request.started) {
    t.prefill_seconds = seconds_between(request.start, now);
  }
  return t;
}

void Engine::Loop::end(Choice& choice, EngineEvent event) {
  Request& request = *choice.request;
  if (choice.stage == Choice::Stage::kRunning) stop_running(choice);
  if (choice.stage == Choice::Stage::kWaiting) {
    queue_.remove(&choice);
    if (choice.rank > 0) --live_stats_.preempted;
  }
  if (choice.preempted != nullptr) {
    live_stats_.preempted_bytes -= static_cast<std::int64_t>(choice.preempted->bytes.size());
    choice.preempted.reset();
  }
  choice.stage = Choice::Stage::kEnded;
  --request.live;
  request.sink(request.id, choice.index, std::move(event));
  if (request.live > 0) {
    // The others waited for this one's prompt; now each computes it, or finds it in the prefix cache.
    wake_held_choices(request);
    return;
  }
  if (!request.started) leave_queue(request);
  request.fork.reset();
  ++(request.any_failed      ? live_stats_.failed
     : request.any_cancelled ? live_stats_.cancelled
                             : live_stats_.finished);
  const auto found = requests_.find(raw(request.id));
  ended_.push_back(std::move(found->second));
  requests_.erase(found);
  const std::lock_guard lock(inbox_mutex_);
  if (--unfinished_ == 0) all_ended_.notify_all();
}

void Engine::Loop::finish_choice(Choice& choice, FinishReason reason, TokenId stop_token) {
  if (reason == FinishReason::kCancelled) {
    choice.request->any_cancelled = true;
  } else if (choice.stage == Choice::Stage::kRunning && choice.generated_tokens() > 0) {
    keep_state(choice, {});
    store_prefixes(choice);
  }
  end(choice, FinishedEvent{reason, stop_token, timings(choice)});
}

void Engine::Loop::fail_choice(Choice& choice, Error error) {
  Request& request = *choice.request;
  request.any_failed = true;
  // What led to unusable logits must not serve others.
  if (index_ != nullptr && error.code == ErrorCode::kInternal)
    for (const std::int64_t position : choice.cached_positions)
      index_->erase(std::span(choice.ids).first(static_cast<std::size_t>(position)));
  error.context.push_back(fmt::format("request {}, choice {}, after {} prompt and {} generated tokens",
                                      raw(request.id), choice.index, request.prompt_tokens,
                                      choice.generated_tokens()));
  end(choice, FailedEvent{std::move(error), timings(choice)});
}

void Engine::Loop::cancel_request(Request& request) {
  // Held choices first: ending the first choice would put them into the queue.
  for (std::size_t i = request.choices.size(); i-- > 0;) {
    Choice& choice = *request.choices[i];
    if (choice.stage == Choice::Stage::kEnded) continue;
    const bool last = request.live == 1;
    finish_choice(choice, FinishReason::kCancelled);
    if (last) return;  // the request is in ended_ now
  }
}

}  // namespace pivot
