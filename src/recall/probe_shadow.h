// What a probe keeps of each layer, and the small arithmetic that probe.cpp and audit.cpp share.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/rounding.h"
#include "recall/probe.h"

namespace pivot::recall {

// k and s of every position of a sequence, in the shape of a compressor ring that never wraps:
// [position][2][width]. Kept whole, so that a sequence that goes back to any earlier position finds its rows.
struct CompressorHistory {
  std::vector<float> rows;
  std::int32_t width = 0;

  // Recomputes the step's tokens; what was there of later positions is forgotten.
  void advance(const CompressorWeights& weights, const std::vector<float>& frequencies,
               const ModelConfig& config, const SequenceSpan& span, const reference::LinearInput& x,
               ThreadPool& pool);
  // Pooled, normed and rotated entry (specification 2.5), before Hadamard and quantisation. REQUIRES: its
  // tokens are there.
  std::vector<float> entry(const CompressorWeights& weights, const std::vector<float>& frequencies,
                           const ModelConfig& config, std::int64_t j, reference::Rounding round) const;
};

// An index that rounds nothing, grown with a sequence from the attention inputs of its steps.
struct IndexShadow {
  CompressorHistory history;
  std::vector<float> keys;          // [entry][Di], rotated and turned (specification 2.6 steps 2-3)
  std::vector<float> head_weights;  // of the running step, both scale factors included: [T][Hi]

  void advance(const IndexerWeights& weights, const std::vector<float>& frequencies,
               const ModelConfig& config, const SequenceSpan& span, const reference::LinearInput& x,
               ThreadPool& pool);
};
// Rotary embedding and Hadamard rotation of one token's index queries [Hi][Di], in place.
void finish_index_query(const ModelConfig& config, const std::vector<float>& frequencies,
                        std::int32_t position, reference::Rounding round, float* query);

struct Probe::Layer {
  IndexShadow index;       // ratio 4
  CompressorHistory main;  // audit
  std::vector<std::pair<std::int32_t, std::vector<float>>>
      queries;             // exact, of the running step: token, [Hi][Di]
  std::vector<float> raw;  // audit: [position][head_dim], as latent() handed them to attention
  std::int64_t end = 0;    // position after the last step
  bool jumped = false;     // the sequence went back since its start
};

// |a - b| / |b| over all values; 0 where both are 0.
double relative_difference(std::span<const float> a, std::span<const float> b);
// The index_keys knob's rounding on one vector, in place.
void round_key(float* row, std::int64_t width, IndexPrecision precision);

}  // namespace pivot::recall
