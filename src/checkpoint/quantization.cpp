#include "checkpoint/quantization.h"

#include <nlohmann/json.hpp>

#include "checkpoint/json_text.h"
#include "checkpoint/problems.h"

namespace pivot {
namespace {

bool contains_word(const nlohmann::json& object, const char* key, std::string_view word) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return false;
  std::string text = found->get<std::string>();
  for (char& c : text) c = c == '_' ? '-' : static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text.find(word) != std::string::npos;
}

// The convention that one quantization object names. ModelOpt writes its producer, a quant_method of its own
// or the NVFP4 algorithm names; compressed-tensors writes its method or its packing format.
std::optional<Nvfp4Convention> named_convention(const nlohmann::json& object) {
  if (contains_word(object, "quant_method", "compressed-tensors") ||
      contains_word(object, "format", "nvfp4-pack")) {
    return Nvfp4Convention::kCompressedTensors;
  }
  if (contains_word(object, "quant_method", "modelopt") || contains_word(object, "quant_algo", "nvfp4") ||
      contains_word(object, "moe_quant_algo", "nvfp4")) {
    return Nvfp4Convention::kModelOpt;
  }
  if (const auto producer = object.find("producer"); producer != object.end() && producer->is_object()) {
    if (contains_word(*producer, "name", "modelopt")) return Nvfp4Convention::kModelOpt;
    if (contains_word(*producer, "name", "compressed-tensors")) return Nvfp4Convention::kCompressedTensors;
  }
  return std::nullopt;
}

}  // namespace

const char* to_string(Nvfp4Convention convention) {
  return convention == Nvfp4Convention::kModelOpt ? "ModelOpt" : "compressed-tensors";
}

Result<QuantizationFacts> parse_quantization(std::string_view config_json, std::string_view hf_quant_json,
                                             std::string_view where) {
  QuantizationFacts facts;
  PIVOT_TRY(const nlohmann::json config, parse_json_object(config_json, where));
  if (const auto found = config.find("quantization_config"); found != config.end() && found->is_object()) {
    facts.present = true;
    if (const auto method = found->find("quant_method"); method != found->end() && method->is_string()) {
      facts.quant_method = method->get<std::string>();
    }
    facts.convention = named_convention(*found);
  }
  if (hf_quant_json.empty()) return facts;
  PIVOT_TRY(const nlohmann::json hf_quant, parse_json_object(hf_quant_json, "hf_quant_config.json"));
  facts.present = true;
  std::optional<Nvfp4Convention> second = named_convention(hf_quant);
  if (const auto inner = hf_quant.find("quantization");
      !second && inner != hf_quant.end() && inner->is_object()) {
    second = named_convention(*inner);
  }
  if (facts.convention && second && *facts.convention != *second) {
    return fail(ErrorCode::kInvalidData,
                "{} names the {} convention for NVFP4 scales and hf_quant_config.json the {} one; they "
                "contradict each "
                "other, so remove the file that does not belong to these weights",
                where, to_string(*facts.convention), to_string(*second));
  }
  if (!facts.convention) facts.convention = second;
  return facts;
}

}  // namespace pivot
