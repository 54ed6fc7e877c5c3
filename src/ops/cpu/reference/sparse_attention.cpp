#include "ops/cpu/reference/sparse_attention.h"

#include <algorithm>
#include <cmath>

#include "numeric/formats.h"
#include "ops/cpu/reference/linear.h"

namespace pivot::reference {

AttentionRows::AttentionRows(std::int64_t count, std::int64_t dim)
    : count_(count), dim_(dim), rows_(static_cast<std::size_t>(count * dim)) {}

void AttentionRows::build_panels() {
  const std::int64_t blocks = (count_ + kPanelRows - 1) / kPanelRows;
  panels_.assign(static_cast<std::size_t>(blocks * kPanelRows * dim_), 0.0f);
  for (std::int64_t i = 0; i < count_; ++i) {
    float* panel = panels_.data() + i / kPanelRows * kPanelRows * dim_ + i % kPanelRows;
    for (std::int64_t c = 0; c < dim_; ++c)
      panel[c * kPanelRows] = rows_[static_cast<std::size_t>(i * dim_ + c)];
  }
}

const float* AttentionRows::panel(std::int64_t block) const {
  return panels_.data() + block * kPanelRows * dim_;
}

void sparse_attention(const float* q, const AttentionRows& rows, float sink, float softmax_scale,
                      Rounding round, float* o) {
  const std::int64_t count = rows.count();
  const std::int64_t dim = rows.dim();
  std::vector<float> p(static_cast<std::size_t>((count + kPanelRows - 1) / kPanelRows * kPanelRows));
  float maximum = sink;
  for (std::int64_t first = 0; first < count; first += kPanelRows) {
    float* logits = p.data() + first;
    panel_dot(q, rows.panel(first / kPanelRows), dim, logits);
    for (std::int64_t r = 0; r < std::min(kPanelRows, count - first); ++r) {
      logits[r] *= softmax_scale;
      maximum = std::max(maximum, logits[r]);
    }
  }
  std::fill_n(o, dim, 0.0f);
  float denominator = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) {
    const float weight = std::exp(p[static_cast<std::size_t>(i)] - maximum);
    denominator += weight;
    const float rounded = round(weight);
    const float* value = rows.row(i);
    for (std::int64_t c = 0; c < dim; ++c) o[c] += rounded * value[c];
  }
  denominator += std::exp(sink - maximum);
  for (std::int64_t c = 0; c < dim; ++c) o[c] = round(o[c] / denominator);
}

}  // namespace pivot::reference
