#include "checkpoint/schema.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace pivot {
namespace {

// Symbols of the shape column:
//   V vocab_size            d hidden_size         H heads              D head_dim           S hc_mult
//   Sd = S*d                mix = (2+S)*S         HD = H*D             q_lora               r = compress
//   ratio o_rows = o_groups*o_lora_rank                 o_cols = H*D/o_groups cD = coff*D, cI =
//   coff*index_head_dim (coff = 2 for ratio 4: series A then B; 1 for ratio 128) iH index_n_heads        iD
//   index_head_dim     iHD = iH*iD E n_routed_experts      K num_experts_per_tok I moe_intermediate_size taps
//   = (tapped layers)*d                      rank dspark_markov_rank                   d+rank
// clang-format off
constexpr SchemaRow kRows[] = {
    // slot                          applies                 kind                      native name                              transformers name                                        shape
    {Slot::kEmbed,                   Applies::kModel,        TensorKind::kPlain,       "embed.weight",                          "model.embed_tokens.weight",                             "V x d"},
    {Slot::kHead,                    Applies::kModel,        TensorKind::kPlain,       "head.weight",                           "lm_head.weight",                                        "V x d"},
    {Slot::kNorm,                    Applies::kModel,        TensorKind::kNormVector,  "norm.weight",                           "model.norm.weight",                                     "d"},
    {Slot::kHcHeadFn,                Applies::kModel,        TensorKind::kF32Vector,   "hc_head_fn",                            "model.hc_head.hc_fn",                                   "S x Sd"},
    {Slot::kHcHeadBase,              Applies::kModel,        TensorKind::kF32Vector,   "hc_head_base",                          "model.hc_head.hc_base",                                 "S"},
    {Slot::kHcHeadScale,             Applies::kModel,        TensorKind::kF32Vector,   "hc_head_scale",                         "model.hc_head.hc_scale",                                "1"},

    {Slot::kAttnNorm,                Applies::kBlock,        TensorKind::kNormVector,  "attn_norm.weight",                      "input_layernorm.weight",                                "d"},
    {Slot::kFfnNorm,                 Applies::kBlock,        TensorKind::kNormVector,  "ffn_norm.weight",                       "post_attention_layernorm.weight",                       "d"},
    {Slot::kHcAttnFn,                Applies::kBlock,        TensorKind::kF32Vector,   "hc_attn_fn",                            "attn_hc.fn",                                            "mix x Sd"},
    {Slot::kHcAttnBase,              Applies::kBlock,        TensorKind::kF32Vector,   "hc_attn_base",                          "attn_hc.base",                                          "mix"},
    {Slot::kHcAttnScale,             Applies::kBlock,        TensorKind::kF32Vector,   "hc_attn_scale",                         "attn_hc.scale",                                         "3"},
    {Slot::kHcFfnFn,                 Applies::kBlock,        TensorKind::kF32Vector,   "hc_ffn_fn",                             "ffn_hc.fn",                                             "mix x Sd"},
    {Slot::kHcFfnBase,               Applies::kBlock,        TensorKind::kF32Vector,   "hc_ffn_base",                           "ffn_hc.base",                                           "mix"},
    {Slot::kHcFfnScale,              Applies::kBlock,        TensorKind::kF32Vector,   "hc_ffn_scale",                          "ffn_hc.scale",                                          "3"},

    {Slot::kAttnSink,                Applies::kBlock,        TensorKind::kF32Vector,   "attn.attn_sink",                        "self_attn.sinks",                                       "H"},
    {Slot::kWqA,                     Applies::kBlock,        TensorKind::kDense,       "attn.wq_a.weight",                      "self_attn.q_a_proj.weight",                             "q_lora x d"},
    {Slot::kQNorm,                   Applies::kBlock,        TensorKind::kNormVector,  "attn.q_norm.weight",                    "self_attn.q_a_norm.weight",                             "q_lora"},
    {Slot::kWqB,                     Applies::kBlock,        TensorKind::kDense,       "attn.wq_b.weight",                      "self_attn.q_b_proj.weight",                             "HD x q_lora"},
    {Slot::kWkv,                     Applies::kBlock,        TensorKind::kDense,       "attn.wkv.weight",                       "self_attn.kv_proj.weight",                              "D x d"},
    {Slot::kKvNorm,                  Applies::kBlock,        TensorKind::kNormVector,  "attn.kv_norm.weight",                   "self_attn.kv_norm.weight",                              "D"},
    {Slot::kWoA,                     Applies::kBlock,        TensorKind::kDense,       "attn.wo_a.weight",                      "self_attn.o_a_proj.weight",                             "o_rows x o_cols"},
    {Slot::kWoB,                     Applies::kBlock,        TensorKind::kDense,       "attn.wo_b.weight",                      "self_attn.o_b_proj.weight",                             "d x o_rows"},

    {Slot::kCompressorWkv,           Applies::kCompressed,   TensorKind::kPlain,       "attn.compressor.wkv.weight",            "self_attn.compressor.kv_proj.weight",                   "cD x d"},
    {Slot::kCompressorWgate,         Applies::kCompressed,   TensorKind::kPlain,       "attn.compressor.wgate.weight",          "self_attn.compressor.gate_proj.weight",                 "cD x d"},
    {Slot::kCompressorApe,           Applies::kCompressed,   TensorKind::kF32Vector,   "attn.compressor.ape",                   "self_attn.compressor.position_bias",                    "r x cD"},
    {Slot::kCompressorNorm,          Applies::kCompressed,   TensorKind::kNormVector,  "attn.compressor.norm.weight",           "self_attn.compressor.kv_norm.weight",                   "D"},

    {Slot::kIndexerWqB,              Applies::kIndexed,      TensorKind::kDense,       "attn.indexer.wq_b.weight",              "self_attn.compressor.indexer.q_b_proj.weight",          "iHD x q_lora"},
    {Slot::kIndexerWeightsProj,      Applies::kIndexed,      TensorKind::kPlain,       "attn.indexer.weights_proj.weight",      "self_attn.compressor.indexer.scorer.weights_proj.weight", "iH x d"},
    {Slot::kIndexerCompressorWkv,    Applies::kIndexed,      TensorKind::kPlain,       "attn.indexer.compressor.wkv.weight",    "self_attn.compressor.indexer.kv_proj.weight",           "cI x d"},
    {Slot::kIndexerCompressorWgate,  Applies::kIndexed,      TensorKind::kPlain,       "attn.indexer.compressor.wgate.weight",  "self_attn.compressor.indexer.gate_proj.weight",         "cI x d"},
    {Slot::kIndexerCompressorApe,    Applies::kIndexed,      TensorKind::kF32Vector,   "attn.indexer.compressor.ape",           "self_attn.compressor.indexer.position_bias",            "r x cI"},
    {Slot::kIndexerCompressorNorm,   Applies::kIndexed,      TensorKind::kNormVector,  "attn.indexer.compressor.norm.weight",   "self_attn.compressor.indexer.kv_norm.weight",           "iD"},

    {Slot::kGateWeight,              Applies::kBlock,        TensorKind::kPlain,       "ffn.gate.weight",                       "mlp.gate.weight",                                       "E x d"},
    {Slot::kGateBias,                Applies::kLearned,      TensorKind::kF32Strict,   "ffn.gate.bias",                         "mlp.gate.e_score_correction_bias",                      "E"},
    {Slot::kGateTid2eid,             Applies::kHashed,       TensorKind::kIdTable,     "ffn.gate.tid2eid",                      "mlp.gate.tid2eid",                                      "V x K"},
    {Slot::kExpertW1,                Applies::kPerExpert,    TensorKind::kExpert,      "ffn.experts.%.w1.weight",               "mlp.experts.%.gate_proj.weight",                        "I x d"},
    {Slot::kExpertW3,                Applies::kPerExpert,    TensorKind::kExpert,      "ffn.experts.%.w3.weight",               "mlp.experts.%.up_proj.weight",                          "I x d"},
    {Slot::kExpertW2,                Applies::kPerExpert,    TensorKind::kExpert,      "ffn.experts.%.w2.weight",               "mlp.experts.%.down_proj.weight",                        "d x I"},
    {Slot::kSharedW1,                Applies::kBlock,        TensorKind::kDense,       "ffn.shared_experts.w1.weight",          "mlp.shared_experts.gate_proj.weight",                   "I x d"},
    {Slot::kSharedW3,                Applies::kBlock,        TensorKind::kDense,       "ffn.shared_experts.w3.weight",          "mlp.shared_experts.up_proj.weight",                     "I x d"},
    {Slot::kSharedW2,                Applies::kBlock,        TensorKind::kDense,       "ffn.shared_experts.w2.weight",          "mlp.shared_experts.down_proj.weight",                   "d x I"},

    {Slot::kEProj,                   Applies::kMtp,          TensorKind::kDense,       "e_proj.weight",                         "",                                                      "d x d"},
    {Slot::kHProj,                   Applies::kMtp,          TensorKind::kDense,       "h_proj.weight",                         "",                                                      "d x d"},
    {Slot::kENorm,                   Applies::kMtp,          TensorKind::kNormVector,  "enorm.weight",                          "",                                                      "d"},
    {Slot::kHNorm,                   Applies::kMtp,          TensorKind::kNormVector,  "hnorm.weight",                          "",                                                      "d"},
    {Slot::kMainProj,                Applies::kDsparkFirst,  TensorKind::kDense,       "main_proj.weight",                      "",                                                      "d x taps"},
    {Slot::kMainNorm,                Applies::kDsparkFirst,  TensorKind::kNormVector,  "main_norm.weight",                      "",                                                      "d"},
    {Slot::kDraftNorm,               Applies::kDraftLast,    TensorKind::kNormVector,  "norm.weight",                           "",                                                      "d"},
    {Slot::kDraftHcHeadFn,           Applies::kDraftLast,    TensorKind::kF32Vector,   "hc_head_fn",                            "",                                                      "S x Sd"},
    {Slot::kDraftHcHeadBase,         Applies::kDraftLast,    TensorKind::kF32Vector,   "hc_head_base",                          "",                                                      "S"},
    {Slot::kDraftHcHeadScale,        Applies::kDraftLast,    TensorKind::kF32Vector,   "hc_head_scale",                         "",                                                      "1"},
    {Slot::kMarkovW1,                Applies::kDsparkLast,   TensorKind::kPlain,       "markov_head.markov_w1.weight",          "",                                                      "V x rank"},
    {Slot::kMarkovW2,                Applies::kDsparkLast,   TensorKind::kPlain,       "markov_head.markov_w2.weight",          "",                                                      "V x rank"},
    {Slot::kConfidenceProj,          Applies::kDsparkLast,   TensorKind::kPlain,       "confidence_head.proj.weight",           "",                                                      "1 x d+rank"},
};
// clang-format on

// Extents of one block: `ratio` is its compression ratio (0 for the model's own tensors and for draft
// stages).
std::int64_t extent(std::string_view symbol, const ModelConfig& c, int ratio) {
  const std::int64_t coff = ratio == 4 ? 2 : 1;
  const std::pair<std::string_view, std::int64_t> values[] = {
      {"1", 1},
      {"3", 3},
      {"V", c.vocab_size},
      {"d", c.hidden_size},
      {"S", c.hc_mult},
      {"Sd", c.hc_mult * c.hidden_size},
      {"mix", (2 + c.hc_mult) * c.hc_mult},
      {"H", c.num_attention_heads},
      {"HD", c.num_attention_heads * c.head_dim},
      {"D", c.head_dim},
      {"q_lora", c.q_lora_rank},
      {"o_rows", c.o_groups * c.o_lora_rank},
      {"o_cols", c.num_attention_heads * c.head_dim / c.o_groups},
      {"r", ratio},
      {"cD", coff * c.head_dim},
      {"cI", coff * c.index_head_dim},
      {"iH", c.index_n_heads},
      {"iD", c.index_head_dim},
      {"iHD", c.index_n_heads * c.index_head_dim},
      {"E", c.n_routed_experts},
      {"K", c.num_experts_per_tok},
      {"I", c.moe_intermediate_size},
      {"taps", static_cast<std::int64_t>(c.dspark_target_layer_ids.size()) * c.hidden_size},
      {"rank", c.dspark_markov_rank},
      {"d+rank", c.hidden_size + c.dspark_markov_rank},
  };
  for (const auto& [name, value] : values) {
    if (name == symbol) return value;
  }
  PIVOT_CHECK(false, "shape symbol {}", symbol);
  return 0;
}

Shape shape_of(std::string_view text, const ModelConfig& config, int ratio) {
  Shape shape;
  while (true) {
    const std::size_t cut = text.find(" x ");
    shape.push_back(extent(text.substr(0, cut), config, ratio));
    if (cut == std::string_view::npos) return shape;
    text.remove_prefix(cut + 3);
  }
}

struct Block {
  int index = 0;
  bool draft = false;
  int ratio = 0;
  bool hashed = false;
  bool mtp = false;
  bool dspark_first = false;
  bool dspark_last = false;
};

bool applies(Applies rule, const Block& block) {
  switch (rule) {
    case Applies::kModel:
      return false;
    case Applies::kBlock:
      return true;
    case Applies::kCompressed:
      return block.ratio != 0;
    case Applies::kIndexed:
      return block.ratio == 4;
    case Applies::kHashed:
      return block.hashed;
    case Applies::kLearned:
      return !block.hashed;
    case Applies::kPerExpert:
      return true;
    case Applies::kMtp:
      return block.mtp;
    case Applies::kDsparkFirst:
      return block.dspark_first;
    case Applies::kDsparkLast:
      return block.dspark_last;
    case Applies::kDraftLast:
      return block.mtp || block.dspark_last;
  }
  return false;
}

void expand_block(const ModelConfig& config, const Block& block, std::vector<SchemaTensor>& out) {
  std::vector<SchemaTensor> expert_rows;
  for (const SchemaRow& row : kRows) {
    if (!applies(row.applies, block)) continue;
    SchemaTensor tensor;
    tensor.row = &row;
    tensor.block = block.index;
    tensor.draft = block.draft;
    tensor.shape = shape_of(row.shape, config, block.ratio);
    (row.applies == Applies::kPerExpert ? expert_rows : out).push_back(std::move(tensor));
  }
  for (std::int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
    for (const SchemaTensor& row : expert_rows) {
      out.push_back(row);
      out.back().expert = static_cast<std::int32_t>(expert);
    }
  }
}

}  // namespace

