#include "ops/cpu/reference/indexer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "numeric/formats.h"
#include "ops/cpu/reference/linear.h"

namespace pivot::reference {

IndexKeys::IndexKeys(std::int64_t num_keys, std::int64_t key_dim)
    : count(num_keys),
      dim(key_dim),
      panels(static_cast<std::size_t>((num_keys + kPanelRows - 1) / kPanelRows * kPanelRows * key_dim)) {}

void IndexKeys::set(std::int64_t key, const float* values) {
  float* panel = panels.data() + key / kPanelRows * kPanelRows * dim + key % kPanelRows;
  for (std::int64_t i = 0; i < dim; ++i) panel[i * kPanelRows] = values[i];
}

void index_scores(const float* q, const float* weights, std::int64_t heads, const IndexKeys& keys,
                  std::int64_t num_scores, ScorePrecision precision, float* scores) {
  PIVOT_CHECK(num_scores <= keys.count, "{} scores of {} keys", num_scores, keys.count);
  const bool bf16 = precision == ScorePrecision::kBf16;
  for (std::int64_t first = 0; first < num_scores; first += kPanelRows) {
    const float* panel = keys.panels.data() + first * keys.dim;
    float sums[kPanelRows] = {};
    for (std::int64_t h = 0; h < heads; ++h) {
      float dots[kPanelRows];
      panel_dot(q + h * keys.dim, panel, keys.dim, dots);
      for (std::int64_t r = 0; r < kPanelRows; ++r) {
        const float dot = bf16 ? round_bf16(dots[r]) : dots[r];
        // A comparison instead of max(), so that NaN stays NaN and is ranked as such.
        const float term = weights[h] * (dot < 0.0f ? 0.0f : dot);
        sums[r] += bf16 ? round_bf16(term) : term;
      }
    }
    for (std::int64_t r = 0; r < std::min(kPanelRows, num_scores - first); ++r)
      scores[first + r] = bf16 ? round_bf16(sums[r]) : sums[r];
  }
}

std::int32_t select_topk(std::span<const float> scores, std::int32_t k, std::int32_t* selected) {
  PIVOT_CHECK(k >= 0, "k {}", k);
  const auto count =
      static_cast<std::int32_t>(std::min<std::size_t>(scores.size(), static_cast<std::size_t>(k)));
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
    if (x > y) return true;
    if (x < y) return false;
    return a < b;  // equal, or both NaN
  };
  if (count < static_cast<std::int32_t>(order.size()))
    std::nth_element(order.begin(), order.begin() + count, order.end(), before);
  std::copy_n(order.begin(), count, selected);
  std::sort(selected, selected + count);
  std::fill(selected + count, selected + k, -1);
  return count;
}

}  // namespace pivot::reference
