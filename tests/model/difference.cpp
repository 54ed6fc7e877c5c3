#include "model/difference.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pivot::test {

Difference compare(const std::vector<float>& actual, const std::vector<float>& expected, std::int64_t width) {
  PIVOT_CHECK(actual.size() == expected.size() && width > 0, "{} values against {}", actual.size(),
              expected.size());
  Difference result;
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = static_cast<double>(actual[i]) - expected[i];
    // A NaN must not disappear in a maximum.
    if (!(std::abs(difference) <= result.max_abs)) result.max_abs = std::abs(difference);
    error += difference * difference;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  result.rel_l2 = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  const std::int64_t rows = static_cast<std::int64_t>(actual.size()) / width;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* a = actual.data() + r * width;
    const float* e = expected.data() + r * width;
    const auto log_sum = [&](const float* x) {
      const double maximum = *std::max_element(x, x + width);
      double sum = 0;
      for (std::int64_t i = 0; i < width; ++i) sum += std::exp(x[i] - maximum);
      return maximum + std::log(sum);
    };
    const double log_a = log_sum(a);
    const double log_e = log_sum(e);
    for (std::int64_t i = 0; i < width; ++i)
      result.mean_kl +=
          std::exp(e[i] - log_e) * ((e[i] - log_e) - (a[i] - log_a)) / static_cast<double>(rows);
    if (std::max_element(a, a + width) - a == std::max_element(e, e + width) - e)
      result.argmax_agreement += 1.0 / static_cast<double>(rows);
  }
  return result;
}

}  // namespace pivot::test
