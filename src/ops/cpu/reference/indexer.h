// Index scores and the selection (specification 2.6).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/knobs.h"

namespace pivot::reference {

// Keys of entries [0, count) regrouped for panel_dot: panel b holds keys b*32 .. b*32+31, [dim][32], zero
// beyond count.
struct IndexKeys {
  std::int64_t count = 0;
  std::int64_t dim = 0;
  std::vector<float> panels;

  IndexKeys(std::int64_t num_keys, std::int64_t key_dim);
  void set(std::int64_t key, const float* values);
};

// score[j] = sum_h weights[h] * relu(q[h] . key_j) for j < num_scores; heads left to right in fp32. kBf16
// rounds the dot, the weighted term and the sum as the published reference does. q: [heads, dim].
void index_scores(const float* q, const float* weights, std::int64_t heads, const IndexKeys& keys,
                  std::int64_t num_scores, ScorePrecision precision, float* scores);

// The min(scores.size(), k) best entries, ascending; the rest of selected[k] is -1. Higher score first, ties
// by lower index, NaN below every number. Returns the count.
std::int32_t select_topk(std::span<const float> scores, std::int32_t k, std::int32_t* selected);

}  // namespace pivot::reference
