#include "ops/cpu/reference/compressor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/cpu/reference/norm.h"
#include "ops/cpu/reference/rope.h"

namespace pivot::reference {

CompressorRow compressor_row(const CompressorStateView& state, std::int32_t slot, std::int32_t position) {
  float* row = state.base + slot * state.slot_floats + std::int64_t{position % state.rows} * 2 * state.width;
  return {row, row + state.width};
}

void compressor_store(const CompressorWeights& weights, const CompressorStateView& state, std::int32_t slot,
                      std::int32_t position, const float* k, const float* score) {
  const CompressorRow row = compressor_row(state, slot, position);
  const float* ape = weights.ape.data() + std::int64_t{position % weights.ratio} * state.width;
  std::copy_n(k, state.width, row.k);
  for (std::int32_t c = 0; c < state.width; ++c) row.s[c] = score[c] + ape[c];
}

void compressor_pool(const CompressorWeights& weights, const CompressorStateView& state, std::int32_t slot,
                     std::int64_t entry, float* pooled) {
  const int ratio = weights.ratio;
  const std::int64_t width = weights.width;
  const std::int64_t series = compressor_series(ratio);
  PIVOT_CHECK(state.width == series * width && state.rows >= series * ratio,
              "state [{}, {}], ratio {}, width {}", state.rows, state.width, ratio, width);
  // Slots in order: the previous block's A series (ratio 4, from entry 1 on), then the own block's last
  // series.
  std::vector<CompressorRow> slots;
  const auto first = static_cast<std::int32_t>(entry * ratio);
  if (series == 2 && entry > 0)
    for (std::int32_t p = first - ratio; p < first; ++p) slots.push_back(compressor_row(state, slot, p));
  for (std::int32_t p = first; p < first + ratio; ++p) {
    const CompressorRow row = compressor_row(state, slot, p);
    const std::int64_t own = (series - 1) * width;
    slots.push_back({row.k + own, row.s + own});
  }
  std::vector<float> weight(slots.size());
  for (std::int64_t c = 0; c < width; ++c) {
    float maximum = slots.front().s[c];
    for (const CompressorRow& row : slots) maximum = std::max(maximum, row.s[c]);
    float sum = 0.0f;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      weight[i] = std::exp(slots[i].s[c] - maximum);
      sum += weight[i];
    }
    float value = 0.0f;
    for (std::size_t i = 0; i < slots.size(); ++i) value += weight[i] / sum * slots[i].k[c];
    pooled[c] = value;
  }
}

void compressor_finish(const CompressorWeights& weights, const float* frequencies, std::int64_t rope_dims,
                       std::int64_t entry, float eps, Rounding round, float* row) {
  round.apply(row, weights.width);
  rms_norm(row, weights.norm.data(), weights.width, eps, round, row);
  const RopeAngles angles(frequencies, rope_dims / 2, static_cast<std::int32_t>(entry * weights.ratio));
  rotate(row + weights.width - rope_dims, angles, false, round);
}

}  // namespace pivot::reference
