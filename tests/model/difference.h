// How far two blocks of numbers are apart.
#pragma once

#include <cstdint>
#include <vector>

namespace pivot::test {

// How far `actual` is from `expected`, seen as rows of `width` values.
struct Difference {
  double max_abs = 0;
  double rel_l2 = 0;            // ||actual - expected|| / ||expected||
  double mean_kl = 0;           // of the rows' softmax, expected against actual
  double argmax_agreement = 0;  // share of rows
};
Difference compare(const std::vector<float>& actual, const std::vector<float>& expected, std::int64_t width);

}  // namespace pivot::test
