// What a checkpoint really is, from its config and headers alone (specification 4.6). Pure: no file is
// touched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/schema.h"

namespace pivot {

enum class ExpertFormat : std::uint8_t {
  kMxfp4,            // I8 codes + E8M0 per 32: the native format
  kNvfp4ModelOpt,    // U8 codes + E4M3 per 16 + weight_scale_2
  kNvfp4Compressed,  // U8 weight_packed + E4M3 per 16 + weight_global_scale
  kFp8E8m0,          // E4M3 + 128x128 E8M0
  kFp8F32,           // E4M3 + 128x128 F32
  kBf16,
  kUnknown,
};
inline constexpr std::size_t kNumExpertFormats = 7;
const char* to_string(ExpertFormat format);  // "MXFP4", "NVFP4 (ModelOpt)", ...

// Number of expert matrices (w1, w2, w3 counted apart) in each format.
using ExpertHistogram = std::array<std::int64_t, kNumExpertFormats>;

enum class DenseScale : std::uint8_t { kNone, kE8M0, kF32, kMixed };
const char* to_string(DenseScale scale);

enum class Confidence : std::uint8_t { kHigh, kMedium, kLow };
const char* to_string(Confidence confidence);

struct Identification {
  bool supported = false;  // pivot can load it as far as config and names tell
  std::string refusal;     // the sentence why not; empty when supported
  std::string
      family;  // "DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "DeepSeek-V4", "DeepSeek-V4.1-Flash", "gpt-oss", ...
  std::string variant;  // "preview", "0731 or DSpark", "Base", "NVFP4 (preview)", "BF16 dump", ...
  std::optional<NameStyle> style;
  ExpertHistogram backbone_experts{};
  ExpertHistogram draft_experts{};
  ExpertFormat expert_format = ExpertFormat::kUnknown;  // of most backbone experts
  bool mixed_expert_formats = false;                    // the backbone holds more than one
  DenseScale dense_scale = DenseScale::kNone;
  HeadKind head = HeadKind::kNone;
  int draft_stages = 0;
  std::int64_t layers = 0;             // counted from names
  std::int64_t experts_per_layer = 0;  // rows of layer 0's gate
  std::int64_t family_experts = 0;     // what the family publishes (256 Flash, 384 Pro); 0 if unknown
  bool pruned = false;                 // fewer experts than the family publishes
  std::size_t tensors = 0;
  std::uint64_t data_bytes = 0;
  Confidence confidence = Confidence::kLow;
  std::vector<std::string> evidence;  // one sentence per fact that led here
};

// `hf_quant_json` is the text of hf_quant_config.json, empty where there is none: early NVFP4 revisions name
// ModelOpt only there (specification 4.3).
Identification identify(std::string_view config_json, const TensorTable& table,
                        std::string_view hf_quant_json = {});

}  // namespace pivot
