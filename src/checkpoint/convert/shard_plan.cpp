#include "checkpoint/convert/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/json_text.h"

namespace pivot {

namespace {

// The order in which the published files lay out their dtypes.
int dtype_rank(DType dtype) {
  switch (dtype) {
    case DType::kU64:
    case DType::kI64:
    case DType::kF64:
      return 0;
    case DType::kF32:
    case DType::kU32:
    case DType::kI32:
      return 1;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
    case DType::kI16:
      return 2;
    case DType::kF8E8M0:
      return 3;
    case DType::kF8E4M3:
      return 4;
    case DType::kF8E5M2:
      return 5;
    case DType::kI8:
      return 6;
    case DType::kU8:
      return 7;
    case DType::kBool:
      return 8;
  }
  return 9;
}

Role role_of(std::string_view name, std::string_view stem) {
  name.remove_prefix(stem.size());
  if (name == ".weight") return Role::kCodes;
  if (name == ".scale" || name == ".weight_scale") return Role::kScales;
  return name == ".input_scale" ? Role::kInputScale : Role::kGlobalScale;
}

bool already_in(const StoredTensor& tensor, ExpertTarget target) {
  switch (target) {
    case ExpertTarget::kNative:
      return tensor.format == MatrixFormat::kFP4;
    case ExpertTarget::kNvfp4:
      return tensor.format == MatrixFormat::kNVFP4 && tensor.convention == Nvfp4Convention::kModelOpt;
    case ExpertTarget::kFp8:
      return tensor.format == MatrixFormat::kFP8 && tensor.scale_format == ScaleFormat::kE8M0;
    case ExpertTarget::kBf16:
      return tensor.format == MatrixFormat::kBF16;
  }
  return false;
}

bool before(const OutputTensor& a, const OutputTensor& b) {
  if (a.joint != b.joint) return b.joint;
  if (a.joint) {
    if (a.matrix != b.matrix) return a.matrix->name < b.matrix->name;
    return a.role == Role::kScales && b.role == Role::kCodes;
  }
  const int rank_a = dtype_rank(a.declaration.dtype);
  const int rank_b = dtype_rank(b.declaration.dtype);
  return rank_a != rank_b ? rank_a < rank_b : a.declaration.name < b.declaration.name;
}

}  // namespace

bool keeps_codes(const StoredTensor& matrix, ExpertTarget target) {
  return (matrix.format == MatrixFormat::kFP4 || matrix.format == MatrixFormat::kNVFP4) &&
         (target == ExpertTarget::kNative || target == ExpertTarget::kNvfp4);
}

bool makes_both_at_once(const StoredTensor& matrix, ExpertTarget target) {
  // FP8 block scales of native FP4 follow from its scales alone.
  const bool from_scales = target == ExpertTarget::kFp8 && matrix.format == MatrixFormat::kFP4;
  return target != ExpertTarget::kBf16 && !keeps_codes(matrix, target) && !from_scales;
}

Result<OutputPlan> plan_output(const Checkpoint& source, const ModelLayout& layout,
                               const ConvertOptions& options) {
  if (layout.style != NameStyle::kNative)
    return fail(ErrorCode::kUnsupported,
                "{} uses transformers names with fused experts; convert works on native names "
                "(layers.L.ffn.experts.E.wN). Fetch the native checkpoint instead",
                source.folder().string());
  OutputPlan plan;
  // Source tensors that belong to a converted matrix: the weight's shard takes the whole new set, the rest
  // disappears.
  std::unordered_map<const TensorInfo*, const StoredTensor*> replaced;
  std::unordered_set<const TensorInfo*> dropped;
  for (const StoredTensor& tensor : layout.tensors) {
    if (tensor.schema.row->kind != TensorKind::kExpert || (tensor.schema.draft && !options.draft_experts) ||
        already_in(tensor, options.experts))
      continue;
    replaced.emplace(tensor.weight, &tensor);
    for (const TensorInfo* part : {tensor.scale, tensor.global_scale, tensor.input_scale})
      if (part != nullptr) dropped.insert(part);
  }
  plan.matrices = static_cast<std::int64_t>(replaced.size());
  for (const ShardInfo& shard : source.table().shards())
    plan.shards.push_back({shard.file, {}, 0, shard.metadata});
  std::vector<StoredDeclaration> set;
  for (const TensorInfo& tensor : source.table().tensors()) {
    if (dropped.contains(&tensor)) continue;
    ShardPlan& shard = plan.shards[tensor.shard];
    const auto found = replaced.find(&tensor);
    if (found == replaced.end()) {
      shard.tensors.push_back(
          {{tensor.name, tensor.dtype, tensor.shape}, Role::kCopy, &tensor, nullptr, false});
      ++plan.copied;
      continue;
    }
    const StoredTensor& matrix = *found->second;
    const std::string stem = matrix.name.substr(0, matrix.name.size() - std::string_view(".weight").size());
    set.clear();
    append_matrix(set, stem, matrix.rows, matrix.cols, format_of(options.experts));
    for (StoredDeclaration& stored : set) {
      const Role role = role_of(stored.name, stem);
      const bool joint =
          (role == Role::kCodes || role == Role::kScales) && makes_both_at_once(matrix, options.experts);
      shard.tensors.push_back(
          {{std::move(stored.name), stored.dtype, std::move(stored.shape)}, role, nullptr, &matrix, joint});
    }
  }
  for (ShardPlan& shard : plan.shards) {
    std::sort(shard.tensors.begin(), shard.tensors.end(), before);
    for (const OutputTensor& tensor : shard.tensors) {
      std::int64_t bytes = dtype_bytes(tensor.declaration.dtype);
      for (const std::int64_t extent : tensor.declaration.shape) bytes *= extent;
      shard.data_bytes += static_cast<std::uint64_t>(bytes);
    }
    plan.data_bytes += shard.data_bytes;
  }
  return plan;
}

std::string output_index(const OutputPlan& plan) {
  nlohmann::json index;  // sorted keys, as the published files
  index["metadata"]["total_size"] = plan.data_bytes;
  nlohmann::json& map = index["weight_map"] = nlohmann::json::object();
  for (const ShardPlan& shard : plan.shards)
    for (const OutputTensor& tensor : shard.tensors) map[tensor.declaration.name] = shard.file;
  return index.dump(2) + "\n";
}

Result<OutputTexts> output_texts(const Checkpoint& source, std::int64_t num_layers,
                                 const ConvertOptions& options) {
  PIVOT_TRY(nlohmann::json config, parse_json_object(source.config_text().value_or(""), "config.json"));
  nlohmann::json& quantization = config["quantization_config"];
  if (!quantization.is_object())
    quantization = {{"activation_scheme", "dynamic"},
                    {"fmt", "e4m3"},
                    {"quant_method", "fp8"},
                    {"scale_fmt", "ue8m0"},
                    {"weight_block_size", {128, 128}}};
  // What an earlier NVFP4 export added; set again below where NVFP4 is the target.
  for (const char* key : {"config_groups", "exclude_modules", "group_size", "ignore", "kv_cache_quant_algo",
                          "moe_quant_algo", "producer", "quant_algo", "quantized_layers"})
    quantization.erase(key);
  quantization["quant_method"] = "fp8";
  OutputTexts texts;
  switch (options.experts) {
    case ExpertTarget::kNative:
    case ExpertTarget::kNvfp4:
      config["expert_dtype"] = "fp4";
      break;
    case ExpertTarget::kFp8:
      config["expert_dtype"] = "fp8";
      break;
    case ExpertTarget::kBf16:
      config["expert_dtype"] = "bf16";
      break;
  }
  if (options.experts == ExpertTarget::kNvfp4) {
    nlohmann::json ignore = {"*.attn.*", "*.ffn.shared_experts.*", "head"};
    if (!options.draft_experts) ignore.push_back("mtp.*");
    nlohmann::json layers = nlohmann::json::object();
    for (std::int64_t layer = 0; layer < num_layers; ++layer)
      layers[fmt::format("layers.{}.ffn.experts", layer)] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
    const nlohmann::json floats = {
        {"dynamic", false}, {"group_size", 16}, {"num_bits", 4}, {"type", "float"}};
    // The version string is what loaders of these files look for (specification 4.3).
    const nlohmann::json producer = {{"name", "modelopt"}, {"version", "dsv4-nvfp4-experts"}};
    quantization["config_groups"]["group_0"] = {
        {"input_activations", floats}, {"targets", {"Linear"}}, {"weights", floats}};
    quantization["group_size"] = 16;
    quantization["ignore"] = ignore;
    quantization["kv_cache_quant_algo"] = nullptr;
    quantization["moe_quant_algo"] = "NVFP4";
    quantization["producer"] = producer;
    quantization["quant_algo"] = "MIXED_PRECISION";
    quantization["quantized_layers"] = layers;
    nlohmann::ordered_json hf_quant;
    hf_quant["producer"] = producer;
    hf_quant["quantization"] = {{"quant_algo", "MIXED_PRECISION"},
                                {"kv_cache_quant_algo", nullptr},
                                {"group_size", 16},
                                {"quantized_layers", layers},
                                {"exclude_modules", ignore}};
    texts.hf_quant = hf_quant.dump(2) + "\n";
  }
  texts.config = config.dump(2) + "\n";
  return texts;
}

}  // namespace pivot
