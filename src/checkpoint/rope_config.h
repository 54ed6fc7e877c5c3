// The rotary part of config.json in both spellings that exist (fault B25).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/model_config.h"
#include "checkpoint/problems.h"

namespace pivot {

// Reads rope_theta, compress_rope_theta, rope_scaling (the published spelling) and rope_parameters {"main",
// "compress"} (newer transformers). Both may be present if they agree. `has_compressed_layers`: YaRN must be
// stated somewhere.
void read_rope_config(const nlohmann::json& config, bool has_compressed_layers, RopeConfig& main,
                      RopeConfig& compress, Problems& problems);

}  // namespace pivot
