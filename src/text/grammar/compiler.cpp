// The cache of compiled grammars and the threads that compile.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "text/grammar/grammar.h"
#include "text/grammar/library.h"
#include "text/grammar/mask_counters.h"
#include "text/grammar/reasoning_gate.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot {
namespace {

using Clock = std::chrono::steady_clock;
using Grammar = std::shared_ptr<const CompiledGrammar>;

// Everything that the compiled form depends on, unambiguously: the whole text, not a hash of it, so that no
// two grammars can be mistaken for each other.
struct Key {
  std::string text;
  void add(std::string_view part) { text += fmt::format("{}:", part.size()) += part; }
  void operator()(const JsonObjectGrammar&) { add("json_object"); }
  void operator()(const JsonSchemaGrammar& grammar) {
    add(grammar.strict ? "strict_schema" : "schema");
    add(grammar.schema);
  }
  void operator()(const RegexGrammar& grammar) {
    add("regex");
    add(grammar.pattern);
  }
  void operator()(const EbnfGrammar& grammar) {
    add("ebnf");
    add(grammar.text);
  }
  void operator()(const ChoiceGrammar& grammar) {
    add("choice");
    for (const std::string& choice : grammar.choices) add(choice);
  }
  void operator()(const ToolCallGrammar& grammar) {
    add("tools");
    add(grammar.use == ToolCallGrammar::Use::kRequired ? "required" : "optional");
    add(grammar.parallel ? "parallel" : "single");
    for (const GrammarTool& tool : grammar.tools) {
      add(tool.name);
      add(tool.parameters);
      add(tool.strict ? "strict" : "open");
    }
  }
};

std::string key_of(const AnswerGrammar& grammar) {
  Key key;
  std::visit([&key](const auto& one) { key(one); }, grammar);
  return std::move(key.text);
}

bool demands_answer(const AnswerGrammar& grammar) {
  const auto* calls = std::get_if<ToolCallGrammar>(&grammar);
  return calls == nullptr || calls->use == ToolCallGrammar::Use::kRequired;
}

// Compiling yields to steps and connections: a pathological grammar takes idle time first.
constexpr int kCompileNiceness = 5;

using Done = GrammarCompiler::Done;

// Who waits for a compilation.
struct Waiter {
  Clock::time_point asked;
  ConstrainOptions options;
  Done done;
};

// One compilation, shared by everyone who waits for the same grammar.
struct Job {
  std::string key;
  AnswerGrammar grammar;
  std::vector<Waiter> waiters;
  std::optional<Clock::time_point> begun;
};

}  // namespace

struct GrammarCompiler::Impl {
  struct Entry {
    std::string key;
    Grammar grammar;
    std::size_t bytes = 0;
  };

  GrammarLimits limits;
  std::shared_ptr<ReasoningTokens> reasoning = std::make_shared<ReasoningTokens>();
  std::shared_ptr<MaskCounters> counters = std::make_shared<MaskCounters>();
  std::unique_ptr<GrammarLibrary> library;

  mutable std::mutex mutex;
  std::condition_variable work;   // a job waits, or the end
  std::condition_variable watch;  // a deadline is new, or the end
  std::condition_variable quiet;  // no `done` runs
  std::deque<std::shared_ptr<Job>> waiting;
  std::map<std::string, std::shared_ptr<Job>, std::less<>> jobs;  // waiting or running, by key
  std::list<Entry> cache;                                         // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> entry_of;
  GrammarStats stats;
  int calling = 0;        // threads that are telling waiters
  bool stopped = false;   // nobody may ask any more
  bool stopping = false;  // the threads end
  std::vector<std::thread> threads;

