// Packs of one row in plain C++: integer products of E2M1 weights and index keys. Included by
// kernels_portable.cpp alone.
#pragma once

#include "ops/cpu/simd/vec_portable.h"

// Written on the vectors above.
#include "ops/cpu/simd/pack_row_body.h"

namespace {

struct PackBytes {
  std::uint8_t b[32];
};
PIVOT_INLINE PackBytes pack_load_bytes(const std::uint8_t* p) {
  PackBytes bytes;
  std::memcpy(bytes.b, p, sizeof(bytes.b));
  return bytes;
}
PIVOT_INLINE void pack_store_bytes(std::uint8_t* p, const PackBytes& bytes) {
  std::memcpy(p, bytes.b, sizeof(bytes.b));
}

// 64 E2M1 codes as 2*value + 12: even columns, odd columns.
PIVOT_INLINE void pack_e2m1(const std::byte* p, std::int64_t, PackBytes out[2]) {
  constexpr std::uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  for (int i = 0; i < 32; ++i) {
    out[0].b[i] = kTable[static_cast<unsigned>(p[i]) & 15u];
    out[1].b[i] = kTable[static_cast<unsigned>(p[i]) >> 4];
  }
}

PIVOT_INLINE Pack pack_e8m0(const std::byte* p, std::int64_t) { return decode_e8m0_pair(p); }
PIVOT_INLINE void pack_e8m0_two(const std::byte* p, std::int64_t, Pack out[2]) {
  out[0] = decode_e8m0_pair(p);
  out[1] = decode_e8m0_pair(p + 2);
}
// Four E4M3 scales, two lanes each.
PIVOT_INLINE Pack pack_e4m3_scales(const std::byte* p, std::int64_t) {
  Bits top;
  for (int l = 0; l < 8; ++l)
    top[l] = static_cast<std::int32_t>(static_cast<std::uint32_t>(p[l / 2]) << 24) >> 4;
  return from_bits(top & splat_bits(0x87f00000u)) * splat(0x1p+120f);
}

// kDigits digits of 64 columns, each as even and odd columns.
template <int kDigits>
struct DigitPacks {
  std::int8_t digits[64 * kDigits];
};
template <int kDigits>
PIVOT_INLINE DigitPacks<kDigits> load_digits(const std::int8_t* digits) {
  DigitPacks<kDigits> v;
  std::memcpy(v.digits, digits, sizeof(v.digits));
  return v;
}
PIVOT_INLINE PackBits pack_repeat_bits(const std::int32_t* p) { return load_bits(p); }

// Lane i: sum over columns 8i..8i+7 of byte times (digit0 + kBase*digit1 + kBase^2*digit2), minus the offset.
template <int kDigits, int kBase>
PIVOT_INLINE PackBits digit_dot(const PackBytes& even, const PackBytes& odd, const DigitPacks<kDigits>& x,
                                PackBits offset) {
  std::int32_t products[32];
  for (int i = 0; i < 32; ++i) {
    std::int32_t a = x.digits[64 * (kDigits - 1) + i], b = x.digits[64 * (kDigits - 1) + 32 + i];
    for (int digit = kDigits - 2; digit >= 0; --digit) {
      a = a * kBase + x.digits[64 * digit + i];
      b = b * kBase + x.digits[64 * digit + 32 + i];
    }
    products[i] = even.b[i] * a + odd.b[i] * b;
  }
  Bits sums;
  for (int l = 0; l < 8; ++l)
    sums[l] = (products[4 * l] + products[4 * l + 1]) + (products[4 * l + 2] + products[4 * l + 3]);
  return sub_bits(sums, offset);
}

// ---- the same integers as words ----

// Place in the order of words (columns c mod 4 = 0, 2, 1, 3) of column `c` of 64.
PIVOT_INLINE int word_place(int c) { return 32 * (c % 2) + 16 * (c % 4 / 2) + c / 4; }
template <int kBase>
PIVOT_INLINE void words_of(const std::int8_t* digits, std::int16_t* words) {
  for (int c = 0; c < 64; ++c) {
    const int at = 32 * (c % 2) + c / 2;
    words[word_place(c)] = static_cast<std::int16_t>(digits[at] + kBase * digits[64 + at]);
  }
}
PIVOT_INLINE void high_words_of(const std::int8_t* digits, std::int16_t* words) {
  for (int c = 0; c < 64; ++c) words[word_place(c)] = digits[128 + 32 * (c % 2) + c / 2];
}
PIVOT_INLINE void pack_e2m1_words(const std::byte* p, std::int64_t, PackBytes out[4]) {
  constexpr std::int16_t kTable[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  std::int16_t words[64];
  for (int c = 0; c < 64; ++c)
    words[word_place(c)] = kTable[(static_cast<unsigned>(p[c / 2]) >> (c % 2 * 4)) & 15u];
  std::memcpy(out, words, sizeof(words));
}
struct WordPack {
  const std::int16_t* words;
};
PIVOT_INLINE WordPack load_words(const std::int16_t* words) { return {words}; }
PIVOT_INLINE PackBits word_dot(const std::uint8_t* weights, const WordPack& x) {
  std::int16_t w[64];
  std::memcpy(w, weights, sizeof(w));
  Bits sums;
  for (int l = 0; l < 8; ++l) {
    sums[l] = 0;
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 2; ++k) sums[l] += w[16 * i + 2 * l + k] * x.words[16 * i + 2 * l + k];
  }
  return sums;
}
PIVOT_INLINE PackBits join_words(PackBits low, PackBits high) { return add_bits(low, shift_left<14>(high)); }

// ---- index keys ----

PIVOT_INLINE PackBits pack_index_zero() { return index_zero(); }
PIVOT_INLINE PackBits pack_index_step(PackBits acc, const std::uint8_t* query_word, const std::int8_t* keys,
                                      std::int64_t) {
  return index_step(acc, query_word, keys);
}
PIVOT_INLINE PackBits pack_index_sum(PackBits a, PackBits b, const std::int32_t* offset, std::int64_t) {
  return sub_bits(add_bits(index_sum(a), index_sum(b)), load_bits(offset));
}

}  // namespace
