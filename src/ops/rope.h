// Rotary frequencies of a layer kind (specification 2.3): plain or YaRN-interpolated, computed once on the
// host.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace pivot {

// w_i for i in [0, rope_dims/2), fp32. The values of specification 2.3 / bugs F6 are its test.
std::vector<float> rope_frequencies(const RopeConfig& rope, std::int64_t rope_dims);

}  // namespace pivot
