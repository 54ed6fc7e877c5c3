// Expected against found: every tensor that config and formats call for, and every one that is there.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/inspect/inspection.h"
#include "checkpoint/layout.h"
#include "checkpoint/problems.h"

namespace pivot {

namespace {

std::string declared(DType dtype, const Shape& shape) {
  return fmt::format("{} {}", dtype_name(dtype), to_string(shape));
}

// Copies of shared tensors under a draft stage, which readers skip (specification 4.1).
bool is_draft_copy(std::string_view name) {
  const auto place = place_of(name);
  return place && place->draft &&
         (place->part == "head.weight" || place->part.starts_with("emb.") ||
          place->part.starts_with("embed"));
}

// An expert matrix that is stored in another format than most: its own declaration, found by dtype.
bool is_other_expert_format(const TensorInfo& found, const StoredDeclaration& wanted) {
  const auto place = place_of(wanted.name);
  return place && place->module == Module::kRoutedExpert && found.dtype != wanted.dtype;
}

void audit_native(const std::vector<StoredDeclaration>& wanted, const TensorTable& table, Audit& audit) {
  std::unordered_set<std::string_view> known;
  known.reserve(wanted.size());
  for (const StoredDeclaration& tensor : wanted) {
    known.insert(tensor.name);
    const TensorInfo* found = table.find(tensor.name);
    if (found == nullptr) {
      audit.missing.push_back(fmt::format("{} ({})", tensor.name, declared(tensor.dtype, tensor.shape)));
      continue;
    }
    const bool scalar = tensor.shape.empty() && found->shape == Shape{1};
    const bool signless = (tensor.dtype == DType::kI8 && found->dtype == DType::kU8) ||
                          (tensor.dtype == DType::kU8 && found->dtype == DType::kI8);
    if ((found->dtype == tensor.dtype || signless) && (found->shape == tensor.shape || scalar)) continue;
    audit.different.push_back(
        fmt::format("{} is {}{}, {} was expected", tensor.name, declared(found->dtype, found->shape),
                    is_other_expert_format(*found, tensor) ? " (another expert format)" : "",
                    declared(tensor.dtype, tensor.shape)));
  }
  for (const TensorInfo& tensor : table.tensors()) {
    if (known.contains(tensor.name)) continue;
    if (is_draft_copy(tensor.name)) {
      audit.duplicates.push_back(tensor.name);
      continue;
    }
    audit.extra.push_back(fmt::format("{} ({})", tensor.name, declared(tensor.dtype, tensor.shape)));
  }
}

}  // namespace

Audit audit_tensors(const ModelConfig& config, const Identification& identification,
                    const TensorTable& table) {
  Audit audit;
  audit.found = static_cast<std::int64_t>(table.size());
  const CheckpointFormats formats = formats_of(identification);
  if (identification.style != NameStyle::kNative) {
    // Other styles fuse and rename; the layout resolver knows how, and lists every fault by name.
    const auto quantization = parse_quantization("{}", "", "config.json");
    const auto layout =
        quantization ? resolve_layout(config, *quantization, table) : fail(quantization.error());
    audit.done = true;
    if (layout) {
      audit.expected = audit.found - static_cast<std::int64_t>(layout->skipped.size());
      for (const TensorInfo* skipped : layout->skipped) audit.duplicates.push_back(skipped->name);
    } else {
      audit.different.push_back(layout.error().to_string());
    }
    return audit;
  }
  const std::vector<StoredDeclaration> wanted = stored_tensors(config, formats);
  audit.done = true;
  audit.expected = static_cast<std::int64_t>(wanted.size());
  audit_native(wanted, table, audit);
  return audit;
}

std::string header_fingerprint(const TensorTable& table) {
  // Order of shards and of tensors within them is a packaging choice: hash each tensor, combine by addition.
  std::uint64_t sum = 0;
  for (const TensorInfo& tensor : table.tensors()) {
    XXH64_hash_t hash = XXH3_64bits(tensor.name.data(), tensor.name.size());
    const auto dtype = static_cast<std::uint64_t>(tensor.dtype);
    hash = XXH3_64bits_withSeed(&dtype, sizeof(dtype), hash);
    hash = XXH3_64bits_withSeed(tensor.shape.data(), tensor.shape.size() * sizeof(std::int64_t), hash);
    sum += hash;
  }
  return table.size() == 0 ? std::string() : fmt::format("{:016x}", sum);
}

std::string quantization_layout(const std::optional<std::string>& config_text,
                                const std::optional<std::string>& hf_quant_text) {
  const auto parse = [](const std::optional<std::string>& text) {
    return text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  };
  const nlohmann::json config = parse(config_text);
  const nlohmann::json hf_quant = parse(hf_quant_text);
  const bool in_config = config.is_object() && config.contains("quantization_config") &&
                         config["quantization_config"].is_object() &&
                         config["quantization_config"].contains("quantized_layers");
  if (!hf_quant.is_object() || !hf_quant.contains("quantization") || !hf_quant["quantization"].is_object())
    return in_config ? "ModelOpt, in config.json only" : "no ModelOpt metadata";
  const nlohmann::json& quantization = hf_quant["quantization"];
  // The first published revision named every projection, with awq_block_size, and had no quant_algo
  // (specification 4.3).
  const nlohmann::json& layers =
      quantization.contains("quantized_layers") ? quantization["quantized_layers"] : nlohmann::json::object();
  const bool early = layers.is_object() && !layers.empty() && layers.begin().value().is_object() &&
                     layers.begin().value().contains("awq_block_size");
  if (early)
    return in_config ? "ModelOpt, early layout beside a current config.json"
                     : "ModelOpt, early layout (per projection, awq_block_size)";
  return in_config ? "ModelOpt, current layout (both files)" : "ModelOpt, in hf_quant_config.json only";
}

std::string variant_from_config(const ModelConfig& config, std::string_view config_json) {
  const CheckpointFormats formats = guess_formats(config, config_json);
  std::string lineage = formats.head == HeadKind::kDspark ? "0731 or DSpark"
                        : formats.head == HeadKind::kMtp  ? "preview"
                                                          : "without draft head";
  std::string variant;
  switch (formats.experts) {
    case ExpertFormat::kNvfp4ModelOpt:
      variant = fmt::format("NVFP4 ({})", lineage);
      break;
    case ExpertFormat::kFp8F32:
      variant = "Base";
      break;
    default:
      variant = lineage;
  }
  const bool flash = config.hidden_size == 4096 && config.num_hidden_layers == 43;
  const bool pro = config.hidden_size == 7168 && config.num_hidden_layers == 61;
  const std::int64_t published = flash ? 256 : pro ? 384 : config.n_routed_experts;
  if (config.n_routed_experts < published)
    variant += fmt::format(", pruned to {} of {} experts", config.n_routed_experts, published);
  return variant;
}

}  // namespace pivot
