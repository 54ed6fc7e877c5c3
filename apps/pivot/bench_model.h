// A model and caches without content, at full size, and the steps that benchmarks time on them.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
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

class BenchModel {
 public:
  // Errors: kOutOfMemory where caches and workspace of this shape do not fit beside the weights.
  static Result<std::unique_ptr<BenchModel>> create(const std::shared_ptr<Backend>& backend,
                                                    const std::shared_ptr<const ModelWeights>& weights,
                                                    const Knobs& knobs, const BenchShape& shape);
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
};
struct DecodeResult {
  double step_seconds = 0;  // median, from the upload of the step's description to the end of its last kernel
  double best_step_seconds = 0;
  double bytes_per_step = 0;     // weights that the step touches, cache rows and states that it reads
  double experts_per_layer = 0;  // distinct routed experts of the step, mean over the layers
  bool logits_finite = false;
};
Result<DecodeResult> bench_decode(const std::shared_ptr<Backend>& backend,
                                  const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                  const DecodeCase& wanted);

struct PrefillCase {
  std::int64_t tokens = 8192;
  std::int32_t chunk = 8192;  // tokens of one step
};
struct PrefillResult {
  double seconds = 0;  // from the first step's upload to the end of the last kernel
  bool logits_finite = false;
};
// A sequence from position 0, after one prompt of one chunk that grows every workspace.
Result<PrefillResult> bench_prefill(const std::shared_ptr<Backend>& backend,
                                    const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                    const PrefillCase& wanted);

// Time of single operators of a decode step, each a chain over the layers that have it.
struct KernelResult {
  std::string name;
  std::int32_t calls = 0;
  double seconds = 0;  // of one call
  double bytes = 0;    // of one call: weights and cache rows
};
Result<std::vector<KernelResult>> bench_kernels(const std::shared_ptr<Backend>& backend,
                                                const std::shared_ptr<const ModelWeights>& weights,
                                                const Knobs& knobs, const DecodeCase& wanted);

}  // namespace pivot::cli
