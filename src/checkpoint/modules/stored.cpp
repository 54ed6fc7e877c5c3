// From logical tensors to stored ones: the names, dtypes and shapes of specification 4.1 (native), 4.2
// (FP8), 4.3 (NVFP4) and 4.5 (BF16).
#include <nlohmann/json.hpp>

#include "checkpoint/modules/modules.h"
#include "tensor/matrix.h"

namespace pivot {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

ExpertFormat dense_format(DenseScale scale) {
  switch (scale) {
    case DenseScale::kNone:
      return ExpertFormat::kBf16;
    case DenseScale::kF32:
      return ExpertFormat::kFp8F32;
    case DenseScale::kE8M0:
    case DenseScale::kMixed:
      break;
  }
  return ExpertFormat::kFp8E8m0;
}

DType plain_dtype(TensorKind kind) {
  switch (kind) {
    case TensorKind::kF32Vector:
    case TensorKind::kF32Strict:
      return DType::kF32;
    case TensorKind::kIdTable:
      return DType::kI64;
    default:
      return DType::kBF16;
  }
}

}  // namespace

Module module_of(Slot slot) {
  switch (slot) {
    case Slot::kEmbed:
      return Module::kEmbedding;
    case Slot::kHead:
      return Module::kHead;
    case Slot::kNorm:
    case Slot::kAttnNorm:
    case Slot::kFfnNorm:
      return Module::kNorm;
    case Slot::kHcHeadFn:
    case Slot::kHcHeadBase:
    case Slot::kHcHeadScale:
    case Slot::kHcAttnFn:
    case Slot::kHcAttnBase:
    case Slot::kHcAttnScale:
    case Slot::kHcFfnFn:
    case Slot::kHcFfnBase:
    case Slot::kHcFfnScale:
    case Slot::kDraftHcHeadFn:
    case Slot::kDraftHcHeadBase:
    case Slot::kDraftHcHeadScale:
      return Module::kHyperConnection;
    case Slot::kAttnSink:
    case Slot::kWqA:
    case Slot::kQNorm:
    case Slot::kWqB:
    case Slot::kWkv:
    case Slot::kKvNorm:
    case Slot::kWoA:
    case Slot::kWoB:
      return Module::kAttention;
    case Slot::kCompressorWkv:
    case Slot::kCompressorWgate:
    case Slot::kCompressorApe:
    case Slot::kCompressorNorm:
      return Module::kCompressor;
    case Slot::kIndexerWqB:
    case Slot::kIndexerWeightsProj:
    case Slot::kIndexerCompressorWkv:
    case Slot::kIndexerCompressorWgate:
    case Slot::kIndexerCompressorApe:
    case Slot::kIndexerCompressorNorm:
      return Module::kIndexer;
    case Slot::kGateWeight:
    case Slot::kGateBias:
      return Module::kRouter;
    case Slot::kGateTid2eid:
      return Module::kHashTable;
    case Slot::kExpertW1:
    case Slot::kExpertW3:
    case Slot::kExpertW2:
      return Module::kRoutedExpert;
    case Slot::kSharedW1:
    case Slot::kSharedW3:
    case Slot::kSharedW2:
      return Module::kSharedExpert;
    case Slot::kEProj:
    case Slot::kHProj:
    case Slot::kENorm:
    case Slot::kHNorm:
    case Slot::kMainProj:
    case Slot::kMainNorm:
    case Slot::kDraftNorm:
    case Slot::kMarkovW1:
    case Slot::kMarkovW2:
    case Slot::kConfidenceProj:
      return Module::kDraftHead;
  }
  return Module::kNorm;
}

