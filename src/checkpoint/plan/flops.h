// Floating-point operations of a forward pass, split by the precision that the reference runs them in.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"

namespace pivot {

// Multiply and add count 2. FP8-able parts have FP8 activations in the reference (specification 3.4).
struct Flops {
  double dense = 0;      // FP8: attention projections, shared expert, indexer queries
  double routed = 0;     // FP8 x FP4 (or NVFP4, FP8): the top-k experts
  double small = 0;      // BF16 or F32: compressors, router, hyper-connections, index head weights
  double attention = 0;  // BF16: q.k and p.v over window, selected and ratio-128 rows
  double index = 0;      // FP8-able: index scores over all keys
  double head = 0;       // BF16: LM head, for the positions that need logits
  double total() const { return dense + routed + small + attention + index + head; }
  double fp8_able() const { return dense + routed + index; }
  double bf16() const { return small + attention + head; }
  Flops operator*(double factor) const;
};

// One token's matrix products, without attention and head.
Flops gemm_flops(const ModelConfig& config);
// One decoded token at `context` tokens, with the head.
Flops decode_flops(const ModelConfig& config, double context_tokens);
// A prompt of `tokens` tokens from position 0, without the head (performance notes 1.5). Sums over positions
// are exact.
Flops prefill_flops(const ModelConfig& config, std::int64_t tokens);

}  // namespace pivot
