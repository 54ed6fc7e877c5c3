// The class of a character as the pre-tokenizer patterns see it: \p{L} \p{M} \p{N} \p{P} \p{S} \s, in
// Unicode 16.0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pivot {

// The six classes are disjoint and everything else is kOther (controls, format, private use, unassigned).
enum class CharClass : std::uint8_t {
  kOther = 0,
  kLetter = 1,
  kMark = 2,
  kNumber = 3,
  kPunctuation = 4,
  kSymbol = 5,
  kSpace = 6,  // White_Space
};

// A two-level table over all code points, built once from 2,324 runs (31 KiB).
class UnicodeClasses {
 public:
  static const UnicodeClasses& instance();
  CharClass of(char32_t code_point) const {
    return classes_[std::size_t{block_of_[code_point >> kBlockBits]} << kBlockBits |
                    (code_point & kBlockMask)];
  }

 private:
  static constexpr int kBlockBits = 7;
  static constexpr char32_t kBlockMask = (char32_t{1} << kBlockBits) - 1;
  UnicodeClasses();

  std::array<std::uint16_t, (0x110000 >> kBlockBits)> block_of_{};
  std::vector<CharClass> classes_;  // blocks of 128
};

namespace detail {
// Start of each run of equal class << 3 | class, ascending; a run ends where the next one starts.
inline constexpr std::size_t kUnicodeRunCount = 2324;
extern const std::array<std::uint32_t, kUnicodeRunCount> kUnicodeRuns;
}  // namespace detail

}  // namespace pivot
