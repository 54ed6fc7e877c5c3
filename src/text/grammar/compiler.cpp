// The cache of compiled grammars and the threads that compile.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
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

// One compilation, shared by everyone who waits for the same grammar.
struct Job {
  std::string key;
  AnswerGrammar grammar;
  int waiters = 0;
  bool done = false;
  Result<Grammar> result = Grammar();
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
  std::condition_variable work;      // a job waits, or the end
  std::condition_variable finished;  // a job is done
  std::deque<std::shared_ptr<Job>> waiting;
  std::map<std::string, std::shared_ptr<Job>, std::less<>> jobs;  // waiting or running, by key
  std::list<Entry> cache;                                         // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> entry_of;
  GrammarStats stats;
  bool stopping = false;
  std::vector<std::thread> threads;

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

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

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [this] { return stopping || !waiting.empty(); });
      if (stopping) return;
      const std::shared_ptr<Job> job = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      const Clock::time_point start = Clock::now();
      Result<Grammar> result = library->compile(job->grammar);
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      lock.lock();
      stats.compile_seconds += seconds;
      if (result) {
        ++stats.compiled;
        insert(job->key, *result);
      }
      job->result = std::move(result);
      job->done = true;
      jobs.erase(job->key);
      finished.notify_all();
    }
  }

  Result<Grammar> compiled(const AnswerGrammar& grammar) {
    PIVOT_TRY_VOID(check_grammar(grammar, limits));
    std::string key = key_of(grammar);
    std::unique_lock lock(mutex);
    if (Grammar known = find(key)) {
      ++stats.cached;
      return known;
    }
    std::shared_ptr<Job> job;
    if (const auto same = jobs.find(key); same != jobs.end()) {
      job = same->second;
    } else {
      if (waiting.size() >= static_cast<std::size_t>(limits.max_waiting))
        return fail(ErrorCode::kUnavailable, "{} grammars wait to be compiled already; try again later",
                    waiting.size());
      job = std::make_shared<Job>();
      job->key = key;
      job->grammar = grammar;
      jobs.emplace(std::move(key), job);
      waiting.push_back(job);
      work.notify_one();
    }
    ++job->waiters;
    const bool done = finished.wait_for(lock, limits.compile_timeout, [&job] { return job->done; });
    --job->waiters;
    if (!done) {
      // One that has not begun is nobody's any more.
      if (const auto queued = std::find(waiting.begin(), waiting.end(), job);
          queued != waiting.end() && job->waiters == 0) {
        waiting.erase(queued);
        jobs.erase(job->key);
        return fail(ErrorCode::kUnavailable,
                    "no thread was free to compile the grammar within {} ms; try again later",
                    limits.compile_timeout.count());
      }
      return fail(
          ErrorCode::kInvalidArgument,
          "compiling the grammar takes longer than {} ms; make the schema, pattern or grammar simpler",
          limits.compile_timeout.count());
    }
    return job->result;
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
      impl->threads.emplace_back([state = impl.get()] { state->run(); });
  }
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(impl)));
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<TokenConstraint>> GrammarCompiler::constrain(const AnswerGrammar& grammar,
                                                                    const ConstrainOptions& options) {
  if (!impl_->library) return fail(make_grammar_library({}, {}, nullptr).error());
  Result<Grammar> compiled = impl_->compiled(grammar);
  if (!compiled) {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->stats.refused;
    return fail(std::move(compiled).error());
  }
  PIVOT_TRY(std::unique_ptr<TokenConstraint> constraint, (*compiled)->start());
  if (!options.after_reasoning) return constraint;
  return make_reasoning_gate(impl_->reasoning, std::move(constraint), demands_answer(grammar));
}

GrammarStats GrammarCompiler::stats() const {
  const std::lock_guard lock(impl_->mutex);
  GrammarStats stats = impl_->stats;
  stats.masks = impl_->counters->masks.load(std::memory_order_relaxed);
  stats.mask_seconds =
      static_cast<double>(impl_->counters->nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
  return stats;
}

}  // namespace pivot
