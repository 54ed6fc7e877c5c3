// The model's hyper-parameters as config.json states them (specification 1.1), after validation.
//
// Field names are the config's own keys. Nothing here is synthesised: a key that decides numerics and is
// missing is an error (specification 1.1 "config traps").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {

class Problems;

// Rotary embedding of one layer kind. YaRN applies where `factor` is set.
struct RopeConfig {
  double theta = 10000.0;
  std::optional<double> factor;  // YaRN scaling factor
  std::int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
};

struct ModelConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;  // d
  std::int64_t num_hidden_layers = 0;
  std::vector<int> compress_ratios;        // per backbone layer: 0, 4 or 128
  std::vector<int> draft_compress_ratios;  // entries after the backbone: the MTP / DSpark stages
  std::int64_t num_attention_heads = 0;    // H
  std::int64_t head_dim = 0;               // D: width of a query head and of the shared latent
  std::int64_t qk_rope_head_dim = 0;       // R: trailing rotary dims
  std::int64_t q_lora_rank = 0;
  std::int64_t o_groups = 0;
  std::int64_t o_lora_rank = 0;
  std::int64_t sliding_window = 0;
  RopeConfig rope_main;      // ratio-0 layers: plain
  RopeConfig rope_compress;  // ratio-4 and ratio-128 layers: YaRN
  std::int64_t max_position_embeddings = 0;
  std::int64_t index_n_heads = 0;
  std::int64_t index_head_dim = 0;
  std::int64_t index_topk = 0;
  std::int64_t n_routed_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t n_shared_experts = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t num_hash_layers = 0;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  double swiglu_limit = 0.0;
  std::int64_t hc_mult = 0;  // S: residual streams
  std::int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0.0;
  double rms_norm_eps = 0.0;
  std::int64_t bos_token_id = 0;
  std::int64_t eos_token_id = 0;
  std::optional<std::string> expert_dtype;  // absent in early revisions; informative only
  std::int64_t dspark_block_size = 0;       // 0 where the checkpoint has no DSpark
  std::int64_t dspark_markov_rank = 0;
  std::int64_t dspark_noise_token_id = 0;
  std::vector<int> dspark_target_layer_ids;

  std::int64_t nope_head_dim() const { return head_dim - qk_rope_head_dim; }
  int ratio(std::int64_t layer) const { return compress_ratios[static_cast<std::size_t>(layer)]; }
  const RopeConfig& rope(std::int64_t layer) const { return ratio(layer) == 0 ? rope_main : rope_compress; }
  bool hash_routed(std::int64_t layer) const { return layer < num_hash_layers; }
};

// Parses and validates config.json text. `where` names the file in messages. All problems are reported in one
// Error.
Result<ModelConfig> parse_model_config(std::string_view json, std::string_view where);
// The same, adding to `problems` (their subject should name the file); nullopt where any was added.
std::optional<ModelConfig> parse_model_config(std::string_view json, Problems& problems);
Result<ModelConfig> load_model_config(const std::filesystem::path& folder);

}  // namespace pivot
