// The embedded model and cases for it.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/model_weights.h"
#include "recall/attribution.h"

namespace pivot::recall {

std::shared_ptr<const ModelWeights> embedded_weights();
const Tokenizer& embedded_tokenizer();
std::vector<Case> embedded_cases(const Grid& grid);
// With the fast CPU back-end.
AttributionSubject embedded_subject();

}  // namespace pivot::recall
