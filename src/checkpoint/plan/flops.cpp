#include "checkpoint/plan/flops.h"

#include <algorithm>

namespace pivot {

namespace {

// Sum over t in [0, tokens) of min(limit, (t + 1) / ratio), integer division: rows visible to the queries of
// a prompt.
double visible_rows(std::int64_t tokens, std::int64_t ratio, std::int64_t limit) {
  // Positions whose count is below the limit: t + 1 < limit * ratio.
  const std::int64_t ramp = std::min(tokens, limit * ratio);
  const std::int64_t blocks = ramp / ratio;
  // Count c occurs `ratio` times for each c in [0, blocks), except that t + 1 starts at 1.
  const double full =
      static_cast<double>(ratio) * static_cast<double>(blocks) * static_cast<double>(blocks - 1) / 2;
  const double rest = static_cast<double>(ramp - blocks * ratio + 1) * static_cast<double>(blocks);
  const double flat = static_cast<double>(tokens - ramp) * static_cast<double>(limit);
  return full + rest + flat;
}

}  // namespace

Flops Flops::operator*(double factor) const {
  return {dense * factor, routed * factor, small * factor, attention * factor, index * factor, head * factor};
}

Flops gemm_flops(const ModelConfig& config) {
  const auto d = static_cast<double>(config.hidden_size);
  const auto heads_width = static_cast<double>(config.num_attention_heads * config.head_dim);
  const auto rank = static_cast<double>(config.q_lora_rank);
  const auto output_rank = static_cast<double>(config.o_groups * config.o_lora_rank);
  const double expert = 3 * d * static_cast<double>(config.moe_intermediate_size);
  const double streams = static_cast<double>(config.hc_mult) * d;
  Flops sum;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    sum.dense += 2 * (rank * d + heads_width * rank + static_cast<double>(config.head_dim) * d +
                      heads_width / static_cast<double>(config.o_groups) * output_rank + d * output_rank);
    sum.dense += 2 * expert * static_cast<double>(config.n_shared_experts);
    sum.routed += 2 * expert * static_cast<double>(config.num_experts_per_tok);
    sum.small += 2 * static_cast<double>(config.n_routed_experts) * d;
    sum.small += 2 * 2 * streams * static_cast<double>((2 + config.hc_mult) * config.hc_mult);
    const int ratio = config.ratio(layer);
    if (ratio != 0) sum.small += 2 * 2 * d * static_cast<double>(config.head_dim) * (ratio == 4 ? 2 : 1);
    if (ratio == 4) {
      sum.dense += 2 * rank * static_cast<double>(config.index_n_heads * config.index_head_dim);
      sum.small += 2 * d * static_cast<double>(config.index_n_heads);
      sum.small += 2 * 2 * d * 2 * static_cast<double>(config.index_head_dim);
    }
  }
  return sum;
}

Flops decode_flops(const ModelConfig& config, double context) {
  Flops sum = gemm_flops(config);
  const double per_row = 4.0 * static_cast<double>(config.num_attention_heads * config.head_dim);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    sum.attention += per_row * std::min(context, static_cast<double>(config.sliding_window));
    if (config.ratio(layer) == 4) {
      sum.attention += per_row * std::min(context / 4, static_cast<double>(config.index_topk));
      sum.index += 2.0 * static_cast<double>(config.index_n_heads * config.index_head_dim) * context / 4;
    } else if (config.ratio(layer) == 128) {
      sum.attention += per_row * context / 128;
    }
  }
  sum.head = 2.0 * static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size);
  return sum;
}

Flops prefill_flops(const ModelConfig& config, std::int64_t tokens) {
  Flops sum = gemm_flops(config) * static_cast<double>(tokens);
  const double per_row = 4.0 * static_cast<double>(config.num_attention_heads * config.head_dim);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    sum.attention += per_row * visible_rows(tokens, 1, config.sliding_window);
    if (config.ratio(layer) == 4) {
      sum.attention += per_row * visible_rows(tokens, 4, config.index_topk);
      sum.index += 2.0 * static_cast<double>(config.index_n_heads * config.index_head_dim) *
                   visible_rows(tokens, 4, tokens);
    } else if (config.ratio(layer) == 128) {
      sum.attention += per_row * visible_rows(tokens, 128, tokens);
    }
  }
  return sum;
}

}  // namespace pivot
