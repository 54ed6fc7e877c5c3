// The flags of `pivot serve`, in vLLM's spelling where it has one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_options.h"
#include "serve_recall.h"
#include "server/instance.h"

namespace pivot::cli {

struct ServeOptions {
  ModelOptions model;
  std::string config;
  // Where it listens.
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string unix_socket;
  std::string ssl_certfile;
  std::string ssl_keyfile;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> allowed_origins;
  std::vector<std::string> served_model_names;
  // The engine.
  std::int64_t max_model_len = 0;
  std::int32_t max_num_seqs = 16;
  std::int32_t max_num_batched_tokens = 0;
  std::int64_t kv_cache_memory_bytes = 0;
  std::int32_t max_queued_requests = 1024;
  std::int32_t max_queued_per_client = 0;
  std::int32_t max_running_per_client = 0;
  std::string admission = "overcommit";
  std::int64_t preempted_bytes = std::int64_t{4} << 30;
  double max_step_stretch = 2.0;
  bool deterministic = false;
  bool prefix_caching = true;
  std::int64_t prefix_cache_bytes = std::int64_t{1} << 30;
  std::string disk_cache;
  std::int64_t disk_cache_bytes = std::int64_t{16} << 30;
  // Answers.
  std::string thinking = "off";
  std::string encoding = "auto";
  std::string max_effort_file;
  // HTTP.
  std::int64_t max_body_bytes = std::int64_t{32} << 20;
  std::int32_t max_connections = 4096;
  std::int32_t io_threads = 2;
  double header_timeout_seconds = 10;
  double body_timeout_seconds = 60;
  double keep_alive_seconds = 75;
  double write_timeout_seconds = 30;
  double heartbeat_seconds = 10;
  double request_timeout_seconds = 0;
  std::int64_t replay_bytes = std::int64_t{64} << 20;
  // Operation.
  double drain_seconds = 30;
  std::string log_format = "auto";
  std::string trace;
  ServeRecallOptions recall;
};

void add_serve_options(CLI::App& app, ServeOptions& options);

// Everything but the model itself (weights, back-end, tokenizer). Errors: kInvalidArgument naming the flag,
// kNotFound for a key file that is not there.
Result<server::InstanceOptions> instance_options(const ServeOptions& options);

}  // namespace pivot::cli
