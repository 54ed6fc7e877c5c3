#include "engine/loop.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pivot {
namespace {

constexpr std::int32_t kMaxSequences = 4096;
constexpr std::int32_t kMaxStepTokens = 65536;
constexpr std::int32_t kMaxChoices = 128;
// Rows of logits beyond one per sequence, for prompt log-probabilities.
constexpr std::int32_t kPromptRows = 32;
constexpr std::int32_t kChunkTokens = 256;
constexpr std::chrono::milliseconds kHeartbeat{500};
constexpr PagePool kPools[] = {PagePool::kRatio4, PagePool::kRatio128};

struct StatePlan {
  std::int64_t max_context = 0;
  CachePoolOptions pool;
  std::int64_t bytes = 0;
};

// Slots for every sequence, and pages for as much as the budget holds: at least one sequence of max_context,
// at most two sets of max_sequences such sequences (the second for cached prefixes).
Result<StatePlan> plan_state(const EngineOptions& options, const CacheLayout& layout,
                             std::int64_t memory_bytes) {
  const ModelConfig& config = options.weights->config;
  StatePlan plan;
  PIVOT_TRY(const SessionMemory session,
            plan_session_memory(config, options.knobs, options.backend->activation_bytes(),
                                options.max_context, 0, memory_bytes));
  plan.max_context = session.max_context;
  const std::int64_t budget =
      options.state_bytes > 0 ? options.state_bytes : (memory_bytes > 0 ? memory_bytes / 2 : INT64_MAX);
  const std::int64_t tables = PageTables::planned_bytes(layout, options.max_sequences, plan.max_context);
  const std::int64_t slots = options.max_sequences * layout.slot_bytes;
  std::int64_t of_one[kNumPagePools];
  std::int64_t bytes_of_one = 0;
  for (PagePool pool : kPools) {
    const int i = static_cast<int>(pool);
    of_one[i] = layout.pages_for(pool, plan.max_context);
    bytes_of_one += of_one[i] * layout.page_bytes[i];
  }
  const std::int64_t least = slots + tables + bytes_of_one;
  if (least > budget)
    return fail(
        ErrorCode::kOutOfMemory,
        "{} sequences with a context of {} tokens need at least {} bytes of state ({} of slots, {} of "
        "pages for one full sequence, {} of page tables); {} are available. Lower the number of "
        "sequences or the context, or give the state more memory",
        options.max_sequences, plan.max_context, least, slots, bytes_of_one, tables, budget);
  // How many full sequences' pages fit, in thousandths so that small pools use their memory well.
  const double fits = bytes_of_one == 0
                          ? 1.0
                          : static_cast<double>(budget - slots - tables) / static_cast<double>(bytes_of_one);
  const double sets = std::clamp(fits, 1.0, 2.0 * options.max_sequences);
  plan.pool.num_slots = options.max_sequences;
  plan.pool.poison = options.poison;
  for (int i = 0; i < kNumPagePools; ++i)
    plan.pool.num_pages[i] = static_cast<std::int32_t>(static_cast<double>(of_one[i]) * sets);
  plan.bytes = slots + tables;
  for (int i = 0; i < kNumPagePools; ++i) plan.bytes += plan.pool.num_pages[i] * layout.page_bytes[i];
  return plan;
}

// Payload bytes of one slot, or of one page of each pool, by component.
struct ComponentBytes {
  std::array<std::int64_t, kNumComponents> slot{};
  std::array<std::int64_t, kNumComponents> page[kNumPagePools] = {};
};

ComponentBytes component_bytes(const CacheLayout& layout) {
  ComponentBytes bytes;
  const auto of = [](Component c) { return static_cast<std::size_t>(c); };
  const auto state = [](std::int64_t rows, std::int64_t width) {
    return rows * 2 * width * static_cast<std::int64_t>(sizeof(float));
  };
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    const int ratio = layout.layers[l].ratio;
    bytes.slot[of(Component::kWindow)] += layout.options.window_rows * layout.kv.row_bytes();
    if (ratio == 0) continue;
    const PagePool pool = layout.pool_of(static_cast<std::int64_t>(l));
    auto& page = bytes.page[static_cast<int>(pool)];
    page[of(Component::kCompressed)] += layout.page_rows(pool) * layout.kv.row_bytes();
    bytes.slot[of(Component::kCompressor)] +=
        state(layout.state_rows(ratio), ratio == 4 ? layout.compressor_width4 : layout.compressor_width128);
    if (ratio != 4) continue;
    page[of(Component::kIndexKeys)] += layout.page_rows(pool) * layout.index_key.row_bytes();
    bytes.slot[of(Component::kIndexCompressor)] += state(layout.state_rows(4), layout.index_compressor_width);
  }
  return bytes;
}

