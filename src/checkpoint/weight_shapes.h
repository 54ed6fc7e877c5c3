// The weights of a configuration as shapes: every matrix and vector with its extents and format, without
// data.
#pragma once

#include "checkpoint/model_weights.h"

namespace pivot {

// In the published formats: FP8 dense, BF16 compressors, router, embedding and head; routed experts as named
// (kFP4, or kNVFP4, kFP8, kBF16 of the re-encoded checkpoints). Matrices have no codes, and the vectors' data
// pointers are null: nothing but their sizes may be used.
ModelWeights shape_weights(const ModelConfig& config, MatrixFormat experts = MatrixFormat::kFP4);

}  // namespace pivot
