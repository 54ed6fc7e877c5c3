// What the probe of a running server costs: the embedded model decodes with and without it, in turns.
//
// At each context, blocks of `every_steps` steps alternate between the two, so that whatever else the machine
// does falls on both alike. Three figures of the same run: the ratio of each probed block's time to its
// neighbours', its median being the overhead; the time of the step that is measured less the median of its
// block's other steps; and the share of the time that the probe itself counts. The limit on its share is
// lifted here, so nothing holds it back.
#include <fmt/format.h>

#include <algorithm>
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

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Steps go through the probe or past it, to the same back-end.
class Switch final : public ForwardingBackend {
 public:
  Switch(std::shared_ptr<Backend> plain, std::shared_ptr<recall::StepProbe> probe)
      : ForwardingBackend(std::move(plain)), probe_(std::move(probe)) {}

  void turn(bool on) { on_ = on; }

  void run_step(const StepKey& key, const std::function<void()>& record) override {
    on_ ? probe_->run_step(key, record) : inner().run_step(key, record);
  }
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override {
    on_ ? probe_->attention(layer, knobs, batch, p) : inner().attention(layer, knobs, batch, p);
  }

 private:
  std::shared_ptr<recall::StepProbe> probe_;
  bool on_ = false;
};

struct Block {
  double seconds = 0;
  std::vector<double> steps;  // seconds of each
};

Result<nlohmann::ordered_json> measure(const std::shared_ptr<const ModelWeights>& weights,
                                       const recall::Haystack& haystack, std::int64_t context,
                                       std::int64_t every, std::int64_t pairs) {
  PIVOT_TRY(const std::shared_ptr<Backend> plain, make_backend("cpu", 0));
  recall::StepProbeOptions options;
  options.every_steps = every;
  options.max_share = 1;
  const auto probe = std::make_shared<recall::StepProbe>(plain, weights, options);
  const auto watched = std::make_shared<Switch>(plain, probe);
  SessionOptions session_options;
  session_options.weights = weights;
  session_options.backend = watched;
  session_options.max_context = context + every * (2 * pairs + 2);
  PIVOT_TRY(const auto session, Session::create(std::move(session_options)));
  const std::vector<TokenId> ids = haystack.starting_at(0, context);
  PIVOT_TRY_VOID(session->prefill(ids));

  std::size_t next = 0;
  const auto decode = [&](bool on) -> Result<Block> {
    watched->turn(on);
    Block block;
    for (std::int64_t i = 0; i < every; ++i) {
      const Clock::time_point start = Clock::now();
      PIVOT_TRY_VOID(session->decode(ids[next++ % ids.size()]));
      block.steps.push_back(since(start));
      block.seconds += block.steps.back();
    }
    return block;
  };
  PIVOT_TRY_VOID(decode(true));  // memory and branch predictors warm
  PIVOT_TRY(Block before, decode(false));
  const double busy_before = probe->busy_seconds();
  const std::uint64_t measured_before = probe->measured();
  std::vector<double> ratios, extras, plain_steps;
  double probed_seconds = 0;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    PIVOT_TRY(const Block probed, decode(true));
    PIVOT_TRY(Block after, decode(false));
    ratios.push_back(2 * probed.seconds / (before.seconds + after.seconds));
    // The probe looks at the last step of its block, and at that one alone.
    const std::vector<double> others(probed.steps.begin(), probed.steps.end() - 1);
    extras.push_back(probed.steps.back() - median(others));
    plain_steps.insert(plain_steps.end(), after.steps.begin(), after.steps.end());
    probed_seconds += probed.seconds;
    before = std::move(after);
  }
  const auto measured = static_cast<double>(probe->measured() - measured_before);
  const double step = median(plain_steps), busy = probe->busy_seconds() - busy_before;
  return nlohmann::ordered_json{
      {"context", context},
      {"every_steps", every},
      {"blocks_with_and_without", pairs},
      {"measurements", measured},
      {"ms_per_step", 1e3 * step},
      {"ms_per_measurement", measured > 0 ? 1e3 * busy / measured : 0},
      {"ms_of_measured_step_over_others_median", 1e3 * median(extras)},
      {"overhead_by_blocks_median", median(ratios) - 1},
      {"overhead_by_steps_median", median(extras) / (static_cast<double>(every) * step)},
      {"share_of_time_in_probe", busy / probed_seconds},
      {"block_ratios", ratios}};
}

Result<> run(const std::string& model, const std::string& text_file, std::int64_t every, std::int64_t pairs,
             const std::vector<std::int64_t>& contexts) {
  if (every < 2 || pairs < 1)
    return fail(ErrorCode::kInvalidArgument,
                "EVERY is {} and PAIRS {}; at least 2 steps and 1 pair are wanted", every, pairs);
  PIVOT_TRY(const Checkpoint checkpoint, Checkpoint::open(model));
  PIVOT_TRY(const auto weights, load_model(checkpoint, LoadOptions{}));
  PIVOT_TRY(const Tokenizer tokenizer, Tokenizer::load(checkpoint.folder()));
  PIVOT_TRY(const std::string text, read_file(text_file));
  PIVOT_TRY(const recall::Haystack haystack, recall::Haystack::create(text, tokenizer));
  auto rows = nlohmann::ordered_json::array();
  for (const std::int64_t context : contexts) {
    PIVOT_TRY(auto row, measure(weights, haystack, context, every, pairs));
    rows.push_back(std::move(row));
  }
  fmt::print("{}\n", nlohmann::ordered_json{{"bench", "step_probe"}, {"rows", rows}}.dump(1));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fmt::print(stderr, "step_probe_bench MODEL_FOLDER TEXT_FILE EVERY PAIRS CONTEXT...\n");
    return 64;
  }
  std::vector<std::int64_t> contexts;
  for (int i = 5; i < argc; ++i) contexts.push_back(std::atoll(argv[i]));
  const auto done = run(argv[1], argv[2], std::atoll(argv[3]), std::atoll(argv[4]), contexts);
  if (!done) fmt::print(stderr, "{}\n", done.error().to_string());
  return done ? 0 : 1;
}