std::array<std::int64_t, kNumComponents> sum_components(const CacheLayout& layout, std::int64_t slots,
                                                        const std::int64_t (&pages)[kNumPagePools]) {
  const ComponentBytes bytes = component_bytes(layout);
  std::array<std::int64_t, kNumComponents> total{};
  for (std::size_t c = 0; c < total.size(); ++c) {
    total[c] = slots * bytes.slot[c];
    for (int i = 0; i < kNumPagePools; ++i) total[c] += pages[i] * bytes.page[i][c];
  }
  return total;
}

Result<> check_options(const EngineOptions& o) {
  const auto outside = [](std::string_view name, auto value, std::string_view range) {
    return fail(ErrorCode::kInvalidArgument, "{} is {}; it must be {}", name, value, range);
  };
  if (o.max_sequences < 1 || o.max_sequences > kMaxSequences)
    return outside("max_sequences", o.max_sequences, "1 to 4096");
  if (o.max_queued < 1) return outside("max_queued", o.max_queued, "at least 1");
  if (o.max_queued_per_client < 0)
    return outside("max_queued_per_client", o.max_queued_per_client, "0 (no ceiling) or positive");
  if (o.max_running_per_client < 0)
    return outside("max_running_per_client", o.max_running_per_client, "0 (no ceiling) or positive");
  if (!(o.max_step_stretch > 1.0)) return outside("max_step_stretch", o.max_step_stretch, "above 1");
  if (o.step_tokens < 0 || o.step_tokens > kMaxStepTokens)
    return outside("step_tokens", o.step_tokens, "0 to 65536");
  if (o.step_tokens > 0 && o.step_tokens <= o.max_sequences)
    return fail(
        ErrorCode::kInvalidArgument,
        "step_tokens is {} with {} sequences; a step must hold one token of each and some of a prompt",
        o.step_tokens, o.max_sequences);
  if (o.state_bytes < 0 || o.prefix_cache_bytes < 0 || o.disk_cache_bytes < 0 || o.preempted_bytes < 0)
    return fail(ErrorCode::kInvalidArgument, "a limit in bytes is negative");
  if (!o.disk_cache.empty() && !o.prefix_cache)
    return fail(ErrorCode::kInvalidArgument,
                "a disk cache ({}) needs the prefix cache; turn it on, or leave the folder out",
                o.disk_cache.string());
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine::Loop>> Engine::Loop::create(EngineOptions options, bool has_thread) {
  PIVOT_CHECK(options.weights != nullptr && options.backend != nullptr);
  PIVOT_TRY_VOID(check_options(options));
  std::unique_ptr<Loop> loop(new Loop(std::move(options)));
  EngineOptions& o = loop->options_;
  const ModelConfig& config = o.weights->config;
  PIVOT_TRY(CacheLayout layout, make_cache_layout(config, o.knobs));
  PIVOT_TRY(const StatePlan plan, plan_state(o, layout, o.backend->device().memory_bytes));
  o.max_context = plan.max_context;
  o.state_bytes = plan.bytes;
  if (o.prefix_cache_bytes == 0)
    o.prefix_cache_bytes =
        std::clamp<std::int64_t>(plan.bytes / 2, std::int64_t{128} << 20, std::int64_t{4} << 30);
  if (o.step_tokens == 0)
    o.step_tokens = std::max(default_step_tokens(config, o.backend->activation_bytes(),
                                                 resolve_index_topk(config, o.knobs, o.max_context)),
                             o.max_sequences + kChunkTokens);
  loop->chunk_tokens_ = std::min(kChunkTokens, o.step_tokens - o.max_sequences);

  ModelOptions model;
  model.knobs = o.knobs;
  model.max_context = o.max_context;
  model.max_step_tokens = o.step_tokens;
  model.max_step_spans = o.max_sequences;
  model.max_logit_rows = loop->max_logit_rows_ = o.max_sequences + kPromptRows;
  PIVOT_TRY(loop->model_, Model::create(o.weights, o.backend, model));
  PIVOT_TRY(loop->pool_, CachePool::create(o.backend, layout, plan.pool));
  PIVOT_TRY(loop->tables_, PageTables::create(o.backend, layout, o.max_sequences, o.max_context));
  loop->views_ = loop->pool_->views(loop->tables_->tables());
  if (o.prefix_cache)
    loop->index_ = std::make_unique<PrefixIndex>(layout.options.block_tokens, o.prefix_cache_bytes);
  if (!o.disk_cache.empty()) {
    PIVOT_TRY(loop->store_,
              PrefixStore::open({o.disk_cache, o.disk_cache_bytes, o.weights->fingerprint, 8}, layout));
  }
  const auto vocab = static_cast<std::size_t>(config.vocab_size);
  loop->host_logits_.resize(static_cast<std::size_t>(loop->max_logit_rows_) * vocab);
  loop->samplers_ = std::make_unique<ThreadPool>(std::min(usable_cores(), 8));

  EngineCapacity& capacity = loop->capacity_;
  capacity.max_context = o.max_context;
  capacity.max_sequences = o.max_sequences;
  capacity.step_tokens = o.step_tokens;
  capacity.slot_bytes = layout.slot_bytes;
  std::int64_t pages[kNumPagePools];
  for (PagePool pool : kPools) {
    const auto i = static_cast<std::size_t>(pool);
    capacity.page_bytes[i] = layout.page_bytes[i];
    capacity.pages[i] = loop->pool_->pages(pool).capacity();
    pages[i] = capacity.pages[i];
  }
  capacity.state_bytes = loop->pool_->allocated_bytes() + loop->tables_->allocated_bytes();
  capacity.workspace_bytes = loop->model_->workspace_bytes();
  capacity.component_bytes = sum_components(layout, o.max_sequences, pages);

  loop->publish();
  if (has_thread) loop->thread_ = std::thread([raw_loop = loop.get()] { raw_loop->run(); });
  return loop;
}

Engine::Loop::~Loop() { stop(); }

// ---- any thread ----

std::int64_t Engine::Loop::worst_tokens(const EngineRequest& spec, std::int64_t prompt_tokens) const {
  // The last token is never computed.
  return spec.max_new_tokens > 0 ? std::min(options_.max_context, prompt_tokens + spec.max_new_tokens - 1)
                                 : options_.max_context;
}

Result<> Engine::Loop::check_request(const EngineRequest& request) const {
  const std::int64_t vocab = config().vocab_size;
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  if (request.prompt.empty())
    return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens; give at least one");
  const auto check_ids = [&](std::span<const TokenId> ids, std::string_view what) -> Result<> {
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (raw(ids[i]) < 0 || raw(ids[i]) >= vocab)
        return fail(ErrorCode::kInvalidArgument, "{} {} at index {} is outside the vocabulary of {}", what,
                    raw(ids[i]), i, vocab);
    return {};
  };
  PIVOT_TRY_VOID(check_ids(request.prompt, "prompt token id"));
  PIVOT_TRY_VOID(check_ids(request.stop_tokens, "stop token id"));
  PIVOT_TRY_VOID(validate(request.sampling, vocab));
  if (request.max_new_tokens < 0)
    return fail(ErrorCode::kInvalidArgument, "max_new_tokens is {}; it must be 0 (no limit) or positive",
                request.max_new_tokens);
  if (request.min_new_tokens < 0 ||
      (request.max_new_tokens > 0 && request.min_new_tokens > request.max_new_tokens))
    return fail(ErrorCode::kInvalidArgument,
                "min_new_tokens is {} with max_new_tokens {}; it must lie between", request.min_new_tokens,
                request.max_new_tokens);
  if (request.num_choices < 1 || request.num_choices > kMaxChoices)
    return fail(ErrorCode::kInvalidArgument, "num_choices is {}; it must be 1 to {}", request.num_choices,
                kMaxChoices);
  if (request.prompt_logprobs < -1)
    return fail(ErrorCode::kInvalidArgument, "prompt_logprobs is {}; it must be at least 0",
                request.prompt_logprobs);
  if (prompt_tokens > options_.max_context || request.max_new_tokens > options_.max_context - prompt_tokens)
    return fail(
        ErrorCode::kContextOverflow,
        "the prompt has {} tokens and the answer may have {}: {} in all, more than the context limit of "
        "{}; shorten the prompt or ask for fewer tokens",
        prompt_tokens, request.max_new_tokens, prompt_tokens + request.max_new_tokens, options_.max_context);
  const CacheLayout& layout = pool_->layout();
  for (PagePool pool : kPools) {
    const std::int64_t wanted = layout.pages_for(pool, worst_tokens(request, prompt_tokens));
    const std::int64_t there = capacity_.pages[static_cast<std::size_t>(pool)];
    if (wanted > there)
      return fail(ErrorCode::kOutOfMemory,
                  "{} tokens need {} {} pages and the cache has {}; give the state more memory",
                  worst_tokens(request, prompt_tokens), wanted, to_string(pool), there);
  }
  return {};
}

Result<RequestId> Engine::Loop::submit(EngineRequest spec, EventSink sink) {
  PIVOT_CHECK(sink != nullptr);
  const auto refuse = [this](Error error) {
    const std::lock_guard lock(inbox_mutex_);
    ++refused_;
    return fail(std::move(error));
  };
  if (Result<> checked = check_request(spec); !checked) return refuse(std::move(checked).error());

  auto request = std::make_unique<Request>();
  request->submitted = Clock::now();
  request->sink = std::move(sink);
  request->prompt_tokens = static_cast<std::int64_t>(spec.prompt.size());
  for (std::int32_t i = 0; i < spec.num_choices; ++i) {
    auto choice = std::make_unique<Choice>();
    choice->request = request.get();
    choice->index = i;
    choice->sampling = spec.sampling;
    choice->sampling.seed += static_cast<std::uint64_t>(i);
    choice->ids = i + 1 < spec.num_choices ? spec.prompt : std::move(spec.prompt);
    if (uses_history(choice->sampling)) {
      choice->history = std::make_unique<TokenHistory>();
      choice->history->add_prompt(choice->ids);
    }
    if (spec.constraint != nullptr && i > 0) choice->constraint = spec.constraint->clone();
    request->choices.push_back(std::move(choice));
  }
  request->choices.front()->constraint = std::move(spec.constraint);
  request->live = spec.num_choices;
  request->spec = std::move(spec);

  const std::lock_guard lock(inbox_mutex_);
  if (!accepting_) {
    ++refused_;
    return fail(ErrorCode::kUnavailable, "the engine is shutting down and takes no more requests");
  }
  if (queued_ >= options_.max_queued) {
    ++refused_;
    return fail(ErrorCode::kUnavailable, "{} requests are waiting, and the queue holds {}; try again later",
                queued_, options_.max_queued);
  }
  const std::string& client = request->spec.client;
  if (options_.max_queued_per_client > 0) {
    const auto found = queued_per_client_.find(client);
    const std::int32_t waiting = found == queued_per_client_.end() ? 0 : found->second;
    if (waiting >= options_.max_queued_per_client) {
      ++refused_;
      return fail(ErrorCode::kUnavailable,
                  "{} requests of this client are waiting, and its share of the queue is {}; try again later",
                  waiting, options_.max_queued_per_client);
    }
  }
  ++queued_;
  ++queued_per_client_[client];
  ++unfinished_;
  const RequestId id{next_id_++};
  request->id = id;
  inbox_.push_back({Command::Kind::kSubmit, id, 0, std::move(request)});
  inbox_filled_.notify_one();
  return id;
}

void Engine::Loop::send(Command command) {
  const std::lock_guard lock(inbox_mutex_);
  inbox_.push_back(std::move(command));
  inbox_filled_.notify_one();
}

void Engine::Loop::cancel(RequestId id) { send({Command::Kind::kCancel, id, 0, nullptr}); }
void Engine::Loop::finish(RequestId id, std::int32_t choice) {
  send({Command::Kind::kFinish, id, choice, nullptr});
}
void Engine::Loop::clear_prefix_cache() { send({Command::Kind::kClearCache, {}, 0, nullptr}); }

bool Engine::Loop::accepting() const {
  const std::lock_guard lock(inbox_mutex_);
  return accepting_;
}

bool Engine::Loop::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(inbox_mutex_);
  accepting_ = false;
  return all_ended_.wait_for(lock, timeout, [this] { return unfinished_ == 0; });
}

