#include "checkpoint/flash_config.h"

namespace pivot {

ModelConfig flash_config(std::int64_t layers) {
  ModelConfig c;
  c.vocab_size = 129280;
  c.hidden_size = 4096;
  c.num_hidden_layers = layers > 0 ? layers : 43;
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l)
    c.compress_ratios.push_back(l < 2 ? 0 : l % 2 == 0 ? 4 : 128);
  c.num_attention_heads = 64;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 1024;
  c.o_groups = 8;
  c.o_lora_rank = 1024;
  c.sliding_window = 128;
  c.rope_compress = {160000.0, 16.0, 65536, 32.0, 1.0};
  c.max_position_embeddings = 1048576;
  c.index_n_heads = 64;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.n_routed_experts = 256;
  c.num_experts_per_tok = 6;
  c.n_shared_experts = 1;
  c.moe_intermediate_size = 2048;
  c.num_hash_layers = 3;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 10.0;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.rms_norm_eps = 1e-6;
  c.bos_token_id = 0;
  c.eos_token_id = 1;
  c.expert_dtype = "fp4";
  return c;
}

}  // namespace pivot