  ~Impl() {
    stop();
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
    watch.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  // ---- with the mutex held ----

  Grammar find(std::string_view key) {
    const auto found = entry_of.find(key);
    if (found == entry_of.end()) return nullptr;
    cache.splice(cache.begin(), cache, found->second);
    return found->second->grammar;
  }

  void insert(std::string key, Grammar grammar) {
    const std::size_t bytes = grammar->memory_bytes() + key.size() + sizeof(Entry);
    if (bytes > limits.cache_bytes || entry_of.contains(key)) return;
    cache.push_front({std::move(key), std::move(grammar), bytes});
    entry_of.emplace(cache.front().key, cache.begin());
    stats.cache_bytes += bytes;
    while (stats.cache_bytes > limits.cache_bytes) {
      stats.cache_bytes -= cache.back().bytes;
      entry_of.erase(cache.back().key);
      cache.pop_back();
    }
  }

  // Tells some who waited for one grammar. Lets go of the mutex meanwhile; stop() waits for it.
  void tell(std::unique_lock<std::mutex>& lock, std::vector<Waiter> waiters, const AnswerGrammar& grammar,
            const Result<Grammar>& result) {
    if (waiters.empty()) return;
    if (!result) stats.refused += waiters.size();
    ++calling;
    lock.unlock();
    for (const Waiter& waiter : waiters) waiter.done(start(result, grammar, waiter.options));
    waiters.clear();  // what the callbacks hold goes before stop() returns
    lock.lock();
    if (--calling == 0) quiet.notify_all();
  }

  // ---- the threads ----

  void compile_all() {
    // Per thread on Linux, and inherited by those that the library starts.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kCompileNiceness);
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [this] { return stopping || !waiting.empty(); });
      if (stopping) return;
      const std::shared_ptr<Job> job = std::move(waiting.front());
      waiting.pop_front();
      job->begun = Clock::now();
      watch.notify_all();
      lock.unlock();
      Result<Grammar> result = library->compile(job->grammar);
      const double seconds = std::chrono::duration<double>(Clock::now() - *job->begun).count();
      lock.lock();
      stats.compile_seconds += seconds;
      if (result) {
        ++stats.compiled;
        insert(job->key, *result);
      }
      jobs.erase(job->key);
      tell(lock, std::move(job->waiters), job->grammar, result);
    }
  }

  void watch_deadlines() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      const Clock::time_point now = Clock::now();
      Clock::time_point next = Clock::time_point::max();
      std::shared_ptr<Job> late;
      for (const auto& [key, job] : jobs) {
        if (job->waiters.empty()) continue;
        // They wait so long for a thread, and then so long for the compilation.
        const Clock::time_point deadline =
            job->begun.value_or(job->waiters.front().asked) + limits.compile_timeout;
        next = std::min(next, deadline);
        if (deadline <= now) late = job;
      }
      if (late != nullptr) {
        give_up(lock, late);
      } else if (next == Clock::time_point::max()) {
        watch.wait(lock);
      } else {
        watch.wait_until(lock, next);
      }
    }
  }

  void give_up(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Job>& job) {
    std::vector<Waiter> late;
    if (job->begun) {
      late.swap(job->waiters);
      stats.timed_out += late.size();
      tell(lock, std::move(late), job->grammar, too_slow());
      return;
    }
    late.push_back(std::move(job->waiters.front()));
    job->waiters.erase(job->waiters.begin());
    if (job->waiters.empty()) {  // it is nobody's any more
      waiting.erase(std::find(waiting.begin(), waiting.end(), job));
      jobs.erase(job->key);
    }
    stats.timed_out += 1;
    tell(lock, std::move(late), job->grammar,
         fail(ErrorCode::kUnavailable,
              "no thread was free to compile the grammar within {} ms; try again later",
              limits.compile_timeout.count()));
  }

  Result<Grammar> too_slow() const {
    return fail(ErrorCode::kInvalidArgument,
                "compiling the grammar takes longer than {} ms; make the schema, pattern or grammar simpler",
                limits.compile_timeout.count());
  }

  // ---- whoever asks ----

  Result<std::unique_ptr<TokenConstraint>> start(const Result<Grammar>& grammar, const AnswerGrammar& asked,
                                                 const ConstrainOptions& options) const {
    if (!grammar) return fail(Error(grammar.error()));
    PIVOT_TRY(std::unique_ptr<TokenConstraint> constraint, (*grammar)->start());
    if (!options.after_reasoning) return constraint;
    return make_reasoning_gate(reasoning, std::move(constraint), demands_answer(asked));
  }

  // The grammar, or why there is none; neither where it has to be compiled: `waiter` waits for it then.
  std::optional<Result<Grammar>> find_or_enqueue(const AnswerGrammar& grammar, Waiter& waiter) {
    if (Result<> checked = check_grammar(grammar, limits); !checked) return fail(std::move(checked).error());
    std::string key = key_of(grammar);
    const std::lock_guard lock(mutex);
    if (stopped) return fail(ErrorCode::kUnavailable, "the server is shutting down");
    if (Grammar known = find(key)) {
      ++stats.cached;
      return known;
    }
    if (const auto same = jobs.find(key); same != jobs.end()) {
      const std::shared_ptr<Job>& job = same->second;
      if (job->begun && waiter.asked - *job->begun >= limits.compile_timeout) {
        ++stats.timed_out;
        return too_slow();
      }
      job->waiters.push_back(std::move(waiter));
      watch.notify_all();
      return std::nullopt;
    }
    if (waiting.size() >= static_cast<std::size_t>(limits.max_waiting))
      return fail(ErrorCode::kUnavailable, "{} grammars wait to be compiled already; try again later",
                  waiting.size());
    auto job = std::make_shared<Job>();
    job->key = key;
    job->grammar = grammar;
    job->waiters.push_back(std::move(waiter));
    jobs.emplace(std::move(key), job);
    waiting.push_back(std::move(job));
    work.notify_one();
    watch.notify_all();
    return std::nullopt;
  }

  void stop() {
    std::unique_lock lock(mutex);
    stopped = true;
    while (true) {
      const auto found = std::find_if(jobs.begin(), jobs.end(),
                                      [](const auto& job) { return !job.second->waiters.empty(); });
      if (found == jobs.end()) break;
      const std::shared_ptr<Job> job = found->second;
      std::vector<Waiter> told;
      told.swap(job->waiters);
      tell(lock, std::move(told), job->grammar, fail(ErrorCode::kUnavailable, "the server is shutting down"));
    }
    for (const auto& job : waiting) jobs.erase(job->key);
    waiting.clear();
    quiet.wait(lock, [this] { return calling == 0; });
  }
};

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::create(const Tokenizer& tokenizer,
                                                                 std::span<const TokenId> stop_tokens,
                                                                 std::int64_t vocab_size,
                                                                 GrammarLimits limits) {
  if (vocab_size < tokenizer.vocab_size())
    return fail(ErrorCode::kInvalidArgument, "the tokenizer has {} tokens, the model's logits {}",
                tokenizer.vocab_size(), vocab_size);
  if (stop_tokens.empty())
    return fail(ErrorCode::kInvalidArgument,
                "structured output needs a token that ends an answer; none was given");
  for (const TokenId stop : stop_tokens) {
    if (raw(stop) < 0 || raw(stop) >= vocab_size)
      return fail(ErrorCode::kInvalidArgument, "stop token {} is outside the vocabulary of {}", raw(stop),
                  vocab_size);
  }

  auto impl = std::make_unique<Impl>();
  impl->limits = limits;
  // Added tokens are markup that no answer may have, but for the one that tool calls are written with.
  const std::optional<TokenId> dsml = tokenizer.special().dsml;
  std::vector<std::string> vocabulary(static_cast<std::size_t>(vocab_size));
  impl->reasoning->bytes.resize(vocabulary.size());
  for (std::int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const auto index = static_cast<std::size_t>(id);
    impl->reasoning->bytes[index] = tokenizer.token_bytes(token);
    if (!tokenizer.is_added(token) || token == dsml) vocabulary[index] = impl->reasoning->bytes[index];
  }
  impl->reasoning->stop_tokens.assign(stop_tokens.begin(), stop_tokens.end());
  fill_reasoning_masks(*impl->reasoning);

  if (grammars_available()) {
    PIVOT_TRY(impl->library, make_grammar_library(vocabulary, impl->reasoning->stop_tokens, impl->counters));
    for (std::int32_t i = 0; i < std::max(limits.threads, 1); ++i)
      impl->threads.emplace_back([state = impl.get()] { state->compile_all(); });
    impl->threads.emplace_back([state = impl.get()] { state->watch_deadlines(); });
  }
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(impl)));
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCompiler::~GrammarCompiler() = default;

