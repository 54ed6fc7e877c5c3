// What quantization_config (config.json) and hf_quant_config.json say about a checkpoint. Tensor dtypes
// decide how bytes are read; this text only settles what names alone cannot: whose NVFP4 scale convention a
// file follows (B08).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pivot {

// How an NVFP4 file states its second-level scale.
enum class Nvfp4Convention : std::uint8_t {
  kModelOpt,           // weight_scale_2: a multiplier
  kCompressedTensors,  // weight_global_scale: a divisor
};
const char* to_string(Nvfp4Convention convention);  // "ModelOpt", "compressed-tensors"

struct QuantizationFacts {
  bool present = false;                       // a quantization_config or an hf_quant_config.json exists
  std::string quant_method;                   // as written; empty where absent
  std::optional<Nvfp4Convention> convention;  // the one named, if any
};

// `hf_quant_json` may be empty (no such file). Fails on malformed JSON and where the two texts contradict
// each other.
Result<QuantizationFacts> parse_quantization(std::string_view config_json, std::string_view hf_quant_json,
                                             std::string_view where);

}  // namespace pivot
