#include "server_fixture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/load.h"
#include "engine/devices.h"
#include "server/handlers/request_log.h"
#include "server/metrics/metrics.h"
#include "support/embedded_model.h"
#include "support/patience.h"

namespace pivot::test {
namespace {

std::shared_ptr<const ModelWeights> embedded_weights() {
  static const std::shared_ptr<const ModelWeights> weights = [] {
    auto checkpoint = Checkpoint::open(embedded_model_dir().string());
    EXPECT_TRUE(checkpoint) << (checkpoint ? "" : checkpoint.error().to_string());
    LoadOptions load;
    load.draft = false;
    auto loaded = load_model(*checkpoint, load);
    EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().to_string());
    return *loaded;
  }();
  return weights;
}

}  // namespace

TestServer::TestServer(const Change& change) {
  static_cast<void>(server::init_server_log(server::LogFormat::kText, "warn"));
  server::InstanceOptions options;
  options.engine.weights = embedded_weights();
  options.engine.backend = *make_backend("cpu", 2);
  options.engine.max_context = 8192;
  options.engine.max_sequences = 8;
  options.engine.deterministic = true;
  options.tokenizer = *Tokenizer::load(embedded_model_dir());
  options.service.model_names = {"needle"};
  options.service.stop_tokens = {*options.tokenizer->special().eos};
  options.service.default_sampling = SamplingParams::greedy();
  options.service.version_json = "{}";
  options.service.info_json = "{}";
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  if (change) change(options);
  auto instance = server::Instance::start(std::move(options));
  EXPECT_TRUE(instance) << (instance ? "" : instance.error().to_string());
  if (instance) instance_ = *std::move(instance);
}

TestServer::~TestServer() = default;

HttpClient TestServer::client() const { return HttpClient::tcp(instance_->http().port()); }

bool TestServer::is_idle() const {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    const EngineStats stats = instance_->engine().stats();
    if (stats.running == 0 && stats.waiting == 0 &&
        stats.submitted == stats.finished + stats.cancelled + stats.failed) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

double TestServer::metric(const std::string& name, const std::string& labels) const {
  std::istringstream lines(client().get("/metrics").body);
  double sum = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool named = line.starts_with(name + " ") || line.starts_with(name + "{");
    if (named && line.find(labels) != std::string::npos) sum += std::stod(line.substr(line.rfind(' ')));
  }
  return sum;
}

}  // namespace pivot::test
