// The compressor (specification 2.5) in ring form: the last `rows` tokens' k and s, indexed by position.
#pragma once

#include <cstdint>

#include "ops/cpu/reference/rounding.h"
#include "ops/ops.h"

namespace pivot::reference {

// Series per token: 2 for ratio 4 (A for the next entry, B for its own), 1 for ratio 128.
constexpr std::int64_t compressor_series(int ratio) { return ratio == 4 ? 2 : 1; }

// k and s of one position in a sequence's ring, [coff*w] each.
struct CompressorRow {
  float* k = nullptr;
  float* s = nullptr;
};
CompressorRow compressor_row(const CompressorStateView& state, std::int32_t slot, std::int32_t position);

// Stores token `position`: k, and s = score + ape[position mod ratio].
void compressor_store(const CompressorWeights& weights, const CompressorStateView& state, std::int32_t slot,
                      std::int32_t position, const float* k, const float* score);

// The pooled vector of entry `entry`, [w] fp32, from the ring that holds its tokens (and, for ratio 4, those
// of the previous block; entry 0 has none). Per channel: softmax over the slots, previous block first, then
// the weighted sum.
void compressor_pool(const CompressorWeights& weights, const CompressorStateView& state, std::int32_t slot,
                     std::int64_t entry, float* pooled);

// bf(e), rms, rotation at position entry*ratio: the row before the kv knob's rounding (main) or the Hadamard
// (index).
void compressor_finish(const CompressorWeights& weights, const float* frequencies, std::int64_t rope_dims,
                       std::int64_t entry, float eps, Rounding round, float* row);

}  // namespace pivot::reference