const char* to_string(NameStyle style) { return style == NameStyle::kNative ? "native" : "transformers"; }

const char* to_string(HeadKind head) {
  switch (head) {
    case HeadKind::kNone:
      return "none";
    case HeadKind::kMtp:
      return "mtp";
    case HeadKind::kDspark:
      return "dspark";
  }
  return "none";
}

std::span<const SchemaRow> schema_rows() { return kRows; }

std::vector<SchemaTensor> expand_schema(const ModelConfig& config, HeadKind head, int draft_stages) {
  std::vector<SchemaTensor> tensors;
  for (const SchemaRow& row : kRows) {
    if (row.applies != Applies::kModel) continue;
    SchemaTensor tensor;
    tensor.row = &row;
    tensor.shape = shape_of(row.shape, config, 0);
    tensors.push_back(std::move(tensor));
  }
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    expand_block(config, {.index = layer, .ratio = config.ratio(layer), .hashed = config.hash_routed(layer)},
                 tensors);
  }
  const int stages = head == HeadKind::kMtp ? 1 : head == HeadKind::kDspark ? draft_stages : 0;
  for (int stage = 0; stage < stages; ++stage) {
    const bool dspark = head == HeadKind::kDspark;
    expand_block(config,
                 {.index = stage,
                  .draft = true,
                  .mtp = !dspark,
                  .dspark_first = dspark && stage == 0,
                  .dspark_last = dspark && stage == stages - 1},
                 tensors);
  }
  return tensors;
}

std::string tensor_name(const SchemaTensor& tensor, NameStyle style) {
  const bool native = style == NameStyle::kNative;
  const std::string_view pattern = native ? tensor.row->native : tensor.row->transformers;
  if (pattern.empty() || (!native && tensor.draft)) return {};
  std::string name;
  if (tensor.block >= 0) {
    name = tensor.draft ? "mtp." : native ? "layers." : "model.layers.";
    name += std::to_string(tensor.block);
    name += '.';
  }
  const std::size_t expert = pattern.find('%');
  name += pattern.substr(0, expert);
  if (expert != std::string_view::npos) {
    name += std::to_string(tensor.expert);
    name += pattern.substr(expert + 1);
  }
  return name;
}

}  // namespace pivot
