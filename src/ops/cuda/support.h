// What the CUDA back-end can run: model shapes, weight formats and knobs.
#pragma once

#include "base/error.h"
#include "checkpoint/model_weights.h"
#include "ops/knobs.h"

namespace pivot::cuda {

// kUnsupported with one sentence that names the first thing in the way.
Result<> check_support(const ModelWeights& weights, const Knobs& knobs);

}  // namespace pivot::cuda
