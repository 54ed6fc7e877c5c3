// Query heads and index query heads (specification 2.4 steps 2-4, 2.6 step 1).
#include <cmath>

#include "ops/cpu/reference/rounding.h"
#include "ops/cpu/simd/linear.h"

namespace pivot::simd {
namespace {

constexpr std::int64_t kIndexFp4Group = 32;

}  // namespace

void query(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const QueryParams& p) {
  const ModelConfig& config = *layer.config;
  const Kernels& kernels = context.kernels;
  const bool round = rounds(knobs);
  const bool indexed = layer.ratio == 4 && p.index_q != nullptr;
  const std::int64_t heads = config.num_attention_heads, head_dim = config.head_dim,
                     rope = config.qk_rope_head_dim;
  const std::int64_t index_heads = indexed ? config.index_n_heads : 0, index_dim = config.index_head_dim;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const RopeTable& angles = context.rope(layer, batch);

  LinearStep step(context, floats(p.qr), batch.num_tokens, config.q_lora_rank);
  step.add(p.weights->wq_b, knobs.dense_act, floats(p.q), round);
  if (indexed) step.add(p.weights->indexer->wq_b, knobs.dense_act, floats(p.index_q), round);
  step.run();

  context.for_each(std::int64_t{batch.num_tokens} * (heads + index_heads), [&](std::int64_t i) {
    const std::int64_t t = i / (heads + index_heads), h = i % (heads + index_heads);
    if (h < heads) {
      float* head = floats(p.q) + (t * heads + h) * head_dim;
      // Every step of this norm is rounded (specification 2.4 step 3).
      const reference::Rounding rounding(knobs.activations);
      const float mean = rounding(kernels.sum_squares(head, head_dim, round) / static_cast<float>(head_dim));
      const float factor = rounding(1.0f / std::sqrt(rounding(mean + eps)));
      kernels.scale_row(head, factor, nullptr, head_dim, round, head);
      kernels.rotate(head + head_dim - rope, angles.cos(t), angles.sin(t), rope / 2, round);
      return;
    }
    float* head = floats(p.index_q) + (t * index_heads + h - heads) * index_dim;
    kernels.rotate(head + index_dim - rope, angles.cos(t), angles.sin(t), rope / 2, round);
    kernels.hadamard(head, index_dim);
    if (round) kernels.round_bf16(head, index_dim);
    if (knobs.index_keys == IndexPrecision::kFp4) kernels.quantize_e2m1(head, index_dim, kIndexFp4Group);
    if (knobs.index_keys == IndexPrecision::kFp8) kernels.quantize_e4m3(head, index_dim, index_dim, nullptr);
  });
}

}  // namespace pivot::simd
