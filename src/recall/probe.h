// Watching a back-end at work: how faithful the indexer's selection is, and whether each part agrees with the
// oracle on the same activations.
//
// The probe stands between the forward pass and a back-end. From the attention input it recomputes index keys
// and queries in fp32 with no rounding anywhere (the shadow), keeps them for the whole sequence, and compares
// at chosen positions. With `audit` it also recomputes, with the roundings that the knobs ask for, what each
// part should have written, and counts what differs. It never changes what the back-end computes. One
// sequence at a time; a step of several is let through unobserved.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "ops/forwarding_backend.h"
#include "recall/component.h"
#include "recall/task.h"

namespace pivot::recall {

// One query of one ratio-4 layer. Entries are compressed entries visible to it.
struct QueryFidelity {
  std::int32_t layer = 0;
  std::int64_t position = 0;
  std::int64_t visible = 0;
  std::int64_t selected = 0;  // equals visible where nothing was left out
  double overlap = 1;         // share of the exact top-k (of the same size) that was selected
  double margin = 0;  // exact score of the last chosen minus the first dropped, over the scores' deviation
  double entry_mass = 1;  // attention probability of the selected entries / of all entries; all heads
  double total_mass = 1;  // probability kept of everything, window and sink included
  std::int64_t fact_rank =
      -1;  // best rank (0 is first) of a fact's entry in the index as it is; -1: no fact visible
  std::int64_t fact_exact_rank = -1;  // in the exact index
  bool fact_selected = true;          // an entry of every fact was selected
};

// How often a part was compared with the oracle and how often it differed.
struct AuditCount {
  std::int64_t checked = 0;
  std::int64_t different = 0;
  std::int32_t layer = -1;     // of the first difference
  std::int64_t position = -1;  // token position or entry index of the first difference
  double worst = 0;            // largest relative difference
};

struct ProbeOptions {
  std::int64_t sample_every = 0;  // also measure every n-th position of the prompt; 0: none
  std::int64_t last_tokens = 4;   // measure the last n positions of the prompt, and every generated one
  bool audit = false;
  int num_threads = 0;  // of the shadow's own arithmetic; 0: one per core
};

class Probe final : public ForwardingBackend {
 public:
  // `weights` on the host.
  Probe(std::shared_ptr<Backend> inner, std::shared_ptr<const ModelWeights> weights,
        const ProbeOptions& options);
  ~Probe() override;

  // Forgets the measurements (not the shadow, which goes on with the sequence) and says where the facts
  // stand.
  void begin_case(const Case& test);
  // Between these no queries are measured: for work that a case's figures should not include.
  void pause() { paused_ = true; }
  void resume() { paused_ = false; }

  const std::vector<QueryFidelity>& fidelity() const { return fidelity_; }
  // Since construction.
  const std::array<AuditCount, kNumParts>& audit() const { return audit_; }

  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override;
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override;
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override;
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override;

 private:
  struct Layer;
  bool measures(std::int64_t position) const;
  void note(Part part, std::int32_t layer, std::int64_t position, double difference, double limit);
  void audit_states(const LayerContext& layer, const SequenceSpan& span, const LatentParams& p);
  void audit_rows(const LayerContext& layer, const Knobs& knobs, const SequenceSpan& span,
                  const LatentParams& p, const std::vector<float>& x);
  void audit_key(const Knobs& knobs, std::int32_t layer, std::int64_t entry, std::vector<float> exact,
                 const std::vector<float>& stored);
  void audit_window(const LayerContext& layer, const SequenceSpan& span, const AttentionParams& p);
  void measure(const LayerContext& layer, const SequenceSpan& span, std::int32_t token,
               const AttentionParams& p, const std::vector<float>& keys, const std::vector<float>& rows,
               const std::vector<float>& raw);

  std::shared_ptr<const ModelWeights> weights_;
  ProbeOptions options_;
  ThreadPool pool_;
  std::vector<float> rope_main_, rope_compress_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<Backend> oracle_;

  // Of the running step.
  const Act* index_q_ = nullptr;
  const float* index_weights_ = nullptr;
  std::int32_t wanted_topk_ = 0;  // index_topk of checkpoint or knob; 0: all

  std::vector<TokenRange> facts_;
  std::int64_t prompt_tokens_ = 0;
  bool paused_ = false;
  std::vector<QueryFidelity> fidelity_;
  std::array<AuditCount, kNumParts> audit_{};
};

}  // namespace pivot::recall
