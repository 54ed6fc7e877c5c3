#include "server/handlers/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "server/api/error.h"
#include "server/api/json_text.h"
#include "server/handlers/generation.h"
#include "server/handlers/request_log.h"
#include "server/handlers/simple_handlers.h"
#include "server/metrics/metrics.h"
#include "server/page/page.h"
#include "text/grammar/grammar.h"

namespace pivot::server {
namespace {

using api::ApiError;

constexpr std::string_view kModelPrefix = "/v1/models/";

// In constant time for keys of one length, so that a key cannot be guessed byte by byte.
bool same_key(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

http::Response text_response(int status, std::string body) {
  http::Response response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(body);
  return response;
}

bool is_read(const http::Request& request) { return request.method == "GET" || request.method == "HEAD"; }

http::Response page_response(const PageFile& file, const http::Request& request) {
  http::Response response;
  response.content_type = file.content_type;
  response.headers.add("content-security-policy", std::string(kPageSecurityPolicy));
  response.headers.add("referrer-policy", "no-referrer");
  // Kept by the browser, asked for again each time: a new version of the program shows its own page.
  response.headers.add("cache-control", "no-cache");
  response.headers.add("etag", std::string(file.etag));
  if (request.headers.get("if-none-match") == file.etag)
    response.status = 304;
  else
    response.body = file.body;
  return response;
}

enum class Action {
  kGenerate,
  kCountTokens,
  kModels,
  kModel,
  kTokenize,
  kDetokenize,
  kHealth,
  kHealthGenerate,
  kReady,
  kPing,
  kVersion,
  kMetrics,
  kLoads,
  kModelInfo,
  kServerInfo,
  kFlushCache,
};

}  // namespace

struct Service::Route {
  std::string_view path;
  std::string_view methods;  // "GET HEAD"
  Action action;
  bool guarded;                    // wants a key, where keys are in use
  std::string_view endpoint = {};  // the metrics' label of a completion
  api::Api api = api::Api::kChat;
};

const Service::Route* Service::find_route(std::string_view path) {
  static constexpr std::array kRoutes = {
      Route{"/v1/chat/completions", "POST", Action::kGenerate, true, "chat_completions", api::Api::kChat},
      Route{"/v1/completions", "POST", Action::kGenerate, true, "completions", api::Api::kCompletions},
      Route{"/v1/responses", "POST", Action::kGenerate, true, "responses", api::Api::kResponses},
      Route{"/v1/messages", "POST", Action::kGenerate, true, "messages", api::Api::kMessages},
      Route{"/v1/messages/count_tokens", "POST", Action::kCountTokens, true},
      Route{"/v1/models", "GET HEAD", Action::kModels, true},
      Route{kModelPrefix, "GET HEAD", Action::kModel, true},
      Route{"/tokenize", "POST", Action::kTokenize, true},
      Route{"/detokenize", "POST", Action::kDetokenize, true},
      Route{"/v1/loads", "GET HEAD", Action::kLoads, true},
      Route{"/get_model_info", "GET HEAD", Action::kModelInfo, true},
      Route{"/get_server_info", "GET HEAD", Action::kServerInfo, true},
      Route{"/flush_cache", "POST GET", Action::kFlushCache, true},
      Route{"/health", "GET HEAD", Action::kHealth, false},
      Route{"/health_generate", "GET HEAD", Action::kHealthGenerate, false},
      Route{"/ready", "GET HEAD", Action::kReady, false},
      Route{"/ping", "GET HEAD POST", Action::kPing, false},
      Route{"/version", "GET HEAD", Action::kVersion, false},
      Route{"/metrics", "GET HEAD", Action::kMetrics, false},
  };
  for (const Route& route : kRoutes) {
    if (route.path == path) return route.path == kModelPrefix ? nullptr : &route;
    if (route.path == kModelPrefix && path.starts_with(kModelPrefix)) return &route;
  }
  return nullptr;
}

std::string_view Service::endpoint_of(std::string_view path) {
  const Route* route = find_route(path);
  return route == nullptr ? std::string_view() : route->endpoint;
}

Service::Service(ServiceOptions options, Engine& engine, const Tokenizer& tokenizer,
                 GrammarCompiler* grammars, Metrics& metrics)
    : context_(std::make_shared<Context>(std::move(options), engine, tokenizer, grammars, metrics)) {}

// Work that runs keeps the context alive; the last of it must not be the one that ends the threads it runs
// on.
Service::~Service() { finish_work(); }

void Service::finish_work() {
  if (context_->grammars != nullptr) context_->grammars->stop();
  context_->work.finish();
}

void Service::install(http::ServerOptions& options) {
  options.check_head = [this](const http::Request& head, http::Response& refusal) {
    return check_head(head, refusal);
  };
  options.error_body = [this](const http::Request& head, int status, std::string_view message) {
    return error_body(head, status, message);
  };
  options.handle = [this](std::shared_ptr<http::Exchange> exchange) { handle(std::move(exchange)); };
  options.decorate = [this](const http::Request& request, http::Headers& headers) {
    decorate(request, headers);
  };
  options.observe = [this](const http::Request& request, int status, double seconds) {
    observe(request, status, seconds);
  };
  options.on_listening = [this](http::Server& server) { attach(server); };
  options.on_connection_refused = [refused = context_->metrics.counter(MetricId::kHttpConnectionsRefused)] {
    refused.add();
  };
}

void Service::attach(http::Server& server) {
  server_ = &server;
  context_->post_after = [&server](std::chrono::milliseconds delay, std::function<void()> work) {
    server.post_after(delay, std::move(work));
  };
}

void Service::set_trace(Trace* trace) { context_->trace = trace; }
void Service::set_draining() { context_->draining = true; }
ReplayStore& Service::replay() { return context_->replay; }

bool Service::has_key(const http::Request& request) const {
  const auto& keys = context_->options.api_keys;
  if (keys.empty()) return true;
  std::string_view given = request.headers.get("x-api-key");
  const std::string_view authorization = request.headers.get("authorization");
  if (authorization.size() > 7 && http::equal_ignoring_case(authorization.substr(0, 7), "bearer ")) {
    given = authorization.substr(7);
  }
  bool known = false;
  for (const std::string& key : keys) known |= same_key(key, given);
  return known;
}

http::Response Service::error_response(const http::Request& request, const ApiError& error) const {
  http::Response response;
  response.status = error.status;
  response.body = request.path.starts_with("/v1/messages") ? api::anthropic_error(error, request.id)
                                                           : api::openai_error(error);
  if (error.retry_after_seconds)
    response.headers.add("retry-after", std::to_string(*error.retry_after_seconds));
  return response;
}

bool Service::check_head(const http::Request& head, http::Response& refusal) const {
  const auto refuse = [&](const ApiError& error, RequestEnd end) {
    refusal = error_response(head, error);
    if (const std::string_view endpoint = endpoint_of(head.path); !endpoint.empty()) {
      RequestMetrics(context_->metrics, endpoint).end(end);
    }
    return false;
  };
  if (head.method == "OPTIONS") return true;
  if (is_read(head) && find_page_file(head.path) != nullptr) return true;
  const Route* route = find_route(head.path);
  if (route == nullptr) {
    return refuse(
        api::not_found(fmt::format("there is no {} here", api::quotable(head.path, 120)), "not_found"),
        RequestEnd::kNotFound);
  }
  if (route->methods.find(head.method) == std::string_view::npos || head.method.empty()) {
    ApiError error;
    error.status = 405;
    error.code = "method_not_allowed";
    error.message =
        fmt::format("{} takes {}; found {}", route->path, route->methods, api::quotable(head.method, 16));
    refuse(error, RequestEnd::kInvalid);
    refusal.headers.add("allow", fmt::format("{}", fmt::join(std::array{route->methods}, ",")));
    return false;
  }
  if (route->guarded && !has_key(head)) {
    ApiError error;
    error.status = 401;
    error.type = "authentication_error";
    error.code = "invalid_api_key";
    error.message =
        "an API key is wanted: `Authorization: Bearer KEY` or `x-api-key: KEY`; found none that is known";
    refuse(error, RequestEnd::kUnauthorized);
    refusal.headers.add("www-authenticate", "Bearer");
    return false;
  }
  if (route->action == Action::kGenerate && context_->draining) {
    return refuse(
        api::unavailable("the server is draining: it finishes what it has and takes nothing new", 5),
        RequestEnd::kNotReady);
  }
  const std::string_view encoding = head.headers.get("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    ApiError error;
    error.status = 415;
    error.code = "unsupported";
    error.message =
        fmt::format("bodies come without content-encoding; found \"{}\"", api::quotable(encoding));
    return refuse(error, RequestEnd::kUnsupported);
  }
  return true;
}

http::Response Service::error_body(const http::Request& head, int status, std::string_view message) const {
  if (const std::string_view endpoint = endpoint_of(head.path); !endpoint.empty()) {
    RequestMetrics(context_->metrics, endpoint)
        .end(status == 413 ? RequestEnd::kTooLarge : RequestEnd::kInvalid);
  }
  ApiError error;
  error.status = status;
  error.message = std::string(message);
  if (status == 408) error.code = "request_timeout";
  if (status == 413) error.code = "request_too_large";
  return error_response(head, error);
}

void Service::decorate(const http::Request& request, http::Headers& headers) const {
  headers.add("x-content-type-options", "nosniff");
  const std::string_view origin = request.headers.get("origin");
  const auto& allowed = context_->options.cors_origins;
  if (origin.empty() || allowed.empty()) return;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) return;
  headers.add("access-control-allow-origin", any ? "*" : std::string(origin));
  headers.add("access-control-expose-headers", "x-request-id, retry-after");
  if (!any) headers.add("vary", "origin");
  if (request.method == "OPTIONS") {
    headers.add("access-control-allow-methods", "GET, POST, OPTIONS");
    headers.add("access-control-allow-headers",
                "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta");
    headers.add("access-control-max-age", "600");
  }
}

void Service::observe(const http::Request& request, int status, double seconds) const {
  const Route* route = find_route(request.path);
  std::string_view name = route == nullptr ? "other" : route->path;
  if (route == nullptr && find_page_file(request.path) != nullptr) name = request.path == "/" ? "/" : "/page";
  if (name == kModelPrefix) name = "/v1/models";
  context_->metrics.counter(MetricId::kHttpRequests, {name, request.method, std::to_string(status)}).add();
  context_->metrics.histogram(MetricId::kHttpDuration, {name}).observe(seconds);
}

void Service::handle(std::shared_ptr<http::Exchange> exchange) {
  const http::Request& request = exchange->request();
  const auto answer = [&](http::Response response) { exchange->respond(std::move(response)); };
  if (request.method == "OPTIONS") return answer({204, "", {}, {}, false});
  if (const PageFile* file = find_page_file(request.path); file != nullptr)
    return answer(page_response(*file, request));
  const Route* route = find_route(request.path);  // check_head has seen that there is one

  // What reads a body of any size is not work for an I/O thread.
  const auto answer_later = [&](api::ApiResult<http::Response> (*work)(Context&, const http::Request&)) {
    const bool taken = context_->work.post([this, exchange, work] {
      auto response = work(*context_, exchange->request());
      exchange->respond(response ? *std::move(response)
                                 : error_response(exchange->request(), response.error()));
    });
    if (!taken) answer(error_response(request, api::unavailable("too many requests are being read", 1)));
  };
  switch (route->action) {
    case Action::kGenerate:
      return Generation::start(context_, exchange, route->api,
                               RequestMetrics(context_->metrics, route->endpoint));
    case Action::kCountTokens:
      return answer_later(&post_count_tokens);
    case Action::kTokenize:
      return answer_later(&post_tokenize);
    case Action::kDetokenize:
      return answer_later(&post_detokenize);
    case Action::kModels:
      return answer(get_models(*context_));
    case Action::kModel: {
      auto response = get_model(*context_, std::string_view(request.path).substr(kModelPrefix.size()));
      return answer(response ? *std::move(response) : error_response(request, response.error()));
    }
    case Action::kHealth:
      return answer(get_health(*context_));
    case Action::kHealthGenerate:
      return context_->health_probe->ask(exchange, context_->post_after);
    case Action::kReady: {
      const bool ready = !context_->draining && context_->engine.accepting();
      return answer(text_response(ready ? 200 : 503, ready ? "ready\n" : "draining\n"));
    }
    case Action::kPing:
      return answer(text_response(200, ""));
    case Action::kVersion:
      return answer(json_response(context_->options.version_json));
    case Action::kMetrics: {
      context_->metrics.gauge(MetricId::kHttpConnections).set(server_->open_connections());
      http::Response response;
      response.content_type = std::string(Metrics::kContentType);
      response.body = context_->metrics.render();
      return answer(std::move(response));
    }
    case Action::kLoads:
      return answer(get_loads(*context_));
    case Action::kModelInfo:
      return answer(get_model_info(*context_));
    case Action::kServerInfo:
      return answer(json_response(context_->options.info_json));
    case Action::kFlushCache:
      return answer(post_flush_cache(*context_));
  }
}

}  // namespace pivot::server
