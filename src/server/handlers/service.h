// The server's paths: who may call them, which handler answers, what a wrong call is told.
#pragma once

#include <memory>
#include <string>

#include "server/api/error.h"
#include "server/handlers/context.h"
#include "server/http/server.h"

namespace pivot::server {

class Service {
 public:
  // Everything given must live longer than the HTTP server that calls this. `grammars` may be null.
  Service(ServiceOptions options, Engine& engine, const Tokenizer& tokenizer, GrammarCompiler* grammars,
          Metrics& metrics);
  ~Service();

  // Before the HTTP server starts.
  void set_trace(Trace* trace);
  // Fills in the handlers of the HTTP server's options.
  void install(http::ServerOptions& options);

  // From now on /ready answers 503 and new completions are refused with 503.
  void set_draining();
  // Refuses the requests whose grammars are still being compiled, and finishes reading the others. When it
  // returns, no thread of the service or of the grammars has anything left to send: the HTTP server may go.
  void finish_work();

  ReplayStore& replay();

 private:
  struct Route;
  static const Route* find_route(std::string_view path);
  static std::string_view endpoint_of(std::string_view path);

  // What needs the running server: timers, connection figures.
  void attach(http::Server& server);
  bool check_head(const http::Request& head, http::Response& refusal) const;
  http::Response error_body(const http::Request& head, int status, std::string_view message) const;
  void handle(std::shared_ptr<http::Exchange> exchange);
  void decorate(const http::Request& request, http::Headers& headers) const;
  void observe(const http::Request& request, int status, double seconds) const;
  bool has_key(const http::Request& request) const;
  http::Response error_response(const http::Request& request, const api::ApiError& error) const;

  std::shared_ptr<Context> context_;
  http::Server* server_ = nullptr;  // set before the first request
};

}  // namespace pivot::server
