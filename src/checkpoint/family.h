// Which model family a config.json describes, and one clear sentence for every family that pivot does not
// run.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace pivot {

struct ModelFamily {
  std::string name;  // "DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "DeepSeek-V4", "DeepSeek-V4.1", "gpt-oss", ...
  std::string refusal;  // empty for the DeepSeek-V4 architecture
  bool supported() const { return refusal.empty(); }
};

// Decides by model_type, architectures and the nesting of the config (specification 1.2, 1.3, 4.6). The size
// class (Flash, Pro) comes from hidden_size and num_hidden_layers. `config` must be an object.
ModelFamily model_family(const nlohmann::json& config);

// "DeepSeek-V4-Flash" or "DeepSeek-V4-Pro" by its size; "" for any other.
const char* published_size(std::int64_t hidden_size, std::int64_t layers);

}  // namespace pivot
