#include "checkpoint/identify.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "checkpoint/family.h"
#include "checkpoint/json_text.h"
#include "checkpoint/layout.h"
#include "checkpoint/problems.h"

namespace pivot {
namespace {

constexpr std::size_t index_of(ExpertFormat format) { return static_cast<std::size_t>(format); }

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}
bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// The scale tensor of a matrix called `name`, whichever of the known spellings is there.
const TensorInfo* scale_of(const TensorTable& table, std::string_view name) {
  const std::string stem(ends_with(name, ".weight") ? name.substr(0, name.size() - 7) : name);
  for (const char* suffix : {".scale", ".weight_scale_inv", "_scale_inv"}) {
    if (const TensorInfo* scale = table.find(stem + suffix)) return scale;
  }
  return nullptr;
}

ExpertFormat expert_format_of(const TensorTable& table, const TensorInfo& weight) {
  const std::string_view name = weight.name;
  const TensorInfo* scale = scale_of(table, name);
  switch (weight.dtype) {
    case DType::kI8:
      return scale != nullptr && scale->dtype == DType::kF8E8M0 ? ExpertFormat::kMxfp4
                                                                : ExpertFormat::kUnknown;
    case DType::kU8: {
      const std::string stem(name.substr(0, name.rfind('.')));
      if (!table.contains(stem + ".weight_scale")) return ExpertFormat::kUnknown;
      if (table.contains(stem + ".weight_scale_2")) return ExpertFormat::kNvfp4ModelOpt;
      return table.contains(stem + ".weight_global_scale") ? ExpertFormat::kNvfp4Compressed
                                                           : ExpertFormat::kUnknown;
    }
    case DType::kF8E4M3:
      if (scale == nullptr || scale->shape.size() < 2) return ExpertFormat::kUnknown;
      return scale->dtype == DType::kF32      ? ExpertFormat::kFp8F32
             : scale->dtype == DType::kF8E8M0 ? ExpertFormat::kFp8E8m0
                                              : ExpertFormat::kUnknown;
    case DType::kBF16:
      return ExpertFormat::kBf16;
    default:
      return ExpertFormat::kUnknown;
  }
}

// "layers.12." or "model.layers.12." -> 12; -1 for other names.
std::int64_t layer_of(std::string_view name) {
  if (starts_with(name, "model.")) name.remove_prefix(6);
  if (!starts_with(name, "layers.")) return -1;
  name.remove_prefix(7);
  std::int64_t layer = -1;
  std::from_chars(name.data(), name.data() + name.size(), layer);
  return layer;
}

void count_tensors(const TensorTable& table, Identification& out) {
  std::int64_t e8m0 = 0;
  std::int64_t f32 = 0;
  for (const TensorInfo& tensor : table.tensors()) {
    const std::string_view name = tensor.name;
    out.layers = std::max(out.layers, layer_of(name) + 1);
    const bool expert = name.find(".experts.") != std::string_view::npos;
    const bool draft = starts_with(name, "mtp.");
    if (expert) {
      const bool fused = ends_with(name, "gate_up_proj") || ends_with(name, "down_proj");
      if (fused || ends_with(name, ".weight") || ends_with(name, ".weight_packed")) {
        // A fused tensor stands for one (down) or two (gate and up) matrices per expert.
        const std::int64_t matrices =
            !fused || tensor.shape.empty() ? 1 : tensor.shape[0] * (ends_with(name, "gate_up_proj") ? 2 : 1);
        auto& histogram = draft ? out.draft_experts : out.backbone_experts;
        histogram[index_of(expert_format_of(table, tensor))] += matrices;
      }
    } else if (tensor.dtype == DType::kF8E4M3 && ends_with(name, ".weight")) {
      const TensorInfo* scale = scale_of(table, name);
      if (scale != nullptr) (scale->dtype == DType::kF32 ? f32 : e8m0) += 1;
    }
  }
  out.dense_scale = e8m0 > 0 && f32 > 0 ? DenseScale::kMixed
                    : e8m0 > 0          ? DenseScale::kE8M0
                    : f32 > 0           ? DenseScale::kF32
                                        : DenseScale::kNone;
  const auto most = std::max_element(out.backbone_experts.begin(), out.backbone_experts.end());
  if (*most > 0) out.expert_format = static_cast<ExpertFormat>(most - out.backbone_experts.begin());
  out.mixed_expert_formats = std::count_if(out.backbone_experts.begin(), out.backbone_experts.end(),
                                           [](auto n) { return n > 0; }) > 1;
}

std::string histogram_text(const ExpertHistogram& histogram) {
  std::string text;
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    if (histogram[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", histogram[i],
                        to_string(static_cast<ExpertFormat>(i)));
  }
  return text.empty() ? "none" : text;
}

std::string variant_of(const Identification& id) {
  const std::string lineage = id.head == HeadKind::kMtp      ? "preview"
                              : id.head == HeadKind::kDspark ? "0731 or DSpark"
                                                             : "without draft head";
  std::string variant;
  switch (id.expert_format) {
    case ExpertFormat::kMxfp4:
      variant = lineage;
      break;
    case ExpertFormat::kNvfp4ModelOpt:
    case ExpertFormat::kNvfp4Compressed:
      variant = fmt::format("NVFP4 ({})", lineage);
      break;
    case ExpertFormat::kFp8F32:
      variant = id.dense_scale == DenseScale::kF32 ? "Base" : "FP8 conversion";
      break;
    case ExpertFormat::kFp8E8m0:
      variant = "FP8 conversion";
      break;
    case ExpertFormat::kBf16:
      variant = "BF16 dump";
      break;
    case ExpertFormat::kUnknown:
      variant = "unknown expert format";
      break;
  }
  if (id.pruned)
    variant += fmt::format(", pruned to {} of {} experts", id.experts_per_layer, id.family_experts);
  return variant;
}

void describe_tensors(const TensorTable& table, Identification& out) {
  out.style = find_name_style(table);
  const DraftHead head = find_draft_head(table);
  out.head = head.kind;
  out.draft_stages = head.stages;
  count_tensors(table, out);
  for (const char* gate : {"layers.0.ffn.gate.weight", "model.layers.0.mlp.gate.weight"}) {
    const TensorInfo* tensor = table.find(gate);
    if (tensor != nullptr && !tensor->shape.empty()) out.experts_per_layer = tensor->shape[0];
  }
  out.pruned =
      out.family_experts > 0 && out.experts_per_layer > 0 && out.experts_per_layer < out.family_experts;

  auto& evidence = out.evidence;
  evidence.push_back(out.style ? fmt::format("layer 0's wq_a is named in the {} style", to_string(*out.style))
                               : "layer 0's wq_a has neither a native nor a transformers name");
  evidence.push_back(fmt::format("routed experts of the backbone, by dtype and scales: {}",
                                 histogram_text(out.backbone_experts)));
  if (head.kind != HeadKind::kNone) {
    evidence.push_back(fmt::format("mtp.0.{} exists: {} draft head of {} stage{}, its experts: {}",
                                   head.kind == HeadKind::kMtp ? "e_proj" : "main_proj",
                                   head.kind == HeadKind::kMtp ? "plain MTP" : "DSpark", head.stages,
                                   head.stages == 1 ? "" : "s", histogram_text(out.draft_experts)));
  } else {
    evidence.push_back("neither mtp.0.e_proj nor mtp.0.main_proj exists: no draft head");
  }
  evidence.push_back(fmt::format("scales of the dense FP8 matrices: {}", to_string(out.dense_scale)));
  evidence.push_back(
      fmt::format("layer 0's router has {} rows{}", out.experts_per_layer,
                  out.pruned ? fmt::format(" where the family publishes {}", out.family_experts) : ""));
}

// The header audit (specification 10.1): config and tensors must fit each other exactly.
void audit(std::string_view config_json, std::string_view hf_quant_json, const TensorTable& table,
           Identification& out) {
  auto refuse = [&](const Error& error) {
    out.supported = false;
    out.refusal = error.to_string();
  };
  const auto config = parse_model_config(config_json, "config.json");
  if (!config) return refuse(config.error());
  const auto quantization = parse_quantization(config_json, hf_quant_json, "config.json");
  if (!quantization) return refuse(quantization.error());
  const auto layout = resolve_layout(*config, *quantization, table);
  if (!layout) return refuse(layout.error());
  out.supported = true;
  out.evidence.push_back(fmt::format(
      "header audit: all {} tensors have their place{}", table.size(),
      layout->skipped.empty()
          ? ""
          : fmt::format(", {} of them copies under mtp.* that are not read", layout->skipped.size())));
}

// Where no config is: the two published sizes, told from names, layers and the embedding's width. Any other
// size may be another architecture's (V4.1 spells its layers alike), so it stays unknown.
ModelFamily family_by_headers(const TensorTable& table) {
  ModelFamily family{
      "unknown",
      "there is no config.json, without which nothing can run these weights; fetch it, or name one "
      "with --config"};
  if (!find_name_style(table)) return family;
  std::int64_t layers = 0;
  for (const TensorInfo& tensor : table.tensors()) layers = std::max(layers, layer_of(tensor.name) + 1);
  std::int64_t width = 0;
  for (const char* name : {"embed.weight", "model.embed_tokens.weight"}) {
    const TensorInfo* embed = table.find(name);
    if (embed != nullptr && embed->shape.size() == 2) width = embed->shape[1];
  }
  if (const char* size = published_size(width, layers); *size != '\0') family.name = size;
  return family;
}

}  // namespace

