// A whole server in one object: engine, grammars, metrics, HTTP. `pivot serve` runs one, tests run several.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/handlers/context.h"
#include "server/http/server.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::server {

class Service;

// What /metrics says about the program and the model.
struct Identity {
  std::string version, commit, build_type, backends, archs;  // of the program
  std::string checkpoint_format, device;
};

struct InstanceOptions {
  EngineOptions engine;
  std::optional<Tokenizer> tokenizer;  // required
  ServiceOptions service;
  GrammarLimits grammar_limits;
  http::ServerOptions http;  // address, TLS, limits, threads; the handlers are filled in
  Identity identity;
  std::filesystem::path trace;  // empty: none
};

class Instance {
 public:
  // Serves from then on. Errors: those of Engine::create, GrammarCompiler::create and http::Server::start.
  static Result<std::unique_ptr<Instance>> start(InstanceOptions options);
  ~Instance();  // stop()
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  Engine& engine();
  Metrics& metrics();
  Service& service();
  http::Server& http();
  const Tokenizer& tokenizer() const;

  // /ready says 503 and completions are refused from now on; requests that run go on.
  void begin_drain();
  // Waits until nothing runs any more, at most `timeout`; false where something still does. May be called
  // again.
  bool drain(std::chrono::milliseconds timeout);
  // Cancels what still runs (its clients are told), lets the last responses be sent, closes. Idempotent.
  void stop();

 private:
  struct State;
  explicit Instance(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pivot::server
