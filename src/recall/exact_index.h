// The selection of an index that rounds nothing, in the place of a back-end's own: what `--attribute` runs to
// tell a selection that is too small from an index that is too coarse.
//
// Stands between the forward pass and a back-end. From the attention input it computes index keys, queries
// and head weights in fp32 without any quantisation, scores every visible entry and writes the exact top-k
// where the back-end would have written its selection. All else is the back-end's. One sequence at a time; a
// step of several is selected by the back-end.
#pragma once

#include <memory>
#include <vector>

#include "base/threads.h"
#include "ops/forwarding_backend.h"

namespace pivot::recall {

class ExactIndex final : public ForwardingBackend {
 public:
  // `weights` on the host; num_threads of the index's own arithmetic, 0: one per core.
  ExactIndex(std::shared_ptr<Backend> inner, std::shared_ptr<const ModelWeights> weights, int num_threads);
  ~ExactIndex() override;

  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override;
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override;
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override;

 private:
  struct Layer;
  std::shared_ptr<const ModelWeights> weights_;
  ThreadPool pool_;
  std::vector<float> frequencies_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace pivot::recall
