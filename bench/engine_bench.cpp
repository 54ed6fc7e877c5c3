// The engine's figures on one model, each a ratio of two measurements of the same run, because a busy machine
// moves both: throughput of 16 streams against 1, a repeated prompt's time to first token against the cold
// one, the time between tokens of running streams while a long prompt comes in, and what scheduling costs
// with a thousand waiting requests.
//   engine_bench MODEL_FOLDER [OUT.json] [--device WORD] [--context TOKENS] [--long-prompt TOKENS] [--only
//   PART]
// PART: streams, prefix, long or queue.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/load.h"
#include "engine/devices.h"
#include "engine/engine.h"

namespace {

using namespace pivot;
using Clock = std::chrono::steady_clock;

template <class T>
T value_or_exit(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

std::vector<TokenId> prompt(std::int64_t n, std::uint32_t seed, std::int64_t vocab) {
  std::vector<TokenId> ids;
  std::uint32_t x = seed * 2654435761u + 1;
  for (std::int64_t i = 0; i < n; ++i) {
    x = 1664525u * x + 1013904223u;
    ids.push_back(TokenId{static_cast<std::int32_t>((x >> 8) % static_cast<std::uint32_t>(vocab))});
  }
  return ids;
}

EngineRequest request(std::vector<TokenId> ids, std::int64_t tokens) {
  EngineRequest r;
  r.prompt = std::move(ids);
  r.max_new_tokens = tokens;
  return r;
}

// When each token of each request came.
class Watch {
 public:
  EventSink sink() {
    return [this](RequestId id, std::int32_t, EngineEvent event) {
      const std::lock_guard lock(mutex_);
      if (std::holds_alternative<TokenEvent>(event)) times_[raw(id)].push_back(Clock::now());
      if (auto* failed = std::get_if<FailedEvent>(&event)) {
        std::fprintf(stderr, "%s\n", failed->error.to_string().c_str());
        std::exit(1);
      }
      if (auto* finished = std::get_if<FinishedEvent>(&event)) {
        ended_[raw(id)] = finished->timings;
        changed_.notify_all();
      }
    };
  }
  RequestTimings wait(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.count(raw(id)) > 0; });
    return ended_[raw(id)];
  }
  std::vector<Clock::time_point> times(RequestId id) {
    const std::lock_guard lock(mutex_);
    return times_[raw(id)];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, RequestTimings> ended_;
  std::map<std::uint64_t, std::vector<Clock::time_point>> times_;
};

// Tokens per second of `streams` streams that all decode.
double throughput(Engine& engine, std::int32_t streams, std::int64_t tokens, std::uint32_t seed) {
  Watch watch;
  std::vector<RequestId> ids;
  for (std::int32_t i = 0; i < streams; ++i) {
    EngineRequest r =
        request(prompt(64, seed + static_cast<std::uint32_t>(i), engine.config().vocab_size), tokens);
    r.use_prefix_cache = false;
    ids.push_back(value_or_exit(engine.submit(std::move(r), watch.sink())));
  }
  for (const RequestId id : ids) watch.wait(id);
  // From the last stream's first token to the first stream's last.
  Clock::time_point from = Clock::time_point::min(), to = Clock::time_point::max();
  for (const RequestId id : ids) {
    from = std::max(from, watch.times(id).front());
    to = std::min(to, watch.times(id).back());
  }
  std::int64_t count = 0;
  for (const RequestId id : ids)
    for (const Clock::time_point t : watch.times(id)) count += t > from && t <= to ? 1 : 0;
  return static_cast<double>(count) / std::chrono::duration<double>(to - from).count();
}

double quantile(std::vector<double> values, double q) {
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}
double median(const std::vector<double>& values) { return quantile(values, 0.5); }

class Bench {
 public:
  Bench(EngineOptions options, std::int64_t long_prompt)
      : options_(std::move(options)),
        long_prompt_(long_prompt),
        context_(options_.max_context),
        vocab_(options_.weights->config.vocab_size) {
    report = {{"benchmark", "engine"}, {"device", options_.backend->device().name}};
  }

