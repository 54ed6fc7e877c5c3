// What `pivot serve` does to know that it still recalls: canaries and the probe of the selection, as metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "checkpoint/model_weights.h"

namespace CLI {
class App;
}
namespace pivot {
class Backend;
class Metrics;
namespace recall {
class Canary;
}
namespace server {
class Instance;
}
}  // namespace pivot

namespace pivot::cli {

struct ServeRecallOptions {
  bool canary = false;
  double canary_share = 0.005;
  std::vector<std::int64_t> canary_lengths = {1024, 2048, 4096, 8192};
  std::string canary_text;
  std::int64_t probe_every = 0;
};
void add_serve_recall_options(CLI::App& app, ServeRecallOptions& options);

class ServeRecall {
 public:
  explicit ServeRecall(ServeRecallOptions options);
  ~ServeRecall();

  // Before the engine is made: `backend`, with the probe around it where one is asked for. Errors:
  // kInvalidArgument, kUnsupported for a back-end that cannot be looked into.
  Result<std::shared_ptr<Backend>> watch(std::shared_ptr<Backend> backend,
                                         std::shared_ptr<const ModelWeights> weights);
  // When the server runs: probes count from now on, and canaries start. `model` is the MODEL argument.
  // The instance must outlive stop(). Errors: Canary::start's, the text's.
  Result<> start(server::Instance& instance, const std::string& model, std::vector<TokenId> stop_tokens);
  void stop();

 private:
  ServeRecallOptions options_;
  std::shared_ptr<std::atomic<Metrics*>> metrics_;  // shared with the probe, which may outlive this
  std::unique_ptr<recall::Canary> canary_;
};

}  // namespace pivot::cli
