// Weights without a checkpoint: random content in the published formats and shapes, in host memory, for
// benchmarks at full width.
//
// Codes are uniformly random (no NaN among them) and scales such that W x is of unit size for x of unit size,
// so a forward pass stays finite. The content depends on the shapes and options alone, not on the threads.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "checkpoint/model_weights.h"

namespace pivot {

// The parts of a layer, as far as a benchmark wants each layer's own in memory.
enum LayerPart : unsigned {
  kPartHyperConnection = 1,  // hc_attn_*, hc_ffn_*
  kPartLatent = 2,           // wq_a, wkv, compressors, weights_proj
  kPartQuery = 4,            // wq_b, indexer.wq_b
  kPartOutput = 8,           // wo_a, wo_b
  kPartRouter = 16,          // gate
  kPartExperts = 32,         // routed and shared experts
  kAllParts = 63,
};

struct SynthesisOptions {
  // Experts of a layer with memory of their own, expert e beyond them being an alias of e mod this; 0: all.
  std::int64_t resident_experts = 0;
  // Parts that every layer has for itself. The others a layer shares with the first layer of its ratio.
  unsigned own_parts = kAllParts;
  // The embedding shares the head's memory: a step reads one row of it.
  bool shared_embedding = false;
  std::uint32_t seed = 1;
};

// Bytes that synthesize_weights allocates.
std::int64_t synthesized_bytes(const ModelWeights& shapes, const SynthesisOptions& options);

// `shapes`: of shape_weights. num_threads as of ThreadPool. Errors: kInvalidArgument for options out of
// range; kOutOfMemory where the system refuses the allocation (one that it grants may still exceed what is
// free, so ask first).
Result<std::shared_ptr<const ModelWeights>> synthesize_weights(ModelWeights shapes,
                                                               const SynthesisOptions& options,
                                                               int num_threads);

}  // namespace pivot
