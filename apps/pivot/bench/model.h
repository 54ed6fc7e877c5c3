// A model and caches without content, at full size, and the steps that benchmarks time on them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cache/cache_pool.h"
#include "cache/sequence_state.h"
#include "engine/cuda_devices.h"
#include "model/forward.h"

namespace pivot::cli {

struct BenchShape {
  std::int64_t context = 0;  // tokens of every sequence before the first step, random rows in the caches
  std::int32_t sequences = 1;
  std::int64_t new_tokens = 0;   // of a sequence over all steps
  std::int32_t step_tokens = 1;  // of the largest step
};

// Bytes of all that a decode step reads whatever it routes to, of one routed expert, and of the cache rows
// that one token at `context` reads (specification 2.4-2.6).
double dense_bytes(const ModelWeights& weights);
double expert_bytes(const ModelWeights& weights);
double cache_bytes(const ModelConfig& config, const CacheLayout& layout, std::int64_t context);
// Of one layer, without its routed experts.
double dense_bytes(const LayerWeights& layer);

class BenchModel {
 public:
  // Errors: kOutOfMemory where caches and workspace of this shape do not fit beside the weights.
  // `runner`: what runs the steps, a back-end around the first one (a TimingBackend); null: the first itself.
  static Result<std::unique_ptr<BenchModel>> create(const std::shared_ptr<Backend>& backend,
                                                    const std::shared_ptr<const ModelWeights>& weights,
                                                    const Knobs& knobs, const BenchShape& shape,
                                                    std::shared_ptr<Backend> runner = nullptr);
  // One random token for every sequence; returns when the step has ended.
  Result<> decode(TapSink* sink = nullptr);
  // The next `tokens` random tokens of the first sequence in one step.
  Result<> prefill(std::int32_t tokens, TapSink* sink = nullptr);

  std::int64_t position() const { return position_; }  // of the next token, the same in every sequence
  const Model& model() const { return *model_; }
  const CacheLayout& layout() const { return pool_->layout(); }
  const std::vector<LayerCacheView>& views() const { return views_; }
  std::int32_t slot(std::int32_t sequence) const {
    return sequences_[static_cast<std::size_t>(sequence)]->slot();
  }

 private:
  BenchModel() = default;
  Result<> step(std::int32_t tokens_each, TapSink* sink);

  std::int32_t step_sequences_ = 0;
  std::unique_ptr<Model> model_;
  std::shared_ptr<CachePool> pool_;
  std::unique_ptr<PageTables> tables_;
  std::vector<std::unique_ptr<SequenceState>> sequences_;
  std::vector<LayerCacheView> views_;
  std::int64_t position_ = 0;
  std::mt19937 random_{1};
};

struct DecodeCase {
  std::int64_t context = 0;
  std::int32_t batch = 1;
  std::int32_t steps = 24;  // timed
  bool breakdown = false;   // time operators too, in steps of their own between the others
};

// Where the time of the steps with timed operators went.
struct Breakdown {
  struct Row {
    std::string op;
    double calls_per_step = 0;
    double seconds_per_step = 0;
  };
  std::vector<Row> rows;
  double operator_seconds = 0;  // sum of the rows
  double step_seconds = 0;      // of these very steps
  // Of one layer, mean over the layers of the ratio; 0 where there is none. And of what belongs to no layer.
  double layer_seconds[3] = {0, 0, 0};  // ratio 0, 4, 128
  double outside_layers_seconds = 0;
};

struct DecodeResult {
  double step_seconds = 0;  // median, from the upload of the step's description to the end of its last kernel
  double best_step_seconds = 0;
  double bytes_per_step = 0;     // weights that the step touches, cache rows and states that it reads
  double experts_per_layer = 0;  // distinct routed experts of the step, mean over the layers
  bool logits_finite = false;
  std::optional<Breakdown> breakdown;
};
Result<DecodeResult> bench_decode(const std::shared_ptr<Backend>& backend,
                                  const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                  const DecodeCase& wanted);

// Median time of a step as `generate` makes it: the forward pass, the choice of a token, book-keeping.
Result<double> bench_session_step(const std::shared_ptr<Backend>& backend,
                                  const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                  std::int64_t context, std::int32_t steps);

struct PrefillCase {
  std::int64_t tokens = 8192;
  std::int32_t chunk = 8192;  // tokens of one step
  bool breakdown = false;     // of a second run with timed operators, whole: "per step" is per prompt
};
struct PrefillResult {
  double seconds = 0;  // from the first step's upload to the end of the last kernel
  bool logits_finite = false;
  std::optional<Breakdown> breakdown;
};
// A sequence from position 0, after one prompt of one chunk that grows every workspace.
Result<PrefillResult> bench_prefill(const std::shared_ptr<Backend>& backend,
                                    const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                    const PrefillCase& wanted);

// Time of a whole model of `layers` layers with the published ratios from the times of single layers; where a
// ratio was not measured, the slowest that was stands in for it.
double extrapolate_seconds(const Breakdown& breakdown, const ModelConfig& whole);

}  // namespace pivot::cli