const char* to_string(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::kMxfp4:
      return "MXFP4";
    case ExpertFormat::kNvfp4ModelOpt:
      return "NVFP4 (ModelOpt)";
    case ExpertFormat::kNvfp4Compressed:
      return "NVFP4 (compressed-tensors)";
    case ExpertFormat::kFp8E8m0:
      return "FP8 with E8M0 scales";
    case ExpertFormat::kFp8F32:
      return "FP8 with F32 scales";
    case ExpertFormat::kBf16:
      return "BF16";
    case ExpertFormat::kUnknown:
      return "unknown";
  }
  return "unknown";
}

const char* to_string(DenseScale scale) {
  switch (scale) {
    case DenseScale::kNone:
      return "none";
    case DenseScale::kE8M0:
      return "E8M0";
    case DenseScale::kF32:
      return "F32";
    case DenseScale::kMixed:
      return "E8M0 and F32";
  }
  return "none";
}

const char* to_string(Confidence confidence) {
  switch (confidence) {
    case Confidence::kHigh:
      return "high";
    case Confidence::kMedium:
      return "medium";
    case Confidence::kLow:
      return "low";
  }
  return "low";
}

Identification identify(std::string_view config_json, const TensorTable& table,
                        std::string_view hf_quant_json) {
  Identification out;
  out.tensors = table.size();
  out.data_bytes = table.data_bytes();
  const auto config = parse_json_object(config_json, "config.json");
  const ModelFamily family = config_json.empty() ? family_by_headers(table)
                             : config            ? model_family(*config)
                                                 : ModelFamily{"unknown", config.error().to_string()};
  out.family = family.name;
  out.family_experts = family.name == "DeepSeek-V4-Flash" ? 256 : family.name == "DeepSeek-V4-Pro" ? 384 : 0;
  out.evidence.push_back(
      config_json.empty()
          ? fmt::format("no config: {} by the number of layers and the embedding's width", family.name)
      : family.supported() ? fmt::format("the config describes {} (model_type \"deepseek_v4\")", family.name)
                           : fmt::format("the config describes {}", family.name));
  describe_tensors(table, out);
  if (!family.supported()) {
    out.refusal = family.refusal;
    if (out.family_experts > 0) {  // everything but the config is there
      out.variant = variant_of(out);
      out.confidence = Confidence::kMedium;
      return out;
    }
    // What it is not is certain; what its tensors are was not asked.
    out.confidence = config ? Confidence::kHigh : Confidence::kLow;
    return out;
  }
  out.variant = variant_of(out);
  if (out.head == HeadKind::kDspark) {
    out.evidence.push_back(
        "0731 and the June DSpark release have the same headers; only their values differ");
  }
  audit(config_json, hf_quant_json, table, out);
  const bool known_size = out.family_experts > 0;
  const bool known_format = out.expert_format != ExpertFormat::kUnknown && !out.mixed_expert_formats;
  out.confidence = !out.supported || !known_format ? Confidence::kLow
                   : known_size                    ? Confidence::kHigh
                                                   : Confidence::kMedium;
  return out;
}

}  // namespace pivot
