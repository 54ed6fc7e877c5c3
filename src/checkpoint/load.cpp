#include "checkpoint/load.h"

#include <algorithm>

#include "base/check.h"
#include "checkpoint/family.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/json_text.h"
#include "checkpoint/materialize.h"

namespace pivot {
namespace {

constexpr std::uint64_t kReleaseEveryBytes = std::uint64_t{128} << 20;

// What ModelWeights::storage keeps alive.
struct Storage {
  std::shared_ptr<const std::vector<MappedFile>> mappings;
  WeightArena arena;
};

// ---- from slots to members of ModelWeights ----

LayerWeights& block_of(ModelWeights& model, const SchemaTensor& tensor) {
  const auto index = static_cast<std::size_t>(tensor.block);
  if (!tensor.draft) return model.layers[index];
  return model.mtp ? model.mtp->block : model.dspark->stages[index];
}

CompressorWeights& compressor_of(LayerWeights& layer) { return *layer.attn.compressor; }
CompressorWeights& index_compressor_of(LayerWeights& layer) { return layer.attn.indexer->compressor; }
HyperHeadWeights& draft_head_of(ModelWeights& m) { return m.mtp ? m.mtp->hc_head : m.dspark->hc_head; }

Matrix* model_matrix(ModelWeights& m, Slot slot) {
  switch (slot) {
    case Slot::kEmbed:
      return &m.embed;
    case Slot::kHead:
      return &m.head;
    case Slot::kEProj:
      return &m.mtp->e_proj;
    case Slot::kHProj:
      return &m.mtp->h_proj;
    case Slot::kMainProj:
      return &m.dspark->main_proj;
    case Slot::kMarkovW1:
      return &m.dspark->markov_w1;
    case Slot::kMarkovW2:
      return &m.dspark->markov_w2;
    case Slot::kConfidenceProj:
      return &m.dspark->confidence_proj;
    default:
      return nullptr;
  }
}

Matrix* block_matrix(LayerWeights& layer, Slot slot, std::size_t expert) {
  switch (slot) {
    case Slot::kWqA:
      return &layer.attn.wq_a;
    case Slot::kWqB:
      return &layer.attn.wq_b;
    case Slot::kWkv:
      return &layer.attn.wkv;
    case Slot::kWoA:
      return &layer.attn.wo_a;
    case Slot::kWoB:
      return &layer.attn.wo_b;
    case Slot::kCompressorWkv:
      return &compressor_of(layer).wkv;
    case Slot::kCompressorWgate:
      return &compressor_of(layer).wgate;
    case Slot::kIndexerWqB:
      return &layer.attn.indexer->wq_b;
    case Slot::kIndexerWeightsProj:
      return &layer.attn.indexer->weights_proj;
    case Slot::kIndexerCompressorWkv:
      return &index_compressor_of(layer).wkv;
    case Slot::kIndexerCompressorWgate:
      return &index_compressor_of(layer).wgate;
    case Slot::kGateWeight:
      return &layer.ffn.gate;
    case Slot::kExpertW1:
      return &layer.ffn.experts[expert].w1;
    case Slot::kExpertW3:
      return &layer.ffn.experts[expert].w3;
    case Slot::kExpertW2:
      return &layer.ffn.experts[expert].w2;
    case Slot::kSharedW1:
      return &layer.ffn.shared.w1;
    case Slot::kSharedW3:
      return &layer.ffn.shared.w3;
    case Slot::kSharedW2:
      return &layer.ffn.shared.w2;
    default:
      return nullptr;
  }
}

FloatSpan* model_vector(ModelWeights& m, Slot slot) {
  switch (slot) {
    case Slot::kNorm:
      return &m.norm;
    case Slot::kHcHeadFn:
      return &m.hc_head.fn;
    case Slot::kHcHeadBase:
      return &m.hc_head.base;
    case Slot::kHcHeadScale:
      return &m.hc_head.scale;
    case Slot::kENorm:
      return &m.mtp->enorm;
    case Slot::kHNorm:
      return &m.mtp->hnorm;
    case Slot::kMainNorm:
      return &m.dspark->main_norm;
    case Slot::kDraftNorm:
      return m.mtp ? &m.mtp->norm : &m.dspark->norm;
    case Slot::kDraftHcHeadFn:
      return &draft_head_of(m).fn;
    case Slot::kDraftHcHeadBase:
      return &draft_head_of(m).base;
    case Slot::kDraftHcHeadScale:
      return &draft_head_of(m).scale;
    default:
      return nullptr;
  }
}

FloatSpan* block_vector(LayerWeights& layer, Slot slot) {
  switch (slot) {
    case Slot::kAttnNorm:
      return &layer.attn_norm;
    case Slot::kFfnNorm:
      return &layer.ffn_norm;
    case Slot::kHcAttnFn:
      return &layer.attn_hc.fn;
    case Slot::kHcAttnBase:
      return &layer.attn_hc.base;
    case Slot::kHcAttnScale:
      return &layer.attn_hc.scale;
    case Slot::kHcFfnFn:
      return &layer.ffn_hc.fn;
    case Slot::kHcFfnBase:
      return &layer.ffn_hc.base;
    case Slot::kHcFfnScale:
      return &layer.ffn_hc.scale;
    case Slot::kAttnSink:
      return &layer.attn.attn_sink;
    case Slot::kQNorm:
      return &layer.attn.q_norm;
    case Slot::kKvNorm:
      return &layer.attn.kv_norm;
    case Slot::kCompressorApe:
      return &compressor_of(layer).ape;
    case Slot::kCompressorNorm:
      return &compressor_of(layer).norm;
    case Slot::kIndexerCompressorApe:
      return &index_compressor_of(layer).ape;
    case Slot::kIndexerCompressorNorm:
      return &index_compressor_of(layer).norm;
    case Slot::kGateBias:
      return &layer.ffn.bias;
    default:
      return nullptr;
  }
}

// Gives the model its parts (layers, compressors, experts, draft stages), all still empty.
void shape_layer(LayerWeights& layer, const ModelConfig& config, int ratio) {
  layer.ffn.experts.resize(static_cast<std::size_t>(config.n_routed_experts));
  if (ratio == 0) return;
  layer.attn.compressor.emplace();
  layer.attn.compressor->ratio = ratio;
  layer.attn.compressor->width = config.head_dim;
  if (ratio != 4) return;
  layer.attn.indexer.emplace();
  layer.attn.indexer->compressor.ratio = ratio;
  layer.attn.indexer->compressor.width = config.index_head_dim;
}

void shape_model(ModelWeights& model, const ModelLayout& layout, bool draft) {
  const ModelConfig& config = model.config;
  model.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  for (std::size_t i = 0; i < model.layers.size(); ++i)
    shape_layer(model.layers[i], config, config.compress_ratios[i]);
  if (!draft) return;
  if (layout.head == HeadKind::kMtp) shape_layer(model.mtp.emplace().block, config, 0);
  if (layout.head == HeadKind::kDspark) {
    model.dspark.emplace().stages.resize(static_cast<std::size_t>(layout.draft_stages));
    for (LayerWeights& stage : model.dspark->stages) shape_layer(stage, config, 0);
  }
}

void bind(ModelWeights& model, const StoredTensor& tensor, Materializer& materializer) {
  const Slot slot = tensor.schema.row->slot;
  LayerWeights* layer = tensor.schema.block >= 0 ? &block_of(model, tensor.schema) : nullptr;
  if (tensor.is_matrix) {
    Matrix* target = model_matrix(model, slot);
    if (target == nullptr && layer != nullptr) {
      target = block_matrix(*layer, slot, static_cast<std::size_t>(std::max(tensor.schema.expert, 0)));
    }
    PIVOT_CHECK(target != nullptr && target->empty(), "{}", tensor.name);
    *target = materializer.matrix(tensor);
  } else if (slot == Slot::kGateTid2eid) {
    layer->ffn.tid2eid = materializer.id_table(tensor, model.config.n_routed_experts);
  } else {
    FloatSpan* target = model_vector(model, slot);
    if (target == nullptr && layer != nullptr) target = block_vector(*layer, slot);
    PIVOT_CHECK(target != nullptr && target->empty(), "{}", tensor.name);
    *target = materializer.vector(tensor);
    if (slot == Slot::kHcAttnFn) layer->attn_hc.fn_is_bf16 = all_bf16(*target);
    if (slot == Slot::kHcFfnFn) layer->ffn_hc.fn_is_bf16 = all_bf16(*target);
  }
}

std::uint64_t bytes_to_read(const ModelLayout& layout, const LoadOptions& options) {
  std::uint64_t sum = 0;
  for (const StoredTensor& tensor : layout.tensors) {
    if (tensor.schema.draft && !options.draft) continue;
    if (!tensor.is_matrix) sum += tensor.code_bytes;
    if (options.check_scales) sum += tensor.scale_bytes;
  }
  return sum;
}

std::string subject_of(const Checkpoint& checkpoint) { return "checkpoint " + checkpoint.folder().string(); }

}  // namespace

Result<std::shared_ptr<const ModelWeights>> load_model(const Checkpoint& checkpoint,
                                                       const LoadOptions& options) {
  if (!checkpoint.config_text()) {
    return fail(
        ErrorCode::kNotFound,
        "there is no config.json in {}; it must lie beside the weights, so fetch it from where they came",
        checkpoint.folder().string());
  }
  const std::string config_name = (checkpoint.folder() / "config.json").string();
  auto model = std::make_shared<ModelWeights>();
  PIVOT_TRY(model->config, parse_model_config(*checkpoint.config_text(), config_name));
  PIVOT_TRY(
      const QuantizationFacts quantization,
      parse_quantization(*checkpoint.config_text(), checkpoint.hf_quant_text().value_or(""), config_name));
  auto layout = resolve_layout(model->config, quantization, checkpoint.table());
  if (!layout) return fail(std::move(layout).error().with(subject_of(checkpoint)));

  auto storage = std::make_shared<Storage>();
  storage->mappings = checkpoint.mappings();
  Problems problems;
  Materializer materializer(checkpoint, storage->arena, problems, options.check_scales);
  shape_model(*model, *layout, options.draft);
  LoadProgress progress{0, bytes_to_read(*layout, options)};
  std::uint64_t released = 0;
  for (const StoredTensor& tensor : layout->tensors) {
    if (tensor.schema.draft && !options.draft) continue;
    bind(*model, tensor, materializer);
    progress.done_bytes = std::min(materializer.bytes_read(), progress.total_bytes);
    if (options.progress) options.progress(progress);
    if (materializer.bytes_read() - released >= kReleaseEveryBytes) {
      released = materializer.bytes_read();
      checkpoint.release_pages();
    }
  }
  if (!problems.empty()) return fail(problems.to_error(subject_of(checkpoint)));
  model->fingerprint = checkpoint_fingerprint(checkpoint, *layout);
  checkpoint.release_pages();
  model->storage = std::move(storage);
  return std::shared_ptr<const ModelWeights>(std::move(model));
}

Result<std::shared_ptr<const ModelWeights>> load_model(std::string_view path_or_name,
                                                       const LoadOptions& options) {
  Problems problems;
  const auto checkpoint = Checkpoint::open(path_or_name, HubEnvironment::from_process(), problems);
  if (checkpoint) return load_model(*checkpoint, options);
  // The folder is broken. Say in the same breath what is wrong with its config, unless it is another kind of
  // model altogether: then that is the one thing worth saying.
  const auto folder = resolve_checkpoint(path_or_name);
  const auto text = folder ? read_file(*folder / "config.json") : fail(folder.error());
  if (text && !text->empty() && !is_lfs_pointer(std::as_bytes(std::span(*text)))) {
    if (const auto json = parse_json_object(*text, "config.json"); json && !model_family(*json).supported()) {
      return fail(ErrorCode::kUnsupported, "checkpoint {}: {}", path_or_name, model_family(*json).refusal);
    }
    parse_model_config(*text, problems);
  }
  return fail(problems.to_error(fmt::format("checkpoint {}", path_or_name)));
}

}  // namespace pivot