  // Alternating, so that other work on the machine weighs on both alike; medians.
  void streams() {
    const auto engine = value_or_exit(Engine::create(options_));
    std::vector<double> one, sixteen;
    for (std::uint32_t round = 0; round < 3; ++round) {
      one.push_back(throughput(*engine, 1, 150, 10 * round));
      sixteen.push_back(throughput(*engine, 16, 150, 1000 + 100 * round));
    }
    report["tokens_per_second_1"] = median(one);
    report["tokens_per_second_16"] = median(sixteen);
    report["speedup_16"] = median(sixteen) / median(one);
    std::printf("streams: 1 %.1f tok/s, 16 %.1f tok/s, ratio %.2f\n", median(one), median(sixteen),
                median(sixteen) / median(one));
  }

  // A repeated 8K prompt, and the same text with another question.
  void prefix() {
    const auto engine = value_or_exit(Engine::create(options_));
    const std::int64_t length = std::min<std::int64_t>(8192, context_ - 64);
    Watch watch;
    const std::vector<TokenId> text = prompt(length, 77, vocab_);
    const auto run = [&](std::vector<TokenId> ids) {
      return watch.wait(value_or_exit(engine->submit(request(std::move(ids), 4), watch.sink())));
    };
    const RequestTimings cold = run(text);
    const RequestTimings repeated = run(text);
    std::vector<TokenId> other = text;
    for (std::size_t i = other.size() - 30; i < other.size(); ++i)
      other[i] = TokenId{static_cast<std::int32_t>(i % 50)};
    const RequestTimings changed = run(other);
    report["prompt_tokens"] = length;
    report["ttft_cold_seconds"] = cold.ttft_seconds;
    report["ttft_repeated_seconds"] = repeated.ttft_seconds;
    report["ttft_repeated_ratio"] = repeated.ttft_seconds / cold.ttft_seconds;
    report["ttft_other_question_ratio"] = changed.ttft_seconds / cold.ttft_seconds;
    report["cached_tokens_repeated"] = repeated.cached_tokens;
    report["cached_tokens_other_question"] = changed.cached_tokens;
    std::printf(
        "prefix: cold %.3f s, repeated %.4f s (%.2f %%, %lld cached), other question %.2f %% (%lld cached)\n",
        cold.ttft_seconds, repeated.ttft_seconds, 100 * repeated.ttft_seconds / cold.ttft_seconds,
        static_cast<long long>(repeated.cached_tokens), 100 * changed.ttft_seconds / cold.ttft_seconds,
        static_cast<long long>(changed.cached_tokens));
  }

  // Eight streams, then a long prompt beside them: what the streams' clients see between two tokens. In
  // quarters of the prompt's time, because its tokens cost more the further it is.
  void long_prompt() {
    const auto engine = value_or_exit(Engine::create(options_));
    Watch watch;
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i < 8; ++i) {
      EngineRequest stream = request(prompt(64, 500 + i, vocab_), 0);
      stream.use_prefix_cache = false;
      ids.push_back(value_or_exit(engine->submit(std::move(stream), watch.sink())));
    }
    while (watch.times(ids.back()).size() < 200) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::int64_t length = std::min(long_prompt_, context_ - 64);
    const Clock::time_point from = Clock::now();
    const RequestTimings timings =
        watch.wait(value_or_exit(engine->submit(request(prompt(length, 78, vocab_), 1), watch.sink())));
    const Clock::time_point to = Clock::now();
    for (const RequestId id : ids) engine->cancel(id);
    for (const RequestId id : ids) watch.wait(id);

