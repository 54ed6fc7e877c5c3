#include "text/tokenizer/unicode_classes.h"

#include <algorithm>

namespace pivot {

UnicodeClasses::UnicodeClasses() {
  constexpr std::size_t kBlock = std::size_t{1} << kBlockBits;
  std::array<CharClass, kBlock> block;
  std::size_t run = 0;
  for (std::size_t b = 0; b < block_of_.size(); ++b) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::size_t code_point = b * kBlock + i;
      while (run + 1 < detail::kUnicodeRunCount && detail::kUnicodeRuns[run + 1] >> 3 <= code_point) ++run;
      block[i] = static_cast<CharClass>(detail::kUnicodeRuns[run] & 7);
    }
    // Equal blocks share storage; most of the 8,704 equal their predecessor, and only 242 are distinct.
    std::size_t same = 0;
    while (same < classes_.size() && !std::equal(block.begin(), block.end(), classes_.begin() + same))
      same += kBlock;
    if (same == classes_.size()) classes_.insert(classes_.end(), block.begin(), block.end());
    block_of_[b] = static_cast<std::uint16_t>(same / kBlock);
  }
}

const UnicodeClasses& UnicodeClasses::instance() {
  static const UnicodeClasses classes;
  return classes;
}

}  // namespace pivot
