// Seeded draws that are the same on every machine, which <random>'s distributions do not promise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace pivot::recall {

// SplitMix64 (Steele, Lea, Flood 2014).
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, limit); the bias of the remainder is below 2^-40 for the small limits used here.
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(values.size()))];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = 0; i + 1 < values.size(); ++i)
      std::swap(values[i], values[i + static_cast<std::size_t>(below(values.size() - i))]);
  }

 private:
  std::uint64_t state_;
};

// FNV-1a, to mix words and numbers into a seed.
inline std::uint64_t mix_seed(std::uint64_t seed, std::string_view word) {
  for (const char c : word) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return seed;
}
inline std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t number) {
  return Draws(seed ^ (number * 0xd6e8feb86659fd93ull)).next();
}

}  // namespace pivot::recall