    std::vector<double> alone, beside;
    std::vector<std::vector<double>> quarters(4);
    for (const RequestId id : ids) {
      const std::vector<Clock::time_point> times = watch.times(id);
      for (std::size_t i = 21; i < times.size(); ++i) {
        const double gap = std::chrono::duration<double>(times[i] - times[i - 1]).count();
        if (times[i] < from) alone.push_back(gap);
        if (times[i - 1] < from || times[i] > to) continue;
        beside.push_back(gap);
        const double part = std::chrono::duration<double>(times[i] - from) / (to - from);
        quarters[std::min<std::size_t>(static_cast<std::size_t>(part * 4), 3)].push_back(gap);
      }
    }
    if (alone.empty() || beside.empty()) {
      std::printf("long prompt: a stream's context was full before the prompt was read; raise --context\n");
      return;
    }
    const double base = median(alone);
    report["long_prompt_tokens"] = length;
    report["long_prompt_prefill_seconds"] = timings.prefill_seconds;
    report["inter_token_seconds_alone"] = base;
    report["inter_token_seconds_beside"] = median(beside);
    report["inter_token_seconds_beside_p95"] = quantile(beside, 0.95);
    report["inter_token_stretch"] = median(beside) / base;
    std::printf(
        "prompt of %lld tokens beside 8 streams, %.1f s: between tokens %.2f ms alone (95 %% %.2f), %.2f ms "
        "beside (95 %% %.2f), stretch %.2f\n",
        static_cast<long long>(length), timings.prefill_seconds, 1e3 * base, 1e3 * quantile(alone, 0.95),
        1e3 * median(beside), 1e3 * quantile(beside, 0.95), median(beside) / base);
    for (const std::vector<double>& quarter : quarters) {
      if (quarter.empty()) continue;
      report["inter_token_stretch_by_quarter"].push_back(median(quarter) / base);
      std::printf("  stretch %.2f (95 %% %.2f)\n", median(quarter) / base, quantile(quarter, 0.95) / base);
    }
  }

  // A thousand waiting requests behind sixteen that run.
  void queue() {
    std::mutex records_mutex;
    std::vector<StepRecord> records;
    EngineOptions options = options_;
    options.max_queued = 2000;
    options.on_step = [&](const StepRecord& record) {
      const std::lock_guard lock(records_mutex);
      records.push_back(record);
    };
    auto engine = value_or_exit(Engine::create(options));
    Watch watch;
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i < 16; ++i)
      ids.push_back(value_or_exit(engine->submit(request(prompt(64, 900 + i, vocab_), 60), watch.sink())));
    while (engine->stats().running < 16) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::vector<RequestId> waiting;
    for (std::uint32_t i = 0; i < 1000; ++i) {
      EngineRequest r = request(prompt(64, 2000 + i, vocab_), 20);
      r.client = "client " + std::to_string(i % 50);
      waiting.push_back(value_or_exit(engine->submit(std::move(r), watch.sink())));
    }
    for (const RequestId id : ids) watch.wait(id);
    for (const RequestId id : waiting) engine->cancel(id);
    engine.reset();
    std::vector<double> share, schedule;
    for (const StepRecord& r : records) {
      if (r.waiting < 900) continue;
      share.push_back(r.schedule_seconds / (r.schedule_seconds + r.forward_seconds + r.sample_seconds));
      schedule.push_back(r.schedule_seconds);
    }
    if (share.empty()) return;
    report["schedule_share_1000_waiting"] = median(share);
    report["schedule_seconds_1000_waiting"] = median(schedule);
    std::printf("scheduling with 1000 waiting: %.1f us a step, %.3f %% of it (%zu steps)\n",
                1e6 * median(schedule), 100 * median(share), share.size());
  }

  nlohmann::json report;

 private:
  EngineOptions options_;
  std::int64_t long_prompt_;
  std::int64_t context_;
  std::int64_t vocab_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string model, out, device = "cpu", only;
  std::int64_t context = 16384, long_prompt = 4096;
  for (int i = 1; i < argc; ++i) {
    const auto is = [&](const char* flag) { return std::strcmp(argv[i], flag) == 0 && i + 1 < argc; };
    if (is("--device"))
      device = argv[++i];
    else if (is("--context"))
      context = std::atoll(argv[++i]);
    else if (is("--long-prompt"))
      long_prompt = std::atoll(argv[++i]);
    else if (is("--only"))
      only = argv[++i];
    else
      (model.empty() ? model : out) = argv[i];
  }
  if (model.empty()) {
    std::fprintf(stderr,
                 "usage: engine_bench MODEL_FOLDER [OUT.json] [--device WORD] [--context TOKENS] "
                 "[--long-prompt TOKENS] [--only streams|prefix|long|queue]\n");
    return 64;
  }
  EngineOptions options;
  options.weights = value_or_exit(load_model(model));
  options.backend = value_or_exit(make_backend(device));
  options.max_context = context;
  options.max_sequences = 16;
  Bench bench(std::move(options), long_prompt);
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("streams")) bench.streams();
  if (wanted("prefix")) bench.prefix();
  if (wanted("long")) bench.long_prompt();
  if (wanted("queue")) bench.queue();
  if (!out.empty()) std::ofstream(out) << bench.report.dump(1) << "\n";
  return 0;
}
