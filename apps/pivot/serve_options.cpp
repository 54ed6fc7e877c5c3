#include "serve_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/file.h"

namespace pivot::cli {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// One key a line; empty lines and lines that begin with # are left out.
Result<std::vector<std::string>> read_keys(const std::string& path) {
  PIVOT_TRY(const std::string text, read_file(path, 1 << 20));
  std::vector<std::string> keys;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line[0] != '#') keys.push_back(line);
  }
  if (keys.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--api-key-file {}: it holds no key; one key a line is wanted",
                path);
  }
  return keys;
}

Result<> check(const ServeOptions& options) {
  const auto not_negative = [](std::string_view flag, double value) -> Result<> {
    if (value >= 0) return {};
    return fail(ErrorCode::kInvalidArgument, "{} is {}; it is not negative", flag, value);
  };
  if (options.thinking != "on" && options.thinking != "off") {
    return fail(ErrorCode::kInvalidArgument, "--thinking is on or off; found \"{}\"", options.thinking);
  }
  if (options.admission != "overcommit" && options.admission != "worst-case") {
    return fail(ErrorCode::kInvalidArgument, "--admission is overcommit or worst-case; found \"{}\"",
                options.admission);
  }
  if (options.log_format != "auto" && options.log_format != "text" && options.log_format != "json") {
    return fail(ErrorCode::kInvalidArgument, "--log-format is auto, text or json; found \"{}\"",
                options.log_format);
  }
  if (options.port < 0 || options.port > 65535) {
    return fail(ErrorCode::kInvalidArgument, "--port is {}; it is 0 (any free one) to 65535", options.port);
  }
  if (options.io_threads < 1 || options.io_threads > 256) {
    return fail(ErrorCode::kInvalidArgument, "--io-threads is {}; it is 1 to 256", options.io_threads);
  }
  if (options.max_body_bytes < 1024) {
    return fail(ErrorCode::kInvalidArgument, "--max-body-bytes is {}; it is at least 1024",
                options.max_body_bytes);
  }
  PIVOT_TRY_VOID(not_negative("--drain-seconds", options.drain_seconds));
  PIVOT_TRY_VOID(not_negative("--heartbeat-seconds", options.heartbeat_seconds));
  PIVOT_TRY_VOID(not_negative("--request-timeout-seconds", options.request_timeout_seconds));
  return not_negative("--header-timeout-seconds", options.header_timeout_seconds);
}

}  // namespace

void add_serve_options(CLI::App& app, ServeOptions& options) {
  add_model_options(app, options.model);
  app.get_option("MODEL")->required(false);  // a configuration file may name it
  const auto bytes = [](CLI::Option* option) {
    return option->transform(CLI::AsSizeValue(false))->type_name("BYTES");
  };

  app.add_option("--config", options.config, "TOML file; flags and environment variables win over it")
      ->type_name("FILE");
  app.add_option("--host", options.host, "Address to listen on; empty for none")->capture_default_str();
  app.add_option("--port", options.port, "Port to listen on; 0 takes any free one")->capture_default_str();
  app.add_option("--unix-socket,--uds", options.unix_socket, "Unix socket to listen on, too")
      ->type_name("PATH");
  app.add_option("--ssl-certfile", options.ssl_certfile, "TLS: certificate chain, PEM")->type_name("FILE");
  app.add_option("--ssl-keyfile", options.ssl_keyfile, "TLS: its key, PEM")->type_name("FILE");
  app.add_option("--api-key", options.api_keys, "A key that clients must send; repeatable")
      ->type_name("KEY")
      ->allow_extra_args(false);
  app.add_option("--api-key-file", options.api_key_file, "File of such keys, one a line")->type_name("FILE");
  app.add_option("--allowed-origins", options.allowed_origins,
                 "CORS: a web origin that may call, or *; repeatable")
      ->type_name("ORIGIN")
      ->allow_extra_args(false);
  app.add_option("--served-model-name", options.served_model_names,
                 "Name that requests use; repeatable (default: MODEL)")
      ->type_name("NAME")
      ->allow_extra_args(false);

  app.add_option("--max-model-len", options.max_model_len,
                 "Tokens of prompt and answer of one request; 0 chooses")
      ->capture_default_str();
  app.add_option("--max-num-seqs,--max-running-requests", options.max_num_seqs,
                 "Answers that run at the same time")
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", options.max_num_batched_tokens,
                 "Most tokens of one step; 0 chooses")
      ->capture_default_str();
  bytes(app.add_option("--kv-cache-memory-bytes", options.kv_cache_memory_bytes,
                       "Memory for the state of sequences; 0: half of what there is"))
      ->capture_default_str();
  app.add_option("--max-queued-requests", options.max_queued_requests,
                 "Waiting requests; one more is refused (429)")
      ->capture_default_str();
  app.add_option("--max-queued-per-client", options.max_queued_per_client,
                 "The same for one client; 0: no limit of its own")
      ->capture_default_str();
  app.add_option("--max-running-per-client", options.max_running_per_client,
                 "Answers of one client that run at the same time; 0: no limit of its own")
      ->capture_default_str();
  app.add_option("--admission", options.admission,
                 "overcommit: start when the prompt fits, pre-empt when memory runs out; worst-case: only "
                 "when all fits")
      ->capture_default_str();
  bytes(app.add_option("--preempted-bytes", options.preempted_bytes,
                       "Host memory for the state of pre-empted answers"))
      ->capture_default_str();
  app.add_option("--max-step-stretch", options.max_step_stretch,
                 "Prompts are cut so that a step takes at most this multiple of one that only decodes")
      ->capture_default_str();
  app.add_flag(
      "--deterministic,--enable-deterministic-inference", options.deterministic,
      "Cut prompts at fixed positions, so that a request's steps do not depend on the machine's speed");
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", options.prefix_caching,
               "Keep the state of prompts for later ones that begin the same (default: on)")
      ->default_str("true");
  bytes(app.add_option("--prefix-cache-bytes", options.prefix_cache_bytes,
                       "Host memory for the fixed part of cached prefixes"))
      ->capture_default_str();
  app.add_option("--disk-cache", options.disk_cache, "Folder of cached prefixes that survive a restart")
      ->type_name("DIR");
  bytes(app.add_option("--disk-cache-bytes", options.disk_cache_bytes, "Its size"))->capture_default_str();

  app.add_option("--thinking", options.thinking,
                 "on or off: whether the model reasons where a request does not say")
      ->capture_default_str();
  app.add_option("--encoding", options.encoding, "Chat encoding: auto, preview or 0731")
      ->capture_default_str();
  app.add_option("--max-effort-file", options.max_effort_file,
                 "Prompt text of reasoning effort max for the 0731 encoding")
      ->type_name("FILE");

  bytes(app.add_option("--max-body-bytes", options.max_body_bytes, "Largest body of a request"))
      ->capture_default_str();
  app.add_option("--max-connections", options.max_connections, "Open connections; one more is closed at once")
      ->capture_default_str();
  app.add_option("--io-threads", options.io_threads, "Threads for connections")->capture_default_str();
  app.add_option("--header-timeout-seconds", options.header_timeout_seconds, "For a request's head to arrive")
      ->capture_default_str();
  app.add_option("--body-timeout-seconds", options.body_timeout_seconds, "For its body to arrive")
      ->capture_default_str();
  app.add_option("--keep-alive-seconds", options.keep_alive_seconds,
                 "An idle connection is closed after this")
      ->capture_default_str();
  app.add_option("--write-timeout-seconds", options.write_timeout_seconds,
                 "A client that reads nothing is dropped after this")
      ->capture_default_str();
  app.add_option("--heartbeat-seconds", options.heartbeat_seconds,
                 "A silent stream gets a comment this often; 0: never")
      ->capture_default_str();
  app.add_option("--request-timeout-seconds", options.request_timeout_seconds,
                 "A request may take this long; 0: any time")
      ->capture_default_str();
  bytes(
      app.add_option("--replay-bytes", options.replay_bytes, "Memory for the exact tokens of recent answers"))
      ->capture_default_str();

  app.add_option("--drain-seconds", options.drain_seconds, "On SIGTERM: what runs may go on this long")
      ->capture_default_str();
  app.add_option("--log-format", options.log_format, "text, json, or auto: text on a terminal, else json")
      ->capture_default_str();
  app.add_option("--trace", options.trace, "Write a Chrome trace of steps and requests")->type_name("FILE");
  add_serve_recall_options(app, options.recall);
}

