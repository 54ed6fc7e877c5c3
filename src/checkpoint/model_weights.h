// A loaded model: every weight as a view with its shape, readable beside specification 4.1.
//
// Notation: d hidden_size, H heads, D head_dim, S hc_mult, E routed experts, I moe_intermediate_size, w
// compressor width (D or index_head_dim), V vocab_size. Small F32/BF16 vectors are widened into aligned fp32
// storage by the loader; matrices point into the mapped checkpoint (or device memory) untouched.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "tensor/matrix.h"

namespace pivot {

using FloatSpan = std::span<const float>;  // fp32, aligned

struct HyperConnectionWeights {  // hc_attn_*, hc_ffn_* (specification 2.2)
  FloatSpan fn;                  // [(2+S)*S, S*d]
  FloatSpan base;                // [(2+S)*S]
  FloatSpan scale;               // [3]: pre, post, comb
  bool fn_is_bf16 = false;       // every fn value is BF16-representable (specification Q3)
};

struct HyperHeadWeights {  // hc_head_*
  FloatSpan fn;            // [S, S*d]
  FloatSpan base;          // [S]
  FloatSpan scale;         // [1]
};

struct CompressorWeights {  // attn.compressor.* or attn.indexer.compressor.* (specification 2.5)
  int ratio = 0;            // 4 or 128
  std::int64_t width = 0;   // w
  Matrix wkv;               // [coff*w, d], coff = 2 for ratio 4 (series A then B), 1 for ratio 128
  Matrix wgate;             // [coff*w, d]
  FloatSpan ape;            // [ratio, coff*w]
  FloatSpan norm;           // [w]
};

struct IndexerWeights {  // attn.indexer.* (specification 2.6)
  Matrix wq_b;           // [index_n_heads*index_head_dim, q_lora_rank]
  Matrix weights_proj;   // [index_n_heads, d]
  CompressorWeights compressor;
};

struct AttentionWeights {                       // attn.* (specification 2.4)
  Matrix wq_a;                                  // [q_lora_rank, d]
  FloatSpan q_norm;                             // [q_lora_rank]
  Matrix wq_b;                                  // [H*D, q_lora_rank]
  Matrix wkv;                                   // [D, d]
  FloatSpan kv_norm;                            // [D]
  FloatSpan attn_sink;                          // [H]
  Matrix wo_a;                                  // [o_groups*o_lora_rank, H*D/o_groups]
  Matrix wo_b;                                  // [d, o_groups*o_lora_rank]
  std::optional<CompressorWeights> compressor;  // ratio 4 and 128
  std::optional<IndexerWeights> indexer;        // ratio 4
};

struct ExpertWeights {  // ffn.experts.E.*, ffn.shared_experts.*
  Matrix w1;            // [I, d] gate
  Matrix w3;            // [I, d] up
  Matrix w2;            // [d, I] down
};

struct MoeWeights {                       // ffn.* (specification 2.7)
  Matrix gate;                            // [E, d]
  FloatSpan bias;                         // [E]; empty in hash-routed layers
  std::span<const std::int32_t> tid2eid;  // [V, num_experts_per_tok], validated; empty in learned layers
  std::vector<ExpertWeights> experts;     // [E]
  ExpertWeights shared;
};

struct LayerWeights {
  FloatSpan attn_norm;  // [d]
  FloatSpan ffn_norm;   // [d]
  HyperConnectionWeights attn_hc;
  HyperConnectionWeights ffn_hc;
  AttentionWeights attn;
  MoeWeights ffn;
};

struct MtpWeights {  // mtp.0 of the preview checkpoint (specification 2.8)
  LayerWeights block;
  Matrix e_proj, h_proj;         // [d, d]
  FloatSpan enorm, hnorm, norm;  // [d]
  HyperHeadWeights hc_head;
};

struct DsparkWeights {  // mtp.0..2 (specification 2.9)
  std::vector<LayerWeights> stages;
  Matrix main_proj;           // [d, 3*d]
  FloatSpan main_norm, norm;  // [d]
  HyperHeadWeights hc_head;
  Matrix markov_w1, markov_w2;  // [V, markov_rank]
  Matrix confidence_proj;       // [1, d + markov_rank]
};

struct ModelWeights {
  ModelConfig config;
  Matrix embed;  // [V, d]
  Matrix head;   // [V, d]
  FloatSpan norm;
  HyperHeadWeights hc_head;
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;
  std::optional<DsparkWeights> dspark;
  std::uint64_t fingerprint = 0;  // identifies the checkpoint's content (headers and sampled bytes)

  std::shared_ptr<const void> storage;  // keeps mappings and widened vectors alive
};

}  // namespace pivot
