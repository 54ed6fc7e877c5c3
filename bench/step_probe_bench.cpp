// What the probe of a running server costs: the share of the time that it takes while the embedded model
// decodes, at several contexts and rates. Each row is one run of `steps` tokens after a prompt.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/load.h"
#include "engine/devices.h"
#include "engine/session.h"
#include "recall/haystack.h"
#include "recall/step_probe.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace pivot;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Result<> measure(const std::string& model, const std::string& text_file, std::int64_t steps,
                 const std::vector<std::int64_t>& contexts) {
  PIVOT_TRY(const Checkpoint checkpoint, Checkpoint::open(model));
  PIVOT_TRY(const auto weights, load_model(checkpoint, LoadOptions{}));
  PIVOT_TRY(const Tokenizer tokenizer, Tokenizer::load(checkpoint.folder()));
  PIVOT_TRY(const std::string text, read_file(text_file));
  PIVOT_TRY(const recall::Haystack haystack, recall::Haystack::create(text, tokenizer));
  auto rows = nlohmann::ordered_json::array();
  for (const std::int64_t context : contexts) {
    for (const std::int64_t every : {64, 1}) {
      PIVOT_TRY(const std::shared_ptr<Backend> plain, make_backend("cpu", 0));
      recall::StepProbeOptions options;
      options.every_steps = every;
      const auto probe = std::make_shared<recall::StepProbe>(plain, weights, options);
      SessionOptions session_options;
      session_options.weights = weights;
      session_options.backend = probe;
      session_options.max_context = context + steps;
      PIVOT_TRY(const auto session, Session::create(std::move(session_options)));
      const std::vector<TokenId> ids = haystack.starting_at(0, context);
      PIVOT_TRY_VOID(session->prefill(ids));
      const double busy_before = probe->busy_seconds();
      const std::uint64_t measured_before = probe->measured();
      const Clock::time_point start = Clock::now();
      for (std::int64_t i = 0; i < steps; ++i)
        PIVOT_TRY_VOID(session->decode(ids[static_cast<std::size_t>(i)]));
      const double seconds = since(start), busy = probe->busy_seconds() - busy_before;
      const auto measured = static_cast<double>(probe->measured() - measured_before);
      rows.push_back({{"context", context},
                      {"every_steps", every},
                      {"steps", steps},
                      {"measured", measured},
                      {"ms_per_step", 1e3 * seconds / static_cast<double>(steps)},
                      {"ms_per_measurement", measured > 0 ? 1e3 * busy / measured : 0},
                      {"share_of_time", busy / seconds}});
    }
  }
  fmt::print("{}\n", nlohmann::ordered_json{{"bench", "step_probe"}, {"rows", rows}}.dump(1));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    fmt::print(stderr, "step_probe_bench MODEL_FOLDER TEXT_FILE STEPS CONTEXT...\n");
    return 64;
  }
  std::vector<std::int64_t> contexts;
  for (int i = 4; i < argc; ++i) contexts.push_back(std::atoll(argv[i]));
  const auto done = measure(argv[1], argv[2], std::atoll(argv[3]), contexts);
  if (!done) fmt::print(stderr, "{}\n", done.error().to_string());
  return done ? 0 : 1;
}
