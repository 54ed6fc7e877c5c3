#include "ops/cpu/simd/context.h"

#include <algorithm>
#include <cmath>

namespace pivot::simd {

void RopeTable::prepare(const float* frequencies, std::int64_t pairs, const std::int32_t* positions,
                        std::int64_t count, ThreadPool& pool) {
  const auto same = [](const auto& held, const auto* given, std::int64_t size) {
    return static_cast<std::int64_t>(held.size()) == size && std::equal(held.begin(), held.end(), given);
  };
  if (pairs == pairs_ && same(frequencies_, frequencies, pairs) && same(positions_, positions, count)) return;
  pairs_ = pairs;
  frequencies_.assign(frequencies, frequencies + pairs);
  positions_.assign(positions, positions + count);
  cos_.resize(static_cast<std::size_t>(count * pairs));
  sin_.resize(static_cast<std::size_t>(count * pairs));
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t i = 0; i < pairs; ++i) {
        // The product is rounded to fp32 before the sine (specification 2.3).
        const float angle = static_cast<float>(positions[t]) * frequencies[i];
        const auto at = static_cast<std::size_t>(t * pairs + i);
        cos_[at] = std::cos(angle);
        sin_[at] = std::sin(angle);
      }
  };
  if (count < 8)
    work(0, count);
  else
    pool.for_ranges(count, 1, work);
}

}  // namespace pivot::simd