std::int64_t StoredDeclaration::bytes() const {
  std::int64_t count = dtype_bytes(dtype);
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

void append_matrix(std::vector<StoredDeclaration>& out, const std::string& stem, std::int64_t rows,
                   std::int64_t cols, ExpertFormat format) {
  const Shape blocks = {ceil_div(rows, kFp8BlockRows), ceil_div(cols, kFp8BlockCols)};
  switch (format) {
    case ExpertFormat::kMxfp4:
      out.push_back({stem + ".weight", DType::kI8, {rows, cols / 2}});
      out.push_back({stem + ".scale", DType::kF8E8M0, {rows, cols / kFp4GroupCols}});
      break;
    case ExpertFormat::kNvfp4ModelOpt:
      out.push_back({stem + ".weight", DType::kU8, {rows, cols / 2}});
      out.push_back({stem + ".weight_scale", DType::kF8E4M3, {rows, cols / kNvfp4GroupCols}});
      out.push_back({stem + ".weight_scale_2", DType::kF32, {}});
      out.push_back({stem + ".input_scale", DType::kF32, {}});
      break;
    case ExpertFormat::kNvfp4Compressed:
      out.push_back({stem + ".weight_packed", DType::kU8, {rows, cols / 2}});
      out.push_back({stem + ".weight_scale", DType::kF8E4M3, {rows, cols / kNvfp4GroupCols}});
      out.push_back({stem + ".weight_global_scale", DType::kF32, {1}});
      break;
    case ExpertFormat::kFp8E8m0:
      out.push_back({stem + ".weight", DType::kF8E4M3, {rows, cols}});
      out.push_back({stem + ".scale", DType::kF8E8M0, blocks});
      break;
    case ExpertFormat::kFp8F32:
      out.push_back({stem + ".weight", DType::kF8E4M3, {rows, cols}});
      out.push_back({stem + ".scale", DType::kF32, blocks});
      break;
    case ExpertFormat::kBf16:
    case ExpertFormat::kUnknown:
      out.push_back({stem + ".weight", DType::kBF16, {rows, cols}});
      break;
  }
}

std::vector<StoredDeclaration> stored_tensors(const ModelConfig& config, const CheckpointFormats& formats) {
  std::vector<StoredDeclaration> out;
  const std::vector<SchemaTensor> logical = expand_schema(config, formats.head, formats.draft_stages);
  out.reserve(logical.size() * 2);
  for (const SchemaTensor& tensor : logical) {
    std::string name = tensor_name(tensor, NameStyle::kNative);
    const bool matrix = tensor.row->kind == TensorKind::kDense || tensor.row->kind == TensorKind::kExpert;
    constexpr std::string_view kWeight = ".weight";
    if (!matrix || !name.ends_with(kWeight) || tensor.shape.size() != 2) {
      out.push_back({std::move(name), plain_dtype(tensor.row->kind), tensor.shape});
      continue;
    }
    name.resize(name.size() - kWeight.size());
    const ExpertFormat format = tensor.row->kind == TensorKind::kDense ? dense_format(formats.dense)
                                : tensor.draft                         ? formats.draft_experts
                                                                       : formats.experts;
    append_matrix(out, name, tensor.shape[0], tensor.shape[1], format);
  }
  return out;
}

CheckpointFormats formats_of(const Identification& identification) {
  CheckpointFormats formats;
  formats.experts = identification.expert_format;
  formats.dense = identification.dense_scale;
  formats.head = identification.head;
  formats.draft_stages = identification.draft_stages;
  formats.draft_experts = formats.experts;
  std::int64_t most = 0;
  for (std::size_t format = 0; format < kNumExpertFormats; ++format) {
    if (identification.draft_experts[format] <= most) continue;
    most = identification.draft_experts[format];
    formats.draft_experts = static_cast<ExpertFormat>(format);
  }
  return formats;
}

CheckpointFormats guess_formats(const ModelConfig& config, std::string_view config_json) {
  CheckpointFormats formats;
  formats.draft_stages = static_cast<std::int32_t>(config.draft_compress_ratios.size());
  if (formats.draft_stages > 0)
    formats.head = config.dspark_block_size > 0 ? HeadKind::kDspark : HeadKind::kMtp;
  if (config.expert_dtype == "fp8") {
    // Flash-Base: F32 scales everywhere (specification 4.2).
    formats.experts = formats.draft_experts = ExpertFormat::kFp8F32;
    formats.dense = DenseScale::kF32;
  }
  const nlohmann::json json = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return formats;
  const auto quantization = json.find("quantization_config");
  if (quantization == json.end() || !quantization->is_object()) return formats;
  const auto moe = quantization->find("moe_quant_algo");
  if (moe != quantization->end() && *moe == "NVFP4") formats.experts = ExpertFormat::kNvfp4ModelOpt;
  return formats;
}

}  // namespace pivot
