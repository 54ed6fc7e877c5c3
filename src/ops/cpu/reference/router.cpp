#include "ops/cpu/reference/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "ops/cpu/reference/indexer.h"

namespace pivot::reference {

float sqrt_softplus(float z) { return std::sqrt(z > 20.0f ? z : std::log1p(std::exp(z))); }

float route_token(std::span<const float> z, std::span<const float> bias, std::span<const std::int32_t> table,
                  const RouterRule& rule, std::int32_t* ids, float* weights) {
  const int chosen = rule.experts_per_token;
  PIVOT_CHECK(chosen > 0 && static_cast<std::size_t>(chosen) <= z.size(), "{} of {} experts", chosen,
              z.size());
  std::vector<float> p(z.size());
  std::transform(z.begin(), z.end(), p.begin(), sqrt_softplus);

  float margin = std::numeric_limits<float>::infinity();
  if (!table.empty()) {
    PIVOT_CHECK(table.size() == static_cast<std::size_t>(chosen), "table row of {} ids for {}", table.size(),
                chosen);
    std::copy(table.begin(), table.end(), ids);
    std::sort(ids, ids + chosen);
    PIVOT_CHECK(ids[0] >= 0 && static_cast<std::size_t>(ids[chosen - 1]) < z.size(), "ids {}..{}", ids[0],
                ids[chosen - 1]);
  } else {
    PIVOT_CHECK(bias.size() == z.size(), "{} biases for {} experts", bias.size(), z.size());
    std::vector<float> selection(z.size());
    for (std::size_t e = 0; e < z.size(); ++e) selection[e] = p[e] + bias[e];
    select_topk(selection, chosen, ids);
    float last = std::numeric_limits<float>::infinity();
    float next = -std::numeric_limits<float>::infinity();
    for (std::size_t e = 0; e < selection.size(); ++e) {
      if (std::binary_search(ids, ids + chosen, static_cast<std::int32_t>(e)))
        last = std::min(last, selection[e]);
      else
        next = std::max(next, selection[e]);
    }
    margin = last - next;
  }

  float sum = 0.0f;
  for (int i = 0; i < chosen; ++i) sum += p[static_cast<std::size_t>(ids[i])];
  for (int i = 0; i < chosen; ++i) {
    const float weight = p[static_cast<std::size_t>(ids[i])];
    weights[i] = (rule.normalize ? weight / sum : weight) * rule.route_scale;
  }
  return margin;
}

}  // namespace pivot::reference