Result<server::InstanceOptions> instance_options(const ServeOptions& options) {
  PIVOT_TRY_VOID(check(options));
  server::InstanceOptions out;
  EngineOptions& engine = out.engine;
  engine.max_context = options.max_model_len > 0 ? options.max_model_len : options.model.max_context;
  engine.max_sequences = options.max_num_seqs;
  engine.state_bytes = options.kv_cache_memory_bytes;
  engine.step_tokens =
      options.max_num_batched_tokens > 0 ? options.max_num_batched_tokens : options.model.chunk;
  engine.max_queued = options.max_queued_requests;
  engine.max_queued_per_client = options.max_queued_per_client;
  engine.max_running_per_client = options.max_running_per_client;
  engine.admission = options.admission == "worst-case" ? Admission::kWorstCase : Admission::kOvercommit;
  engine.preempted_bytes = options.preempted_bytes;
  engine.max_step_stretch = options.max_step_stretch;
  engine.deterministic = options.deterministic;
  engine.prefix_cache = options.prefix_caching;
  engine.prefix_cache_bytes = options.prefix_cache_bytes;
  engine.disk_cache = options.disk_cache;
  engine.disk_cache_bytes = options.disk_cache_bytes;

  server::ServiceOptions& service = out.service;
  service.model_names = options.served_model_names;
  if (service.model_names.empty()) service.model_names.push_back(options.model.model);
  service.model_root = options.model.model;
  service.default_thinking = options.thinking == "on";
  if (!options.max_effort_file.empty()) {
    PIVOT_TRY(service.max_effort_text, read_file(options.max_effort_file, 1 << 20));
  }
  service.api_keys = options.api_keys;
  if (!options.api_key_file.empty()) {
    PIVOT_TRY(const auto keys, read_keys(options.api_key_file));
    service.api_keys.insert(service.api_keys.end(), keys.begin(), keys.end());
  }
  service.cors_origins = options.allowed_origins;
  service.heartbeat = milliseconds(options.heartbeat_seconds);
  service.request_timeout = milliseconds(options.request_timeout_seconds);
  service.replay_bytes = static_cast<std::size_t>(std::max<std::int64_t>(0, options.replay_bytes));

  http::ServerOptions& server = out.http;
  server.host = options.host;
  server.port = options.port;
  server.unix_socket = options.unix_socket;
  server.tls_certificate = options.ssl_certfile;
  server.tls_key = options.ssl_keyfile;
  server.threads = options.io_threads;
  server.limits.body_bytes = static_cast<std::size_t>(options.max_body_bytes);
  server.limits.connections = options.max_connections;
  server.limits.header_timeout = milliseconds(options.header_timeout_seconds);
  server.limits.body_timeout = milliseconds(options.body_timeout_seconds);
  server.limits.idle_timeout = milliseconds(options.keep_alive_seconds);
  server.limits.write_timeout = milliseconds(options.write_timeout_seconds);
  out.trace = options.trace;
  return out;
}

}  // namespace pivot::cli
