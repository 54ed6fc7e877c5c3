#include "engine/engine_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace pivot {
namespace {

template <class... Args>
void note(std::string& problem, fmt::format_string<Args...> format, Args&&... args) {
  problem += fmt::format(format, std::forward<Args>(args)...) + "\n";
}

}  // namespace

std::unique_ptr<EngineProbe> EngineProbe::create(EngineOptions options) {
  auto loop = Engine::Loop::create(std::move(options), /*has_thread=*/false);
  EXPECT_TRUE(loop) << loop.error().to_string();
  auto probe = std::make_unique<EngineProbe>();
  probe->loop_ = *std::move(loop);
  return probe;
}

EngineProbe::~EngineProbe() { stop(); }

void EngineProbe::stop() {
  if (std::exchange(stopped_, true)) return;
  loop_->stop();
  while (loop_->turn(/*may_wait=*/false)) {
  }
  loop_->end_all();
}

std::string EngineProbe::problem() const {
  std::string problem;
  check_pages(problem);
  check_choices(problem);
  check_counts(problem);
  return problem;
}

void EngineProbe::check_pages(std::string& problem) const {
  const CachePool& pool = *loop_->pool_;
  // A state may be held from several places; it refers to its pages once.
  std::set<std::shared_ptr<const StateImage>> images;
  if (loop_->index_ != nullptr)
    for (auto& image : loop_->index_->images()) images.insert(std::move(image));
  for (const auto& [id, request] : loop_->requests_)
    if (request->fork != nullptr) images.insert(request->fork);
  for (const auto& [choice, image] : loop_->ready_) images.insert(image);

  for (const PagePool kind : {PagePool::kRatio4, PagePool::kRatio128}) {
    const PageAllocator& pages = pool.pages(kind);
    if (!pages.consistent()) note(problem, "the {} pages are not consistent", to_string(kind));
    std::map<std::int32_t, std::int32_t> holders;
    std::set<std::int32_t> of_sequences;
    for (const Choice* choice : loop_->running_)
      for (const std::int32_t page : choice->sequence->pages(kind)) {
        ++holders[page];
        of_sequences.insert(page);
      }
    for (const auto& image : images)
      for (const std::int32_t page : image->pages(kind)) ++holders[page];
    for (std::int32_t page = 0; page < pages.capacity(); ++page) {
      const auto found = holders.find(page);
      const std::int32_t expected = found == holders.end() ? 0 : found->second;
      if (pages.references(page) != expected)
        note(problem, "{} page {} has {} references and {} holders", to_string(kind), page,
             pages.references(page), expected);
    }
    const auto cached = static_cast<std::int32_t>(holders.size() - of_sequences.size());
    if (pages.used() != static_cast<std::int32_t>(holders.size()) || pages.cached_only() != cached)
      note(problem, "{} pages: {} used and {} of them cached only; {} and {} are held", to_string(kind),
           pages.used(), pages.cached_only(), holders.size(), cached);
  }

  std::set<std::int32_t> slots;
  for (const Choice* choice : loop_->running_) slots.insert(choice->sequence->slot());
  if (!pool.slots().consistent() || slots.size() != loop_->running_.size() ||
      pool.slots().used() != static_cast<std::int32_t>(slots.size()))
    note(problem, "{} slots are in use, {} choices run in {} different ones", pool.slots().used(),
         loop_->running_.size(), slots.size());
}

