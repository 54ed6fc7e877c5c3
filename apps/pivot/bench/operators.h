// Single operators of a step on a model without content. Each is timed as a chain over the layers that have
// it, so that weights are cold where the layers' weights exceed the caches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cost.h"
#include "bench/model.h"
#include "model/workspace.h"

namespace pivot::cli {

struct OperatorCase {
  std::int64_t context = 0;  // tokens in the caches
  std::int32_t tokens = 1;
  bool prompt = false;  // the tokens are one sequence's; else each is the next of a sequence of its own
};

struct OperatorResult {
  std::string name;
  std::int32_t calls = 0;  // of one pass over the layers
  double seconds = 0;      // of one call: median of the passes
  double best_seconds = 0;
  double working_set_bytes = 0;  // weights and cached rows that a pass reads
  Cost cost;                     // of one call
};

struct PassLimits {
  int warm_up = 1, passes = 3;
  double seconds = 0;  // passes go on until this has gone by
};

class OperatorBench {
 public:
  static Result<std::unique_ptr<OperatorBench>> create(const std::shared_ptr<Backend>& backend,
                                                       const std::shared_ptr<const ModelWeights>& weights,
                                                       const Knobs& knobs, const OperatorCase& wanted);

  // In the order of a step: "hc_seam", "latent (ratio 4)", ...
  std::vector<std::string_view> names() const;
  // Nothing where the model has no layer with the operator. REQUIRES: one of names(). Errors: those of the
  // device.
  Result<std::optional<OperatorResult>> run(std::string_view name, const PassLimits& limits);

 private:
  struct Operator {
    std::string name;
    int ratio;  // of the layers it runs over; kEvery: all, kOnce: it belongs to no layer
    std::function<void(const LayerContext&, std::size_t call)> call;
    std::function<Cost(std::size_t layer, std::size_t call)> cost;
  };
  static constexpr int kEvery = -1, kOnce = -2;

  OperatorBench(std::shared_ptr<Backend> backend, std::shared_ptr<const ModelWeights> weights,
                const Knobs& knobs, const OperatorCase& wanted);
  Result<> prepare();
  void describe_step();
  void fill_activations();
  void choose_experts();
  void define_latent();
  void define_attention();
  void define_rest();
  std::vector<LayerContext> layers_of(const Operator& op) const;
  std::vector<std::int32_t> chosen(std::size_t call) const;

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const ModelWeights> shapes_;  // as given; the costs
  Knobs knobs_;
  OperatorCase wanted_;
  std::unique_ptr<BenchModel> bench_;
  std::unique_ptr<Workspace> w_;
  StepBatch batch_;
  std::vector<SequenceSpan> spans_;
  std::vector<float> rope_main_, rope_compress_;
  // Expert ids [tokens][K] of several calls in the device's memory, so that calls in a row read other
  // experts.
  std::size_t expert_calls_ = 1;
  std::vector<std::int32_t> host_ids_;
  std::shared_ptr<std::byte> device_ids_;
  std::vector<Operator> operators_;
};

}  // namespace pivot::cli
