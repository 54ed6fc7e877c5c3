#include "ops/cuda/support.h"

#include <algorithm>
#include <string>

#include "ops/cuda/hyper_connection/hyper_connection.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/placement/placed_model.h"
#include "ops/cuda/placement/placed_size.h"
#include "ops/cuda/placement/random_fill.h"
#include "ops/cuda/placement/schedule.h"
#include "ops/cuda/placement/tiles.h"

namespace pivot::cuda {

Result<> check_support(const ModelWeights& weights, const Knobs& knobs) {
  const ModelConfig& c = weights.config;
  const auto refuse = [](const std::string& what) {
    return fail(ErrorCode::kUnsupported, "the CUDA back-end cannot run this: {}", what);
  };
  if (knobs.activations != Activations::kBf16)
    return refuse("activations=f32; use --device cpu-reference for unrounded activations");
  if (c.hc_mult != kStreams)
    return refuse(fmt::format("hc_mult is {}, its kernels are built for {}", c.hc_mult, kStreams));
  if (c.hidden_size > kMaxSeamWidth)
    return refuse(fmt::format("hidden_size is {}, at most {} was wanted", c.hidden_size, kMaxSeamWidth));
  if (c.head_dim != 512 && c.head_dim != 128)
    return refuse(fmt::format("head_dim is {}, 512 or 128 was wanted", c.head_dim));
  if (c.qk_rope_head_dim % 32 != 0)
    return refuse(fmt::format("qk_rope_head_dim is {}, a multiple of 32 was wanted", c.qk_rope_head_dim));
  if (std::count(c.compress_ratios.begin(), c.compress_ratios.end(), 4) > 0 && c.index_head_dim != 128 &&
      c.index_head_dim != 64)
    return refuse(fmt::format("index_head_dim is {}, 128 or 64 was wanted", c.index_head_dim));
  if (c.o_lora_rank % kTileRows != 0)
    return refuse(fmt::format("o_lora_rank is {}, a multiple of {} was wanted", c.o_lora_rank, kTileRows));
  if (c.n_routed_experts > kMaxExperts || c.num_experts_per_tok > kMaxExpertsPerToken)
    return refuse(fmt::format("{} experts, {} a token; at most {} and {}", c.n_routed_experts,
                              c.num_experts_per_tok, kMaxExperts, kMaxExpertsPerToken));
  if (knobs.dense_act == ActQuant::kNvfp4 || knobs.wo_a_act == ActQuant::kNvfp4)
    return refuse("nvfp4 activations of a dense matrix");
  if (knobs.expert_act == ActQuant::kNvfp4)
    for (const LayerWeights& layer : weights.layers)
      for (const ExpertWeights& e : layer.ffn.experts) {
        if (e.w1.format != MatrixFormat::kNVFP4 || !(e.w1.input_scale > 0) || !(e.w2.input_scale > 0))
          return refuse("expert_act=nvfp4 needs a checkpoint whose experts carry input_scale");
        if (e.w3.input_scale != e.w1.input_scale)
          return refuse("expert_act=nvfp4 with different input scales of w1 and w3 of an expert");
      }
  return check_placeable(weights);
}

}  // namespace pivot::cuda