void EngineProbe::check_choices(std::string& problem) const {
  using Stage = Choice::Stage;
  std::size_t running = 0, waiting = 0;
  std::int64_t preempted_bytes = 0;
  std::int32_t preempted = 0;
  for (const auto& [id, request] : loop_->requests_) {
    std::int32_t live = 0;
    for (const auto& owned : request->choices) {
      const Choice* const choice = owned.get();
      const auto where = [&] { return fmt::format("request {}, choice {}", id, choice->index); };
      const auto in_running = std::count(loop_->running_.begin(), loop_->running_.end(), choice);
      if (in_running != (choice->stage == Stage::kRunning ? 1 : 0))
        note(problem, "{} is {} times among the running ones", where(), in_running);
      if (loop_->queue_.contains(owned.get()) != (choice->stage == Stage::kWaiting))
        note(problem, "{} waits in the queue, or does not, against its stage", where());
      if ((choice->sequence != nullptr) != (choice->stage == Stage::kRunning))
        note(problem, "{} has a sequence against its stage", where());
      live += choice->stage == Stage::kEnded ? 0 : 1;
      running += choice->stage == Stage::kRunning ? 1 : 0;
      waiting += choice->stage == Stage::kWaiting ? 1 : 0;
      preempted += choice->stage == Stage::kWaiting && choice->rank > 0 ? 1 : 0;
      if (choice->preempted != nullptr) preempted_bytes += std::ssize(choice->preempted->bytes);
      if (choice->stage == Stage::kHeld && request->choices.front()->stage == Stage::kEnded)
        note(problem, "{} waits for a first choice that has ended", where());
      if (choice->sequence == nullptr) continue;
      const auto tokens = choice->sequence->tokens();
      if (tokens.size() > choice->ids.size() ||
          !std::equal(tokens.begin(), tokens.end(), choice->ids.begin()))
        note(problem, "{} computed other tokens than it has", where());
    }
    if (live != request->live || live == 0)
      note(problem, "request {} has {} live choices and counts {}", id, live, request->live);
  }
  if (running != loop_->running_.size() || waiting != loop_->queue_.size())
    note(problem, "{} choices run and {} wait; the lists have {} and {}", running, waiting,
         loop_->running_.size(), loop_->queue_.size());
  if (!std::is_sorted(loop_->running_.begin(), loop_->running_.end(),
                      [](const Choice* a, const Choice* b) { return more_urgent(*a, *b); }))
    note(problem, "the running choices are not in the order of their urgency");
  const EngineStats& stats = loop_->live_stats_;
  if (stats.preempted != preempted || stats.preempted_bytes != preempted_bytes)
    note(problem, "{} choices are pre-empted with {} bytes; counted are {} with {}", preempted,
         preempted_bytes, stats.preempted, stats.preempted_bytes);
  if (preempted_bytes > loop_->options_.preempted_bytes)
    note(problem, "{} bytes of pre-empted state are kept, {} are allowed", preempted_bytes,
         loop_->options_.preempted_bytes);
}

void EngineProbe::check_counts(std::string& problem) const {
  std::int64_t not_started = 0;
  std::map<std::string, std::int32_t> queued_of, running_of;
  for (const auto& [id, request] : loop_->requests_) {
    if (request->started) continue;
    ++not_started;
    ++queued_of[request->spec.client];
  }
  std::int64_t in_inbox = 0;
  const std::lock_guard lock(loop_->inbox_mutex_);
  for (const auto& command : loop_->inbox_) {
    if (command.request == nullptr) continue;
    ++in_inbox;
    ++queued_of[command.request->spec.client];
  }
  for (const Choice* choice : loop_->running_) ++running_of[choice->request->spec.client];
  if (loop_->queued_ != not_started + in_inbox)
    note(problem, "{} requests have not started, {} are counted", not_started + in_inbox, loop_->queued_);
  if (loop_->unfinished_ != std::ssize(loop_->requests_) + in_inbox)
    note(problem, "{} requests are there, {} are counted", std::ssize(loop_->requests_) + in_inbox,
         loop_->unfinished_);
  const auto same = [](const std::map<std::string, std::int32_t>& counted, const auto& kept) {
    return counted.size() == kept.size() &&
           std::all_of(counted.begin(), counted.end(), [&](const auto& entry) {
             const auto found = kept.find(entry.first);
             return found != kept.end() && found->second == entry.second;
           });
  };
  if (!same(queued_of, loop_->queued_per_client_))
    note(problem, "the clients' shares of the queue are wrong");
  if (!same(running_of, loop_->running_per_client_)) note(problem, "the clients' running choices are wrong");
  const EngineStats& stats = loop_->live_stats_;
  if (stats.submitted != stats.finished + stats.cancelled + stats.failed + loop_->requests_.size())
    note(problem, "{} requests were submitted: {} finished, {} cancelled, {} failed, {} are there",
         stats.submitted, stats.finished, stats.cancelled, stats.failed, loop_->requests_.size());
}

}  // namespace pivot
