// What every op of the fast CPU back-end works with: the kernels, the threads and the temporary memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/scratch.h"
#include "ops/ops.h"

namespace pivot::simd {

// cos and sin of a step's positions, [T][pairs] each, computed once per step and layer kind.
class RopeTable {
 public:
  // Rows of `positions` for these frequencies; recomputed only where either changed.
  void prepare(const float* frequencies, std::int64_t pairs, const std::int32_t* positions,
               std::int64_t count, ThreadPool& pool);
  const float* cos(std::int64_t token) const { return cos_.data() + token * pairs_; }
  const float* sin(std::int64_t token) const { return sin_.data() + token * pairs_; }

 private:
  std::int64_t pairs_ = 0;
  std::vector<float> frequencies_, cos_, sin_;
  std::vector<std::int32_t> positions_;
};

struct Context {
  const Kernels& kernels;
  ThreadPool& pool;
  Scratch& scratch;
  RopeTable ropes[2];  // ratio 0, and the compressed kinds

  RopeTable& rope(const LayerContext& layer, const StepBatch& batch) {
    RopeTable& table = ropes[layer.ratio == 0 ? 0 : 1];
    table.prepare(layer.rope_frequencies, layer.config->qk_rope_head_dim / 2, batch.positions,
                  batch.num_tokens, pool);
    return table;
  }
  // Calls work(t) for every t < count, in contiguous ranges per thread.
  template <class Work>
  void for_each(std::int64_t count, const Work& work) {
    pool.for_ranges(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) work(t);
    });
  }
  // Calls work(begin, end) for every block of `size` of [0, count). Blocks go round the threads, because
  // later tokens see more keys than earlier ones.
  template <class Work>
  void for_blocks(std::int64_t count, std::int64_t size, const Work& work) {
    const auto blocks_of = [&](int piece, int num_pieces) {
      for (std::int64_t begin = piece * size; begin < count; begin += num_pieces * size)
        work(begin, begin + size < count ? begin + size : count);
    };
    if (count <= size)
      blocks_of(0, 1);
    else
      pool.run(blocks_of);
  }
};

inline const float* floats(const Act* x) { return static_cast<const float*>(x); }
inline float* floats(Act* x) { return static_cast<float*>(x); }
inline bool rounds(const Knobs& knobs) { return knobs.activations == Activations::kBf16; }

// ---- the ops, one file each; parameters as in Backend ----
void hc_seam(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const HcSeamParams& p);
void hc_head(Context& context, const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
             const HcHeadParams& p);
void latent(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
            const LatentParams& p);
void query(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const QueryParams& p);
void index_select(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                  const IndexSelectParams& p);
void attention(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const AttentionParams& p);
void attention_out(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                   const AttentionOutParams& p);
void route(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const RouteParams& p);
void moe(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
         const MoeParams& p);
void logits(Context& context, const LogitsParams& p);

}  // namespace pivot::simd
