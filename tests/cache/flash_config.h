// DeepSeek-V4-Flash's own dimensions (specification 1.1), for the tests of sizes.
#pragma once

#include "checkpoint/model_config.h"

namespace pivot::test {

inline ModelConfig flash_config() {
  ModelConfig config;
  config.vocab_size = 129280;
  config.hidden_size = 4096;
  config.num_hidden_layers = 43;
  config.compress_ratios = {0, 0};
  for (int i = 0; i < 20; ++i) config.compress_ratios.insert(config.compress_ratios.end(), {4, 128});
  config.compress_ratios.push_back(4);
  config.num_attention_heads = 64;
  config.head_dim = 512;
  config.qk_rope_head_dim = 64;
  config.q_lora_rank = 1024;
  config.o_groups = 8;
  config.o_lora_rank = 1024;
  config.sliding_window = 128;
  config.max_position_embeddings = 1048576;
  config.index_n_heads = 64;
  config.index_head_dim = 128;
  config.index_topk = 512;
  config.n_routed_experts = 256;
  config.num_experts_per_tok = 6;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 2048;
  config.num_hash_layers = 3;
  config.hc_mult = 4;
  return config;
}

}  // namespace pivot::test
