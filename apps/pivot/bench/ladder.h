// The ladder: a back-end's switches from none to all, one at a time, each rung timed and compared with the
// oracle.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/model.h"

namespace pivot::cli {

struct Numerics {
  double relative_l2 = 0;  // of all logits against the oracle's
  double largest = 0;      // difference of a logit
  std::int64_t rows = 0, same_argmax = 0;
};

struct Rung {
  std::string name;
  std::string effect;
  DecodeResult speed;
  Numerics numerics;
};

struct LadderCase {
  DecodeCase decode;
  std::vector<std::int32_t> prompt;  // token ids for the comparison, on `numerics_weights`
};

// `numerics_weights`: a small model with content, run by both back-ends.
Result<std::vector<Rung>> bench_ladder(const std::shared_ptr<Backend>& backend,
                                       const std::shared_ptr<const ModelWeights>& weights,
                                       const std::shared_ptr<const ModelWeights>& numerics_weights,
                                       const Knobs& knobs, const LadderCase& wanted);

}  // namespace pivot::cli
