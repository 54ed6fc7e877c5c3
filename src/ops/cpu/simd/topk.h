// Exact selection of the k best scores, O(n), for any distribution of scores (specification 2.6).
#pragma once

#include <cstdint>
#include <vector>

namespace pivot::simd {

// Reusable memory of select_topk.
struct TopkScratch {
  std::vector<std::uint32_t> keys;
  std::vector<std::uint32_t> histogram;
  std::vector<std::int32_t> listed;
};

// The min(n, k) best of scores[0, n) as ascending indices in selected[0, k), the rest -1; returns their
// count. Higher score first, ties by lower index, NaN below every number: the rule of reference::select_topk.
std::int32_t select_topk(const float* scores, std::int32_t n, std::int32_t k, std::int32_t* selected,
                         TopkScratch& scratch);

}  // namespace pivot::simd
