#include "ops/cpu/simd/topk.h"

#include <algorithm>
#include <bit>

namespace pivot::simd {
namespace {

// Unsigned integers in the order of the scores; 0 for NaN, both zeros alike.
std::uint32_t order_key(float score) {
  const auto u = std::bit_cast<std::uint32_t>(score);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0;
  if (u == 0x80000000u) return 0x80000000u;
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

}  // namespace

// The key of the k-th best is found digit by digit (11 + 11 + 10 bits): each pass counts the digits of the
// keys that still match the prefix. No pass can overflow, however the scores are concentrated.
std::int32_t select_topk(const float* scores, std::int32_t n, std::int32_t k, std::int32_t* selected,
                         TopkScratch& scratch) {
  const std::int32_t count = std::min(n, k);
  if (n <= k) {
    for (std::int32_t i = 0; i < k; ++i) selected[i] = i < n ? i : -1;
    return count;
  }
  if (k == 0) return 0;
  scratch.keys.resize(static_cast<std::size_t>(n));
  scratch.histogram.resize(2048);
  std::uint32_t* keys = scratch.keys.data();
  for (std::int32_t i = 0; i < n; ++i) keys[i] = order_key(scores[i]);

  std::uint32_t prefix = 0;                     // digits found so far, in place
  std::uint32_t known = 0;                      // mask of those digits
  auto wanted = static_cast<std::uint32_t>(k);  // rank inside the keys that match the prefix
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    std::uint32_t* histogram = scratch.histogram.data();
    std::fill_n(histogram, std::size_t{1} << bits, 0u);
    const std::uint32_t digit_mask = (1u << bits) - 1u;
    for (std::int32_t i = 0; i < n; ++i)
      if ((keys[i] & known) == prefix) ++histogram[(keys[i] >> shift) & digit_mask];
    std::uint32_t digit = digit_mask;
    while (histogram[digit] < wanted) wanted -= histogram[digit--];
    prefix |= digit << shift;
    known |= digit_mask << shift;
  }

  // All keys above the threshold, and the first `wanted` that equal it.
  std::int32_t out = 0;
  for (std::int32_t i = 0; i < n && out < count; ++i) {
    if (keys[i] > prefix) {
      selected[out++] = i;
    } else if (keys[i] == prefix && wanted > 0) {
      --wanted;
      selected[out++] = i;
    }
  }
  return count;
}

}  // namespace pivot::simd
