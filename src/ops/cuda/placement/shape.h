// The weights of a configuration as shapes: every matrix and vector with its extents and format, without
// data.
#pragma once

#include "checkpoint/model_weights.h"

namespace pivot::cuda {

// In the published formats: FP8 dense, FP4 experts, BF16 compressors, router, embedding and head. The
// vectors' data pointers are null; nothing but their sizes may be used.
ModelWeights shape_weights(const ModelConfig& config);

}  // namespace pivot::cuda
