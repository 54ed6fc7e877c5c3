// The random numbers of sampling: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011), one definition for the host and the device.
#pragma once

#include <cstdint>

namespace pivot {

// Uniform in [0, 1) with 53 bits, a function of (seed, counter) alone.
constexpr double philox_uniform(std::uint64_t seed, std::uint64_t counter) {
  std::uint32_t x0 = static_cast<std::uint32_t>(counter), x1 = static_cast<std::uint32_t>(counter >> 32),
                x2 = 0, x3 = 0;
  std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xd2511f53u} * x0;
    const std::uint64_t b = std::uint64_t{0xcd9e8d57u} * x2;
    x0 = static_cast<std::uint32_t>(b >> 32) ^ x1 ^ key0;
    x1 = static_cast<std::uint32_t>(b);
    x2 = static_cast<std::uint32_t>(a >> 32) ^ x3 ^ key1;
    x3 = static_cast<std::uint32_t>(a);
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return static_cast<double>((std::uint64_t{x0} << 32 | x1) >> 11) * 0x1p-53;
}

}  // namespace pivot
