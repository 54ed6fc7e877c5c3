#include "ops/cpu/reference/support.h"

#include <bit>

#include "ops/cpu/reference/linear.h"

namespace pivot::reference {
namespace {

Result<> check_config(const ModelConfig& c, const Knobs& knobs) {
  const auto refuse = [](const std::string& what) {
    return fail(ErrorCode::kUnsupported, "the CPU reference cannot run this model: {}", what);
  };
  if (c.hc_mult < 1 || c.hc_sinkhorn_iters < 1)
    return refuse(fmt::format("hc_mult is {} and hc_sinkhorn_iters {}, both must be at least 1", c.hc_mult,
                              c.hc_sinkhorn_iters));
  if (c.qk_rope_head_dim <= 0 || c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim >= c.head_dim)
    return refuse(fmt::format("qk_rope_head_dim is {}, it must be even and below head_dim {}",
                              c.qk_rope_head_dim, c.head_dim));
  if (c.sliding_window < 1) return refuse(fmt::format("sliding_window is {}", c.sliding_window));
  if (c.o_groups < 1 || c.num_attention_heads % c.o_groups != 0)
    return refuse(fmt::format("{} heads do not divide into o_groups {}", c.num_attention_heads, c.o_groups));
  if (c.num_experts_per_tok < 1 || c.num_experts_per_tok > c.n_routed_experts)
    return refuse(fmt::format("num_experts_per_tok is {} of {}", c.num_experts_per_tok, c.n_routed_experts));
  bool indexed = false;
  for (const int ratio : c.compress_ratios) {
    if (ratio != 0 && ratio != 4 && ratio != 128)
      return refuse(fmt::format("compress_ratios holds {}, known are 0, 4 and 128", ratio));
    indexed = indexed || ratio == 4;
  }
  if (!indexed) return {};
  if (c.index_head_dim < c.qk_rope_head_dim ||
      !std::has_single_bit(static_cast<std::uint64_t>(c.index_head_dim)))
    return refuse(
        fmt::format("index_head_dim is {}, it must be a power of two (Hadamard) of at least "
                    "qk_rope_head_dim {}",
                    c.index_head_dim, c.qk_rope_head_dim));
  if (knobs.index_keys == IndexPrecision::kFp4 && c.index_head_dim % kFp4GroupCols != 0)
    return refuse(fmt::format("index_keys=fp4 needs index_head_dim {} to be a multiple of {}",
                              c.index_head_dim, kFp4GroupCols));
  return {};
}

Result<> check_compressor(const CompressorWeights& w, const std::string& where) {
  PIVOT_TRY_VOID(check_matrix(w.wkv, where + ".wkv"));
  PIVOT_TRY_VOID(check_matrix(w.wgate, where + ".wgate"));
  return {};
}

Result<> check_expert(const ExpertWeights& w, const std::string& where) {
  PIVOT_TRY_VOID(check_matrix(w.w1, where + ".w1"));
  PIVOT_TRY_VOID(check_matrix(w.w3, where + ".w3"));
  PIVOT_TRY_VOID(check_matrix(w.w2, where + ".w2"));
  return {};
}

Result<> check_nvfp4_inputs(const ExpertWeights& w, const std::string& where) {
  for (const Matrix* matrix : {&w.w1, &w.w3, &w.w2})
    if (matrix->format != MatrixFormat::kNVFP4 || !(matrix->input_scale > 0.0f))
      return fail(
          ErrorCode::kUnsupported,
          "expert_act=nvfp4 needs NVFP4 experts with an input_scale, but {} is {} with input_scale {}; use "
          "expert_act=fp8 or bf16, or a checkpoint with calibrated input scales",
          where, to_string(matrix->format), matrix->input_scale);
  return {};
}

Result<> check_layer(const LayerWeights& layer, const std::string& where, const Knobs& knobs) {
  const AttentionWeights& attn = layer.attn;
  PIVOT_TRY_VOID(check_matrix(attn.wq_a, where + ".attn.wq_a"));
  PIVOT_TRY_VOID(check_matrix(attn.wq_b, where + ".attn.wq_b"));
  PIVOT_TRY_VOID(check_matrix(attn.wkv, where + ".attn.wkv"));
  PIVOT_TRY_VOID(check_matrix(attn.wo_a, where + ".attn.wo_a"));
  PIVOT_TRY_VOID(check_matrix(attn.wo_b, where + ".attn.wo_b"));
  if (attn.compressor) PIVOT_TRY_VOID(check_compressor(*attn.compressor, where + ".attn.compressor"));
  if (attn.indexer) {
    PIVOT_TRY_VOID(check_matrix(attn.indexer->wq_b, where + ".attn.indexer.wq_b"));
    PIVOT_TRY_VOID(check_matrix(attn.indexer->weights_proj, where + ".attn.indexer.weights_proj"));
    PIVOT_TRY_VOID(check_compressor(attn.indexer->compressor, where + ".attn.indexer.compressor"));
  }
  PIVOT_TRY_VOID(check_matrix(layer.ffn.gate, where + ".ffn.gate"));
  for (std::size_t e = 0; e < layer.ffn.experts.size(); ++e) {
    const std::string expert = fmt::format("{}.ffn.experts.{}", where, e);
    PIVOT_TRY_VOID(check_expert(layer.ffn.experts[e], expert));
    if (knobs.expert_act == ActQuant::kNvfp4)
      PIVOT_TRY_VOID(check_nvfp4_inputs(layer.ffn.experts[e], expert));
  }
  return check_expert(layer.ffn.shared, where + ".ffn.shared_experts");
}

}  // namespace

Result<> check_support(const ModelWeights& weights, const Knobs& knobs) {
  PIVOT_TRY_VOID(check_config(weights.config, knobs));
  if (knobs.dense_act == ActQuant::kNvfp4 || knobs.wo_a_act == ActQuant::kNvfp4)
    return fail(ErrorCode::kUnsupported, "dense_act and wo_a_act take fp8 or bf16");
  PIVOT_TRY_VOID(check_matrix(weights.embed, "embed"));
  PIVOT_TRY_VOID(check_matrix(weights.head, "head"));
  for (std::size_t i = 0; i < weights.layers.size(); ++i)
    PIVOT_TRY_VOID(check_layer(weights.layers[i], fmt::format("layers.{}", i), knobs));
  return {};
}

}  // namespace pivot::reference