void Engine::Loop::stop() {
  {
    const std::lock_guard lock(inbox_mutex_);
    accepting_ = false;
    stopping_ = true;
    inbox_filled_.notify_one();
  }
  const std::lock_guard lock(join_mutex_);
  if (!thread_.joinable()) return;
  PIVOT_CHECK(thread_.get_id() != std::this_thread::get_id(), "stop() was called from an event sink");
  thread_.join();
}

EngineStats Engine::Loop::stats() const {
  EngineStats copy;
  {
    const std::lock_guard lock(stats_mutex_);
    copy = stats_;
  }
  const std::lock_guard lock(inbox_mutex_);
  copy.refused = refused_;
  return copy;
}

// ---- the engine thread ----

void Engine::Loop::run() {
  pthread_setname_np(pthread_self(), "pivot-engine");
  while (turn(/*may_wait=*/true)) {
  }
  end_all();
}

bool Engine::Loop::turn(bool may_wait) {
  std::vector<Command> commands;
  bool stopping = false;
  {
    std::unique_lock lock(inbox_mutex_);
    if (may_wait && running_.empty() && queue_.empty())
      inbox_filled_.wait_for(lock, kHeartbeat, [this] { return stopping_ || !inbox_.empty(); });
    commands.swap(inbox_);
    stopping = stopping_;
  }
  heartbeat_.fetch_add(1, std::memory_order_relaxed);
  for (Command& command : commands) apply(std::move(command));
  if (stopping) return false;
  step();
  ended_.clear();
  publish();
  return true;
}

