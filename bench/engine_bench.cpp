// The engine's figures on one model, each a ratio of two measurements of the same run, because a busy machine
// moves both: throughput of 16 streams against 1, a repeated prompt's time to first token against the cold
// one, the time between tokens of running streams while a long prompt comes in, and what scheduling costs
// with a thousand waiting requests.
//   engine_bench MODEL_FOLDER [OUT.json] [--device WORD] [--context TOKENS]
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

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  std::string model, out, device = "cpu";
  std::int64_t context = 16384;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc)
      device = argv[++i];
    else if (std::strcmp(argv[i], "--context") == 0 && i + 1 < argc)
      context = std::atoll(argv[++i]);
    else
      (model.empty() ? model : out) = argv[i];
  }
  if (model.empty()) {
    std::fprintf(stderr, "usage: engine_bench MODEL_FOLDER [OUT.json] [--device WORD] [--context TOKENS]\n");
    return 64;
  }
  std::mutex records_mutex;
  std::vector<StepRecord> records;
  EngineOptions options;
  options.weights = value_or_exit(load_model(model));
  options.backend = value_or_exit(make_backend(device));
  options.max_context = context;
  options.max_sequences = 16;
  options.on_step = [&](const StepRecord& record) {
    const std::lock_guard lock(records_mutex);
    records.push_back(record);
  };
  const std::int64_t vocab = options.weights->config.vocab_size;
  auto engine = value_or_exit(Engine::create(options));
  nlohmann::json report = {{"benchmark", "engine"}, {"device", options.backend->device().name}};

  // 1. Streams. Alternating, so that other work on the machine weighs on both alike; medians.
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

  // 2. A repeated 8K prompt, and the same text with another question.
  {
    const std::int64_t length = std::min<std::int64_t>(8192, context - 64);
    Watch watch;
    const std::vector<TokenId> text = prompt(length, 77, vocab);
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

  // 3. Eight streams, then a long prompt beside them.
  {
    Watch watch;
    std::vector<RequestId> ids;
    const std::size_t first_record = [&] {
      const std::lock_guard lock(records_mutex);
      return records.size();
    }();
    for (std::uint32_t i = 0; i < 8; ++i)
      ids.push_back(value_or_exit(engine->submit(request(prompt(64, 500 + i, vocab), 0), watch.sink())));
    while (watch.times(ids.back()).size() < 40) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::int64_t length = std::min<std::int64_t>(4096, context - 64);
    const RequestTimings timings =
        watch.wait(value_or_exit(engine->submit(request(prompt(length, 78, vocab), 1), watch.sink())));
    for (const RequestId id : ids) engine->cancel(id);
    for (const RequestId id : ids) watch.wait(id);
    std::vector<double> alone, mixed;
    const std::lock_guard lock(records_mutex);
    for (std::size_t i = first_record; i < records.size(); ++i) {
      const StepRecord& r = records[i];
      if (r.decode_tokens < 8) continue;
      const double all = r.schedule_seconds + r.forward_seconds + r.sample_seconds;
      (r.prefill_tokens > 0 ? mixed : alone).push_back(all);
    }
    if (!mixed.empty() && !alone.empty()) {
      report["step_seconds_decode_only"] = median(alone);
      report["step_seconds_with_prefill"] = median(mixed);
      report["inter_token_stretch"] = median(mixed) / median(alone);
      report["long_prompt_prefill_seconds"] = timings.prefill_seconds;
      std::printf("long prompt beside 8 streams: step %.2f ms alone, %.2f ms with prefill, stretch %.2f\n",
                  1e3 * median(alone), 1e3 * median(mixed), median(mixed) / median(alone));
    }
  }
  engine.reset();

  // 4. A thousand waiting requests behind sixteen that run.
  {
    records.clear();
    EngineOptions queue_options = options;
    queue_options.max_queued = 2000;
    engine = value_or_exit(Engine::create(queue_options));
    Watch watch;
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i < 16; ++i)
      ids.push_back(value_or_exit(engine->submit(request(prompt(64, 900 + i, vocab), 60), watch.sink())));
    while (engine->stats().running < 16) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::vector<RequestId> waiting;
    for (std::uint32_t i = 0; i < 1000; ++i) {
      EngineRequest r = request(prompt(64, 2000 + i, vocab), 20);
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
    if (!share.empty()) {
      report["schedule_share_1000_waiting"] = median(share);
      report["schedule_seconds_1000_waiting"] = median(schedule);
      std::printf("scheduling with 1000 waiting: %.1f us a step, %.3f %% of it (%zu steps)\n",
                  1e6 * median(schedule), 100 * median(share), share.size());
    }
  }
  if (!out.empty()) std::ofstream(out) << report.dump(1) << "\n";
  return 0;
}
