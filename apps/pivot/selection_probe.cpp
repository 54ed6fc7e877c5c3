#include "selection_probe.h"

#include <algorithm>
#include <iterator>

namespace pivot::cli {

// gate_margin of layer 0 has one number a token and comes before any selection of the step: it tells the
// step's length.
bool SelectionProbe::wants(std::string_view name, std::int32_t layer) const {
  return name == "index_topk" || (name == "gate_margin" && layer == 0);
}

void SelectionProbe::take(const Tap& tap) {
  if (tap.name == "gate_margin") {
    step_begin_ = step_end_;
    step_end_ += tap.shape[0];
    return;
  }
  const std::int64_t tokens = tap.shape[0];
  const std::int64_t topk = tap.shape[1];
  for (std::int64_t t = std::max<std::int64_t>(0, first_position_ - step_begin_); t < tokens; ++t) {
    Selection& selection = selections_[tap.layer][step_begin_ + t];
    for (const std::int32_t entry :
         tap.ids.subspan(static_cast<std::size_t>(t * topk), static_cast<std::size_t>(topk))) {
      if (entry >= 0) selection.push_back(entry);
    }
    std::sort(selection.begin(), selection.end());
  }
}

double overlap(const Selection& found, const Selection& wanted) {
  if (wanted.empty()) return 1;
  Selection common;
  std::set_intersection(found.begin(), found.end(), wanted.begin(), wanted.end(), std::back_inserter(common));
  return static_cast<double>(common.size()) / static_cast<double>(wanted.size());
}

}  // namespace pivot::cli
