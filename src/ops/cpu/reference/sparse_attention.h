// Softmax attention over gathered rows that are keys and values at once, with a sink (specification 2.4).
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/reference/rounding.h"

namespace pivot::reference {

// The visible rows of one query in attention order: [count, dim], and regrouped for panel_dot.
class AttentionRows {
 public:
  AttentionRows(std::int64_t count, std::int64_t dim);
  float* row(std::int64_t i) { return rows_.data() + i * dim_; }
  const float* row(std::int64_t i) const { return rows_.data() + i * dim_; }
  // Call once every row is set.
  void build_panels();
  const float* panel(std::int64_t block) const;
  std::int64_t count() const { return count_; }
  std::int64_t dim() const { return dim_; }

 private:
  std::int64_t count_, dim_;
  std::vector<float> rows_, panels_;
};

// o [dim] of one head. Two passes: M = max(all logits, sink) exactly, then p = exp(l - M). The denominator
// sums the unrounded p left to right plus exp(sink - M); the value product takes p rounded to BF16. The
// published reference rounds p relative to a running maximum instead, which differs by the rounding of single
// p only.
void sparse_attention(const float* q, const AttentionRows& rows, float sink, float softmax_scale,
                      Rounding round, float* o);

}  // namespace pivot::reference
