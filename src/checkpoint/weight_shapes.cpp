#include "checkpoint/weight_shapes.h"

namespace pivot {
namespace {

FloatSpan floats(std::int64_t count) {
  return {static_cast<const float*>(nullptr), static_cast<std::size_t>(count)};
}

Matrix matrix(MatrixFormat format, std::int64_t rows, std::int64_t cols) {
  Matrix m;
  m.format = format;
  m.scale_format = format == MatrixFormat::kBF16    ? ScaleFormat::kNone
                   : format == MatrixFormat::kNVFP4 ? ScaleFormat::kE4M3
                                                    : ScaleFormat::kE8M0;
  m.rows = rows;
  m.cols = cols;
  return m;
}
Matrix bf16(std::int64_t rows, std::int64_t cols) { return matrix(MatrixFormat::kBF16, rows, cols); }
Matrix fp8(std::int64_t rows, std::int64_t cols) { return matrix(MatrixFormat::kFP8, rows, cols); }

ExpertWeights expert(const ModelConfig& c, MatrixFormat format) {
  const std::int64_t d = c.hidden_size, inner = c.moe_intermediate_size;
  return {matrix(format, inner, d), matrix(format, inner, d), matrix(format, d, inner)};
}

CompressorWeights compressor(const ModelConfig& c, int ratio, std::int64_t width) {
  const std::int64_t columns = (ratio == 4 ? 2 : 1) * width;
  return {ratio,
          width,
          bf16(columns, c.hidden_size),
          bf16(columns, c.hidden_size),
          floats(ratio * columns),
          floats(width)};
}

AttentionWeights attention(const ModelConfig& c, int ratio) {
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  AttentionWeights w;
  w.wq_a = fp8(c.q_lora_rank, c.hidden_size);
  w.q_norm = floats(c.q_lora_rank);
  w.wq_b = fp8(q, c.q_lora_rank);
  w.wkv = fp8(c.head_dim, c.hidden_size);
  w.kv_norm = floats(c.head_dim);
  w.attn_sink = floats(c.num_attention_heads);
  w.wo_a = fp8(c.o_groups * c.o_lora_rank, q / c.o_groups);
  w.wo_b = fp8(c.hidden_size, c.o_groups * c.o_lora_rank);
  if (ratio != 0) w.compressor = compressor(c, ratio, c.head_dim);
  if (ratio == 4)
    w.indexer = IndexerWeights{fp8(c.index_n_heads * c.index_head_dim, c.q_lora_rank),
                               bf16(c.index_n_heads, c.hidden_size), compressor(c, 4, c.index_head_dim)};
  return w;
}

HyperConnectionWeights hyper_connection(const ModelConfig& c) {
  const std::int64_t rows = (2 + c.hc_mult) * c.hc_mult;
  return {floats(rows * c.hc_mult * c.hidden_size), floats(rows), floats(3), false};
}

}  // namespace

ModelWeights shape_weights(const ModelConfig& c, MatrixFormat experts) {
  ModelWeights w;
  w.config = c;
  w.embed = bf16(c.vocab_size, c.hidden_size);
  w.head = bf16(c.vocab_size, c.hidden_size);
  w.norm = floats(c.hidden_size);
  w.hc_head = {floats(c.hc_mult * c.hc_mult * c.hidden_size), floats(c.hc_mult), floats(1)};
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
    LayerWeights layer;
    layer.attn_norm = floats(c.hidden_size);
    layer.ffn_norm = floats(c.hidden_size);
    layer.attn_hc = hyper_connection(c);
    layer.ffn_hc = hyper_connection(c);
    layer.attn = attention(c, c.ratio(l));
    layer.ffn.gate = bf16(c.n_routed_experts, c.hidden_size);
    if (c.hash_routed(l))
      layer.ffn.tid2eid = {static_cast<const std::int32_t*>(nullptr),
                           static_cast<std::size_t>(c.vocab_size * c.num_experts_per_tok)};
    else
      layer.ffn.bias = floats(c.n_routed_experts);
    for (std::int64_t e = 0; e < c.n_routed_experts; ++e) layer.ffn.experts.push_back(expert(c, experts));
    layer.ffn.shared = expert(c, MatrixFormat::kFP8);
    w.layers.push_back(std::move(layer));
  }
  return w;
}

}  // namespace pivot
