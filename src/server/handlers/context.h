// What all handlers of one server share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/handlers/health_probe.h"
#include "server/handlers/replay.h"
#include "server/handlers/work_queue.h"
#include "server/http/exchange.h"
#include "text/chat/encode.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot {
class GrammarCompiler;
class Metrics;
}  // namespace pivot

namespace pivot::server {

class Trace;

struct ServiceOptions {
  std::vector<std::string> model_names;  // at least one; answers name the first
  std::string model_root;                // the checkpoint, as the operator gave it
  std::int64_t created = 0;              // Unix time
  std::string fingerprint;               // system_fingerprint
  std::string version_json;              // the body of /version
  std::string info_json;                 // the body of /get_server_info: the effective configuration

  ChatEncoding encoding = ChatEncoding::kPreview;
  std::string max_effort_text;
  bool default_thinking = false;  // where a request says nothing
  SamplingParams default_sampling;
  std::vector<TokenId> stop_tokens;

  std::vector<std::string> api_keys;      // empty: open to everybody
  std::vector<std::string> cors_origins;  // "*": any; empty: no CORS headers
  std::chrono::milliseconds heartbeat{10'000};
  std::chrono::milliseconds request_timeout{0};  // 0: none
  std::size_t replay_bytes = std::size_t{64} << 20;
  int work_threads = 2;
  std::chrono::milliseconds health_patience{20'000};  // of /health_generate
  int retry_after_seconds = 1;
};

struct Context {
  Context(ServiceOptions service_options, Engine& the_engine, const Tokenizer& the_tokenizer,
          GrammarCompiler* the_grammars, Metrics& the_metrics)
      : options(std::move(service_options)),
        engine(the_engine),
        tokenizer(the_tokenizer),
        grammars(the_grammars),
        metrics(the_metrics),
        replay(options.replay_bytes),
        prompts(tokenizer, replay),
        health_probe(std::make_shared<HealthProbe>(engine, tokenizer.special().bos.value_or(TokenId{0}),
                                                   options.health_patience)),
        work(options.work_threads, kMaxWaitingWork) {}

  static constexpr std::size_t kMaxWaitingWork = 8192;

  ServiceOptions options;
  Engine& engine;
  const Tokenizer& tokenizer;
  GrammarCompiler* grammars;  // null where this build has none
  Metrics& metrics;
  ReplayStore replay;
  PromptEncoder prompts;
  std::atomic<bool> draining{false};
  std::atomic<std::uint64_t> next_id{1};
  // Runs work later on an I/O thread; set before the first request.
  std::function<void(std::chrono::milliseconds, std::function<void()>)> post_after;
  Trace* trace = nullptr;  // optional
  // The engine's last heartbeat that /health saw, and when it was new.
  std::mutex health_mutex;
  std::uint64_t last_beat = 0;
  std::chrono::steady_clock::time_point beat_time = std::chrono::steady_clock::now();
  std::shared_ptr<HealthProbe> health_probe;
  WorkQueue work;  // last: its threads end before anything that they use
};

// Who asks, for fairness and replay: "key:1" where keys are in use, else the address without its port.
std::string client_of(const Context& context, const http::Request& request);

}  // namespace pivot::server