void Engine::Loop::end_all() {
  std::vector<Request*> left;
  for (const auto& [id, request] : requests_) left.push_back(request.get());
  for (Request* request : left) cancel_request(*request);
  ended_.clear();
  if (store_ != nullptr) store_->flush();
  publish();
}

void Engine::Loop::apply(Command command) {
  if (command.kind == Command::Kind::kClearCache) {
    if (index_ != nullptr) index_->clear();
    return;
  }
  if (command.kind == Command::Kind::kSubmit) {
    ++live_stats_.submitted;
    enqueue(std::move(command.request));
    return;
  }
  const auto found = requests_.find(raw(command.id));
  if (found == requests_.end()) return;
  Request& request = *found->second;
  if (command.kind == Command::Kind::kCancel) {
    cancel_request(request);
    return;
  }
  if (command.choice < 0 || command.choice >= static_cast<std::int32_t>(request.choices.size())) return;
  Choice& choice = *request.choices[static_cast<std::size_t>(command.choice)];
  if (choice.stage != Choice::Stage::kEnded) finish_choice(choice, FinishReason::kCallback);
}

void Engine::Loop::publish() {
  EngineStats& s = live_stats_;
  s.running = static_cast<std::int32_t>(running_.size());
  s.prefilling = static_cast<std::int32_t>(
      std::count_if(running_.begin(), running_.end(), [](const Choice* c) { return !c->decodes(); }));
  s.waiting = static_cast<std::int32_t>(queue_.size());
  s.slots.total = pool_->slots().capacity();
  s.slots.used = pool_->slots().used();
  s.slots.free = s.slots.total - s.slots.used;
  std::int64_t pages[kNumPagePools];
  for (PagePool pool : kPools) {
    const PageAllocator& allocator = pool_->pages(pool);
    PoolUse& use = s.pages[static_cast<std::size_t>(pool)];
    use.total = allocator.capacity();
    use.cached = allocator.cached_only();
    use.used = allocator.used() - use.cached;
    use.free = allocator.free();
    pages[static_cast<int>(pool)] = allocator.used();
  }
  s.used_bytes = sum_components(pool_->layout(), s.slots.used, pages);
  s.graph_replays = model_->backend().replayed_steps();
  if (index_ != nullptr) {
    s.prefix.entries = index_->entries();
    s.prefix.host_bytes = index_->host_bytes();
    s.prefix.insertions = index_->insertions();
    s.prefix.evictions = index_->evictions();
  }
  if (store_ != nullptr) {
    const PrefixStoreStats disk = store_->stats();
    s.disk.writes = disk.writes;
    s.disk.write_failures = disk.write_failures;
    s.disk.skipped_writes = disk.skipped_writes;
    s.disk.evictions = disk.evictions;
    s.disk.damaged = disk.damaged;
    s.disk.entries = disk.entries;
    s.disk.bytes = disk.bytes;
  }
  const std::lock_guard lock(stats_mutex_);
  stats_ = s;
}

}  // namespace pivot
