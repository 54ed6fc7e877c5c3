// Which compressed entries each ratio-4 layer's indexer chose, at the positions one asks for.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "model/taps.h"

namespace pivot::cli {

// Entries of one layer at one position, ascending.
using Selection = std::vector<std::int32_t>;

// A sink for Session::set_taps, attached before the sequence's first token: it counts the positions itself.
class SelectionProbe : public TapSink {
 public:
  // Keeps the selections at positions >= first_position.
  explicit SelectionProbe(std::int64_t first_position) : first_position_(first_position) {}

  bool wants(std::string_view name, std::int32_t layer) const override;
  void take(const Tap& tap) override;

  // layer -> position -> entries. A position at which everything visible was taken (fewer entries than
  // index_topk) has all of these.
  const std::map<std::int32_t, std::map<std::int64_t, Selection>>& selections() const { return selections_; }

 private:
  std::int64_t first_position_;
  std::int64_t step_begin_ = 0;  // position of the current step's first token
  std::int64_t step_end_ = 0;
  std::map<std::int32_t, std::map<std::int64_t, Selection>> selections_;
};

// Share of `wanted` that `found` contains; 1 for an empty `wanted`. Both ascending.
double overlap(const Selection& found, const Selection& wanted);

}  // namespace pivot::cli
