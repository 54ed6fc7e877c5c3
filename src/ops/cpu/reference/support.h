// What the oracle can run, with a reason where it cannot.
#pragma once

#include "base/error.h"
#include "checkpoint/model_weights.h"
#include "ops/knobs.h"

namespace pivot::reference {

Result<> check_support(const ModelWeights& weights, const Knobs& knobs);

}  // namespace pivot::reference
