#include "recall/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace pivot::recall {
namespace {

std::vector<std::string_view> code_points(std::string_view text) {
  std::vector<std::string_view> points;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 1;
    while (i + length < text.size() && (static_cast<unsigned char>(text[i + length]) & 0xc0u) == 0x80u)
      ++length;
    points.push_back(text.substr(i, length));
    i += length;
  }
  return points;
}

}  // namespace

Interval wilson_interval(std::int64_t successes, std::int64_t trials, double z) {
  if (trials <= 0) return {0, 1};
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double center = (p + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z / (1 + z * z / n) * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  // The bounds at 0 and n successes are exactly 0 and 1; rounding must not hide it.
  return {successes == 0 ? 0.0 : std::max(0.0, center - half),
          successes == trials ? 1.0 : std::min(1.0, center + half)};
}

void PairedCounts::add(bool first, bool second) {
  ++(first ? (second ? both_right : only_first) : (second ? only_second : both_wrong));
}

double PairedCounts::difference() const {
  return total() == 0 ? 0 : static_cast<double>(only_second - only_first) / static_cast<double>(total());
}

double mcnemar_exact(const PairedCounts& pairs) {
  const std::int64_t discordant = pairs.only_first + pairs.only_second;
  if (discordant == 0) return 1;
  const std::int64_t fewer = std::min(pairs.only_first, pairs.only_second);
  // P(X <= fewer) for X ~ Binomial(discordant, 1/2), in logarithms: discordant may be thousands.
  const auto n = static_cast<double>(discordant);
  double tail = 0;
  for (std::int64_t i = 0; i <= fewer; ++i) {
    const auto k = static_cast<double>(i);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) - n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

Interval paired_interval(const PairedCounts& pairs) {
  const std::int64_t total = pairs.total();
  if (total == 0) return {-1, 1};
  const auto n = static_cast<double>(total);
  const std::int64_t first = pairs.both_right + pairs.only_first;
  const std::int64_t second = pairs.both_right + pairs.only_second;
  const Interval a = wilson_interval(first, total);
  const Interval b = wilson_interval(second, total);
  const double p1 = static_cast<double>(first) / n;
  const double p2 = static_cast<double>(second) / n;
  // The correlation of the two answers, with Newcombe's continuity correction.
  const auto e = static_cast<double>(pairs.both_right), f = static_cast<double>(pairs.only_first);
  const auto g = static_cast<double>(pairs.only_second), h = static_cast<double>(pairs.both_wrong);
  const double product = (e + f) * (g + h) * (e + g) * (f + h);
  double phi = 0;
  if (product > 0) {
    const double determinant = e * h - f * g;
    const double corrected = determinant > n / 2 ? determinant - n / 2 : (determinant >= 0 ? 0 : determinant);
    phi = corrected / std::sqrt(product);
  }
  const double d = p2 - p1;
  const auto part = [phi](double x, double y) {
    return std::sqrt(std::max(0.0, x * x - 2 * phi * x * y + y * y));
  };
  return {std::max(-1.0, d - part(p2 - b.low, a.high - p1)),
          std::min(1.0, d + part(b.high - p2, p1 - a.low))};
}

double edit_similarity(std::string_view a, std::string_view b) {
  const std::vector<std::string_view> x = code_points(a), y = code_points(b);
  const std::size_t longer = std::max(x.size(), y.size());
  if (longer == 0) return 1;
  std::vector<std::size_t> row(y.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= x.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= y.size(); ++j) {
      const std::size_t replaced = diagonal + (x[i - 1] == y[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return 1 - static_cast<double>(row.back()) / static_cast<double>(longer);
}

}  // namespace pivot::recall
