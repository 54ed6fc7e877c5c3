// The shapes of DeepSeek-V4-Flash, for benchmarks and tests that need no checkpoint.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"

namespace pivot {

// config.json of the published preview checkpoint, without its draft stage. `layers` > 0 keeps the first
// layers only.
ModelConfig flash_config(std::int64_t layers = 0);

}  // namespace pivot
