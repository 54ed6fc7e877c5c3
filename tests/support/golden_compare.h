// Comparisons that golden tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace pivot::test {

inline void expect_bits_equal(std::span<const float> actual, std::span<const float> expected,
                              const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << what << " at " << i << ": " << actual[i] << " and " << expected[i];
}

inline void expect_close(std::span<const float> actual, std::span<const float> expected, double bound,
                         const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i]) && actual[i] == expected[i]) continue;
    ASSERT_LE(std::fabs(static_cast<double>(actual[i]) - expected[i]), bound)
        << what << " at " << i << ": " << actual[i] << " and " << expected[i];
  }
}

// BF16 values at most `ulps` codes apart (codes counted through zero).
inline void expect_bf16_close(std::span<const float> actual, std::span<const float> expected, int ulps,
                              const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const auto ordered = [](float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const auto magnitude = static_cast<std::int64_t>((bits & 0x7fffffffu) >> 16);
    return bits >> 31 ? -magnitude : magnitude;
  };
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_LE(std::abs(ordered(actual[i]) - ordered(expected[i])), ulps)
        << what << " at " << i << ": " << actual[i] << " and " << expected[i];
}

inline double relative_l2(std::span<const float> actual, std::span<const float> expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(actual[i]) - expected[i];
    difference += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

inline double max_abs(std::span<const float> x) {
  double maximum = 0;
  for (const float value : x) maximum = std::max(maximum, std::fabs(static_cast<double>(value)));
  return maximum;
}

// Share of exactly equal values.
inline double equal_share(std::span<const float> actual, std::span<const float> expected) {
  std::size_t equal = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) equal += actual[i] == expected[i] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(expected.size());
}

// Same experts with the same weights, whatever their order.
inline void expect_same_routing(const std::int32_t* expected_ids, const float* expected_weights,
                                const std::int32_t* ids, const float* weights, int count, double bound) {
  std::map<std::int32_t, float> expected;
  for (int i = 0; i < count; ++i) expected[expected_ids[i]] = expected_weights[i];
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(expected.contains(ids[i])) << "expert " << ids[i];
    ASSERT_NEAR(weights[i], expected[ids[i]], bound) << "expert " << ids[i];
  }
}

}  // namespace pivot::test
