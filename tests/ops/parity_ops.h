// Runs one op of the grid on any back-end: uploads the inputs, calls the op, downloads every output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ops/parity_case.h"

namespace pivot::test {

struct BackendFactory {
  std::string name;
  std::function<std::shared_ptr<Backend>()> make;
  bool same_alone = true;  // a token's bits do not depend on how many others are in its step
};
inline void PrintTo(const BackendFactory& factory, std::ostream* out) { *out << factory.name; }
// Every back-end that the grid compares with the oracle. A CUDA build adds its own.
std::vector<BackendFactory> parity_backends();

// What an op wrote, by name.
struct Outputs {
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<std::int32_t>> ids;
  std::map<std::string, std::vector<std::byte>> bytes;
};

// Host inputs beyond the step; empty vectors are random where the op needs them (seeded, so that every
// back-end sees the same).
struct OpInputs {
  std::vector<float> x;   // [T, d] latent, route, moe; [T, r] query; [T, H, D] attention and attention_out
  std::vector<float> kv;  // [T, D] attention
  std::vector<float> index_q;                 // [T, Hi, Di]
  std::vector<float> index_weights;           // [T, Hi]
  std::vector<std::int32_t> selected, count;  // attention
  std::vector<std::int32_t> expert_ids;       // [T, K] moe
  std::vector<float> expert_weights;
  std::vector<float> h, sublayer_out, post, comb;  // hyper-connections
};

// A model on a back-end, and the ops on it.
class OpRunner {
 public:
  OpRunner(std::shared_ptr<Backend> backend, std::shared_ptr<const ModelWeights> weights, Knobs knobs);

  Backend& backend() { return *backend_; }
  Outputs embed(const StepCase& step);
  Outputs hc_seam(const StepCase& step, const OpInputs& inputs);
  Outputs hc_head(const StepCase& step, const OpInputs& inputs, const std::vector<std::int32_t>& rows);
  Outputs latent(const StepCase& step, const OpInputs& inputs);
  Outputs query(const StepCase& step, const OpInputs& inputs);
  Outputs index_select(const StepCase& step, const OpInputs& inputs, std::int32_t topk);
  Outputs attention(const StepCase& step, const OpInputs& inputs, std::int32_t topk);
  Outputs attention_out(const StepCase& step, const OpInputs& inputs);
  Outputs route(const StepCase& step, const OpInputs& inputs);
  Outputs moe(const StepCase& step, const OpInputs& inputs);
  Outputs logits(const std::vector<float>& x, std::int32_t rows);

 private:
  class Memory;
  LayerContext context() const {
    return {&weights_->config, 0, weights_->config.compress_ratios[0], frequencies_.data()};
  }
  const LayerWeights& layer() const { return weights_->layers[0]; }

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const ModelWeights> weights_;
  Knobs knobs_;
  std::vector<float> frequencies_;
};

}  // namespace pivot::test
