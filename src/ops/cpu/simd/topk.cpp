#include "ops/cpu/simd/topk.h"

#include <algorithm>
#include <bit>

namespace pivot::simd {
namespace {

// Unsigned integers in the order of the scores; 0 for NaN, both zeros alike.
std::uint32_t order_key(float score) {
  const auto u = std::bit_cast<std::uint32_t>(score + 0.0f);  // makes one zero of the two
  const std::uint32_t key =
      u ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(u) >> 31) | 0x80000000u);
  return score == score ? key : 0;
}

// Counts from the top: the digit that holds rank `wanted` (from 1), and the rank inside it.
std::uint32_t digit_of_rank(const std::uint32_t* histogram, std::uint32_t digit, std::uint32_t& wanted) {
  while (histogram[digit] < wanted) wanted -= histogram[digit--];
  return digit;
}

}  // namespace

// The key of the k-th best is found digit by digit (11 + 11 + 10 bits). The first pass counts the top digit
// of all keys; those that reach its threshold are listed in order, and later passes look at the list alone.
// No pass can overflow, however the scores are concentrated.
std::int32_t select_topk(const float* scores, std::int32_t n, std::int32_t k, std::int32_t* selected,
                         TopkScratch& scratch) {
  const std::int32_t count = std::min(n, k);
  if (n <= k) {
    for (std::int32_t i = 0; i < k; ++i) selected[i] = i < n ? i : -1;
    return count;
  }
  if (k == 0) return 0;
  constexpr std::size_t kDigits = 2048;
  scratch.keys.resize(static_cast<std::size_t>(n));
  scratch.listed.resize(static_cast<std::size_t>(n) + 1);
  scratch.histogram.assign(2 * kDigits, 0u);
  std::uint32_t* keys = scratch.keys.data();
  std::int32_t* listed = scratch.listed.data();
  std::uint32_t* histogram = scratch.histogram.data();
  // Two histograms in turn: neighbouring scores often share a digit, and a count would wait for the one
  // before.
  for (std::int32_t i = 0; i < n; ++i) {
    keys[i] = order_key(scores[i]);
    ++histogram[(keys[i] >> 21) + static_cast<std::size_t>(i & 1) * kDigits];
  }
  for (std::size_t d = 0; d < kDigits; ++d) histogram[d] += histogram[kDigits + d];
  auto wanted = static_cast<std::uint32_t>(k);  // rank inside the keys that match the prefix
  const std::uint32_t top = digit_of_rank(histogram, kDigits - 1, wanted);
  std::int32_t size = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    listed[size] = i;
    size += keys[i] >> 21 >= top ? 1 : 0;
  }

  std::uint32_t prefix = top << 21;    // digits found so far, in place
  std::uint32_t known = 0x7ffu << 21;  // mask of those digits
  for (const auto& [shift, bits] : {std::pair{10, 11}, std::pair{0, 10}}) {
    std::fill_n(histogram, std::size_t{1} << bits, 0u);
    const std::uint32_t digit_mask = (1u << bits) - 1u;
    for (std::int32_t i = 0; i < size; ++i)
      if ((keys[listed[i]] & known) == prefix) ++histogram[(keys[listed[i]] >> shift) & digit_mask];
    prefix |= digit_of_rank(histogram, digit_mask, wanted) << shift;
    known |= digit_mask << shift;
  }

  // All keys above the threshold, and the first `wanted` that equal it.
  std::int32_t out = 0;
  for (std::int32_t i = 0; i < size && out < count; ++i) {
    const std::uint32_t key = keys[listed[i]];
    if (key > prefix) {
      selected[out++] = listed[i];
    } else if (key == prefix && wanted > 0) {
      --wanted;
      selected[out++] = listed[i];
    }
  }
  return count;
}

}  // namespace pivot::simd
