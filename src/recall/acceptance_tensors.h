// Checks of specification section 10 that look at the checkpoint's own tensors and settings, with the
// oracle's arithmetic against independent computations in double. Pure functions.
#pragma once

#include <string>
#include <utility>

#include "checkpoint/model_weights.h"
#include "recall/acceptance.h"

namespace pivot::recall {

struct Finding {
  Outcome outcome = Outcome::kPass;
  std::string detail;
};
inline Finding pass(std::string detail) { return {Outcome::kPass, std::move(detail)}; }
inline Finding failed(std::string detail) { return {Outcome::kFail, std::move(detail)}; }
inline Finding skipped(std::string why) { return {Outcome::kSkipped, std::move(why)}; }

// Number 2: rows of real experts against an independent decoder; no NaN scale.
Finding check_fp4_decoding(const ModelWeights& weights);
// Number 3: exact powers of two, the next value above, the table of ties.
Finding check_scale_formula(const ModelWeights& weights);
// Number 5: the combination matrices of every layer.
Finding check_sinkhorn(const ModelWeights& weights);
// Number 6: the published table, the inverse, position 1,000,000.
Finding check_rope(const ModelWeights& weights);
// Number 8: H(H(x)) = x.
Finding check_hadamard(const ModelWeights& weights);
// Number 11: choice and weights of drawn tokens in every layer; rows of the hash tables.
Finding check_router(const ModelWeights& weights);

}  // namespace pivot::recall
