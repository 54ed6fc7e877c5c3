#include "checkpoint/family.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/problems.h"

namespace pivot {
namespace {

struct Foreign {
  std::string_view model_type;  // exact, or a prefix where it ends in '*'
  std::string_view name;
  std::string_view what;  // why it cannot run on a V4 engine
};

constexpr std::array<Foreign, 11> kForeign = {{
    {"deepseek_v41*", "DeepSeek-V4.1",
     "a different architecture in spite of its name (its own hyper-connection order, compression ratios "
     "0/1/2, shared "
     "indexers, n-gram memory tables, 32x32 weight blocks)"},
    {"deepseek_v4_vision*", "DeepSeek-V4 with vision", "a model with an image encoder"},
    {"deepseek_v32*", "DeepSeek-V3.2",
     "a 128-head MLA model without window layers, compressors or hyper-connections"},
    {"deepseek_v3*", "DeepSeek-V3", "an MLA model without compressed attention"},
    {"deepseek_v2*", "DeepSeek-V2", "an MLA model of 2024 with softmax routing and no compressed attention"},
    {"qwen3_moe*", "Qwen3-MoE", "a grouped-query attention model of another vendor"},
    {"qwen*", "Qwen", "a model of another vendor"},
    {"gpt_oss*", "gpt-oss", "a grouped-query attention model of another vendor with biased projections"},
    {"llama*", "Llama", "a dense model of another vendor"},
    {"mixtral*", "Mixtral", "a model of another vendor"},
    {"kimi*", "Kimi", "a model of another vendor"},
}};

const Foreign* find_foreign(std::string_view model_type) {
  for (const Foreign& foreign : kForeign) {
    const std::string_view stem = foreign.model_type.substr(0, foreign.model_type.size() - 1);
    if (model_type.substr(0, stem.size()) == stem) return &foreign;
  }
  return nullptr;
}

std::string refusal_text(std::string_view name, std::string_view model_type, std::string_view what) {
  return fmt::format(
      "this is {} (model_type {}), {}; pivot runs only the DeepSeek-V4 architecture (model_type "
      "\"deepseek_v4\", "
      "for example DeepSeek-V4-Flash), so choose such a checkpoint",
      name, quote_name(model_type), what);
}

std::string string_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t integer_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

}  // namespace

ModelFamily model_family(const nlohmann::json& config) {
  const std::string model_type = string_at(config, "model_type");
  std::string architecture;
  if (const auto found = config.find("architectures"); found != config.end() && found->is_array()) {
    for (const auto& entry : *found) {
      if (entry.is_string()) architecture = entry.get<std::string>();
    }
  }
  const bool nested = config.contains("text_config");
  if (model_type.rfind("deepseek_v41", 0) == 0 || architecture.rfind("DeepseekV41", 0) == 0) {
    return {"DeepSeek-V4.1", refusal_text("DeepSeek-V4.1", model_type, kForeign[0].what)};
  }
  if (nested) {
    return {"a multimodal model", refusal_text("a multimodal model", model_type,
                                               "whose text model is nested under \"text_config\"")};
  }
  if (config.contains("vision_config")) {
    return {"DeepSeek-V4 with vision", refusal_text("a model with vision", model_type, kForeign[1].what)};
  }
  if (model_type.empty()) {
    if (config.contains("n_layers") && config.contains("dim")) {
      return {"DeepSeek run config",
              "this is the run config of DeepSeek's own inference code (keys \"dim\", \"n_layers\"); pivot "
              "reads the "
              "config.json at the top of the checkpoint folder, so give that one"};
    }
    return {"unknown",
            "the config has no \"model_type\"; \"deepseek_v4\" was wanted, so check that this is the "
            "config.json of a "
            "DeepSeek-V4 checkpoint"};
  }
  if (model_type != "deepseek_v4") {
    if (const Foreign* foreign = find_foreign(model_type)) {
      return {std::string(foreign->name), refusal_text(foreign->name, model_type, foreign->what)};
    }
    return {"unknown", refusal_text("an unknown model", model_type, "which pivot has no code for")};
  }
  if (!architecture.empty() && architecture != "DeepseekV4ForCausalLM") {
    return {"unknown", refusal_text("a model of class " + quote_name(architecture), model_type,
                                    "while class \"DeepseekV4ForCausalLM\" was wanted")};
  }
  const std::int64_t width = integer_at(config, "hidden_size");
  const std::int64_t layers = integer_at(config, "num_hidden_layers");
  const std::string size = published_size(width, layers);
  return {size.empty() ? "DeepSeek-V4" : size, ""};
}

const char* published_size(std::int64_t hidden_size, std::int64_t layers) {
  if (hidden_size == 4096 && layers == 43) return "DeepSeek-V4-Flash";
  if (hidden_size == 7168 && layers == 61) return "DeepSeek-V4-Pro";
  return "";
}

}  // namespace pivot
