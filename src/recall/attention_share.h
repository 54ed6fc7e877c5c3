// Where the attention of one query goes when nothing is left out: recomputed on the host from the rows that
// the back-end holds.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace pivot::recall {

struct AttentionShare {
  std::vector<double>
      entry;               // [visible]: probability of each compressed entry, summed over the heads looked at
  double entries = 0;      // their sum
  std::int64_t heads = 0;  // looked at: the probability of everything, window and sink included

  // Of what all entries got, and of everything, the share that the `kept` ones got.
  double kept_of_entries(const std::vector<bool>& kept) const;
  double kept_of_all(const std::vector<bool>& kept) const;
};

// First window row that any query of the span's step sees.
std::int64_t first_raw_row(const SequenceSpan& span, std::int64_t window);
// Raw rows from first_raw_row on, this step's included, [rows][head_dim].
std::vector<float> read_raw_rows(Backend& backend, const ModelConfig& config, const SequenceSpan& span,
                                 const AttentionParams& p);

// The compressed row of an entry, [head_dim]; entries are asked for in ascending order, each once.
using EntryRowFn = std::function<const float*(std::int64_t entry)>;

// `token` counts from the span's first; `row` knows at least the visible entries, `raw` are those of
// read_raw_rows; heads first_head, first_head + head_step, ... are looked at; `sinks` is [heads], on the
// host.
AttentionShare attention_share(Backend& backend, const ModelConfig& config, const SequenceSpan& span,
                               std::int32_t token, const AttentionParams& p, const EntryRowFn& row,
                               const std::vector<float>& raw, std::span<const float> sinks,
                               std::int64_t first_head, std::int64_t head_step);

// Which of `visible` entries the selection of a token kept; all of them where nothing was selected.
std::vector<bool> kept_entries(Backend& backend, const AttentionParams& p, std::int64_t token_of_step,
                               std::int64_t visible);

}  // namespace pivot::recall
