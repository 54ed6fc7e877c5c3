// Whether the engine generates: one token through the whole of it, for /health_generate.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http/exchange.h"

namespace pivot::server {

// The token is asked for behind everything that clients want, and takes nothing from the prefix cache and
// leaves nothing there. On a server that is full it may not come in time: then what others were given
// meanwhile is the proof.
class HealthProbe : public std::enable_shared_from_this<HealthProbe> {
 public:
  // Runs work after a while, on some thread.
  using PostAfter = std::function<void(std::chrono::milliseconds, std::function<void()>)>;

  // `prompt`: any token of the vocabulary. The engine must outlive the last answer.
  HealthProbe(Engine& engine, TokenId prompt, std::chrono::milliseconds patience)
      : engine_(engine), prompt_(prompt), patience_(patience) {}

  // Answers 200, or 503 with a sentence, within `patience`. Who asks while a probe runs shares it, so that
  // asking often costs no more than asking once.
  void ask(std::shared_ptr<http::Exchange> exchange, const PostAfter& post_after);

 private:
  void begin(std::uint64_t round, const PostAfter& post_after);
  void take(std::uint64_t round, const EngineEvent& event);
  void time_is_up(std::uint64_t round);
  // Ends the round, once; an empty sentence: healthy.
  void answer(std::uint64_t round, const std::string& trouble);

  Engine& engine_;
  const TokenId prompt_;
  const std::chrono::milliseconds patience_;

  std::mutex mutex_;  // guards the following
  std::uint64_t round_ = 0;
  bool running_ = false;
  std::uint64_t tokens_before_ = 0;  // generated for anybody when the round began
  std::optional<RequestId> request_;
  std::vector<std::shared_ptr<http::Exchange>> asking_;
};

}  // namespace pivot::server
