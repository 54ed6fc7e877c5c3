// The published geometry of DeepSeek-V4-Flash, written out, so that plan tests need no outside data.
#pragma once

#include "checkpoint/model_config.h"
#include "checkpoint/plan/roofline.h"

namespace pivot::test {

inline ModelConfig flash_config(int draft_stages = 1) {
  ModelConfig config;
  config.vocab_size = 129280;
  config.hidden_size = 4096;
  config.num_hidden_layers = 43;
  config.compress_ratios = {0, 0};
  for (int pair = 0; pair < 20; ++pair) {
    config.compress_ratios.push_back(4);
    config.compress_ratios.push_back(128);
  }
  config.compress_ratios.push_back(4);
  config.draft_compress_ratios.assign(static_cast<std::size_t>(draft_stages), 0);
  config.num_attention_heads = 64;
  config.head_dim = 512;
  config.qk_rope_head_dim = 64;
  config.q_lora_rank = 1024;
  config.o_groups = 8;
  config.o_lora_rank = 1024;
  config.sliding_window = 128;
  config.max_position_embeddings = 1 << 20;
  config.index_n_heads = 64;
  config.index_head_dim = 128;
  config.index_topk = 512;
  config.n_routed_experts = 256;
  config.num_experts_per_tok = 6;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 2048;
  config.num_hash_layers = 3;
  config.hc_mult = 4;
  if (draft_stages == 3) {
    config.dspark_block_size = 5;
    config.dspark_markov_rank = 256;
    config.dspark_target_layer_ids = {40, 41, 42};
  }
  return config;
}

inline CheckpointFormats native_formats(HeadKind head, int stages) {
  CheckpointFormats formats;
  formats.head = head;
  formats.draft_stages = stages;
  return formats;
}

inline ModelFacts flash_facts(IndexFormat index = IndexFormat::kFp8, KvFormat kv = KvFormat::kPacked) {
  ModelFacts facts;
  facts.config = flash_config();
  facts.bytes = model_bytes(stored_tensors(facts.config, native_formats(HeadKind::kMtp, 1)));
  facts.cache = {kv, index};
  facts.draft_stages = 1;
  return facts;
}

}  // namespace pivot::test