void GrammarCompiler::constrain_later(const AnswerGrammar& grammar, const ConstrainOptions& options,
                                      Done done) {
  if (!impl_->library) return done(fail(make_grammar_library({}, {}, nullptr).error()));
  Waiter waiter{Clock::now(), options, std::move(done)};
  const std::optional<Result<Grammar>> found = impl_->find_or_enqueue(grammar, waiter);
  if (!found) return;
  if (!*found) {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->stats.refused;
  }
  waiter.done(impl_->start(*found, grammar, options));
}

Result<std::unique_ptr<TokenConstraint>> GrammarCompiler::constrain(const AnswerGrammar& grammar,
                                                                    const ConstrainOptions& options) {
  // Shared: the promise outlives set_value on the other thread.
  const auto promise = std::make_shared<std::promise<Result<std::unique_ptr<TokenConstraint>>>>();
  auto future = promise->get_future();
  constrain_later(grammar, options, [promise](Result<std::unique_ptr<TokenConstraint>> constraint) {
    promise->set_value(std::move(constraint));
  });
  return future.get();
}

void GrammarCompiler::stop() { impl_->stop(); }

GrammarStats GrammarCompiler::stats() const {
  const std::lock_guard lock(impl_->mutex);
  GrammarStats stats = impl_->stats;
  stats.waiting = static_cast<std::int64_t>(impl_->jobs.size());
  stats.masks = impl_->counters->masks.load(std::memory_order_relaxed);
  stats.mask_seconds =
      static_cast<double>(impl_->counters->nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
  return stats;
}

}  // namespace pivot
