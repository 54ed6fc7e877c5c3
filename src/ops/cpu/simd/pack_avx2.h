// Packs of one row on AVX2: integer products of E2M1 weights and index keys. Included by kernels_avx2.cpp
// alone.
#pragma once

#include "ops/cpu/simd/vec_avx2.h"

// Written on the vectors above.
#include "ops/cpu/simd/pack_row_body.h"

namespace {

using PackBytes = __m256i;
PIVOT_INLINE PackBytes pack_load_bytes(const std::uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
PIVOT_INLINE void pack_store_bytes(std::uint8_t* p, PackBytes b) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), b);
}

// 64 E2M1 codes of each row (`stride` bytes apart) as 2*value + 12: even columns, odd columns.
PIVOT_INLINE void pack_e2m1(const std::byte* p, std::int64_t, PackBytes out[2]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  out[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble));
  out[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
}

// E8M0 scales of 64 columns of each row: lanes 0-3 the first, 4-7 the second. 0x00 counts as zero.
PIVOT_INLINE Pack pack_e8m0(const std::byte* p, std::int64_t) { return decode_e8m0_pair(p); }
// Of two neighbouring chunks of 64.
PIVOT_INLINE void pack_e8m0_two(const std::byte* p, std::int64_t, Pack out[2]) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  const __m256i all = _mm256_set1_epi32(four);
  const __m256i first = _mm256_setr_epi8(0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1, -1,
                                         -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1);
  const __m256i second = _mm256_setr_epi8(2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 3, -1,
                                          -1, -1, 3, -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1);
  out[0] = from_bits(_mm256_slli_epi32(_mm256_shuffle_epi8(all, first), 23));
  out[1] = from_bits(_mm256_slli_epi32(_mm256_shuffle_epi8(all, second), 23));
}
// Four E4M3 scales of each row, two lanes each.
PIVOT_INLINE Pack pack_e4m3_scales(const std::byte* p, std::int64_t) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  const __m256i spread = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1,
                                          -1, 2, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 3);
  const __m256i top = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
  const __m256i keep = _mm256_set1_epi32(static_cast<int>(0x87f00000u));
  return from_bits(_mm256_and_si256(_mm256_srai_epi32(top, 4), keep)) * splat(0x1p+120f);
}

// kDigits digits of 64 columns, the same for every row, held in registers.
template <int kDigits>
struct DigitPacks {
  __m256i even[kDigits], odd[kDigits];
};
template <int kDigits>
PIVOT_INLINE DigitPacks<kDigits> load_digits(const std::int8_t* digits) {
  DigitPacks<kDigits> v;
#pragma GCC unroll 3
  for (int i = 0; i < kDigits; ++i) {
    v.even[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(digits + 64 * i));
    v.odd[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(digits + 64 * i + 32));
    asm("" : "+x"(v.even[i]), "+x"(v.odd[i]));  // loads are what the multiply loops have least of
  }
  return v;
}
PIVOT_INLINE PackBits pack_repeat_bits(const std::int32_t* p) { return load_bits(p); }

// Lane i: sum over columns 8i..8i+7 of byte times (digit0 + kBase*digit1 + kBase^2*digit2), minus the offset.
template <int kDigits, int kBase>
PIVOT_INLINE PackBits digit_dot(PackBytes even, PackBytes odd, const DigitPacks<kDigits>& x,
                                PackBits offset) {
  const auto digit = [&](int i, int weight) __attribute__((always_inline)) {
    const __m256i pairs =
        _mm256_add_epi16(_mm256_maddubs_epi16(even, x.even[i]), _mm256_maddubs_epi16(odd, x.odd[i]));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(static_cast<short>(weight)));
  };
  __m256i sum = _mm256_add_epi32(digit(0, 1), digit(1, kBase));
  if constexpr (kDigits == 3) sum = _mm256_add_epi32(sum, digit(2, kBase * kBase));
  return _mm256_sub_epi32(sum, offset);
}

// ---- the same integers as words ----

// Bytes of one digit (even or odd columns) to 16-bit words: first the even bytes, then the odd ones.
PIVOT_INLINE void widen_digit(__m256i bytes, __m256i out[2]) {
  out[0] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
  out[1] = _mm256_srai_epi16(bytes, 8);
}
// words[0..63] = digit0 + kBase * digit1: vectors of the columns c mod 4 = 0, 2, 1, 3 of each chunk of 64.
template <int kBase>
PIVOT_INLINE void words_of(const std::int8_t* digits, std::int16_t* words) {
  constexpr int kShift = kBase == 256 ? 8 : 7;
  for (int parity = 0; parity < 2; ++parity) {
    const auto digit = [&](int i) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(digits + 64 * i + 32 * parity));
    };
    __m256i low[2], high[2];
    widen_digit(digit(0), low);
    widen_digit(digit(1), high);
    for (int i = 0; i < 2; ++i)
      _mm256_store_si256(reinterpret_cast<__m256i*>(words + 32 * parity + 16 * i),
                         _mm256_add_epi16(low[i], _mm256_slli_epi16(high[i], kShift)));
  }
}
// The third digit alone.
PIVOT_INLINE void high_words_of(const std::int8_t* digits, std::int16_t* words) {
  for (int parity = 0; parity < 2; ++parity) {
    __m256i out[2];
    widen_digit(_mm256_load_si256(reinterpret_cast<const __m256i*>(digits + 128 + 32 * parity)), out);
    for (int i = 0; i < 2; ++i)
      _mm256_store_si256(reinterpret_cast<__m256i*>(words + 32 * parity + 16 * i), out[i]);
  }
}

// 64 E2M1 codes of each row as words of 2*value, in the order of words_of(): four vectors.
PIVOT_INLINE void pack_e2m1_words(const std::byte* p, std::int64_t, PackBytes out[4]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  widen_digit(_mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble)), out);
  widen_digit(_mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble)), out + 2);
}

// 64 words of an input, the same for every row.
struct WordPack {
  __m256i w[4];
};
PIVOT_INLINE WordPack load_words(const std::int16_t* words) {
  WordPack x;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x.w[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(words) + i);
    asm("" : "+x"(x.w[i]));
  }
  return x;
}
// Lane i: the exact sum over columns 8i..8i+7; `weights` lie in four vectors of kPackRows * 32 bytes.
PIVOT_INLINE PackBits word_dot(const std::uint8_t* weights, const WordPack& x) {
  const auto part = [&](int i) __attribute__((always_inline)) {
    return _mm256_madd_epi16(x.w[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(weights) + i));
  };
  return _mm256_add_epi32(_mm256_add_epi32(part(0), part(1)), _mm256_add_epi32(part(2), part(3)));
}
// low + 2^14 * high.
PIVOT_INLINE PackBits join_words(PackBits low, PackBits high) {
  return _mm256_add_epi32(low, _mm256_slli_epi32(high, 14));
}

// ---- index keys ----

PIVOT_INLINE PackBits pack_index_zero() { return index_zero(); }
// acc += four bytes of a query, the same for all keys, times the keys' bytes.
PIVOT_INLINE PackBits pack_index_step(PackBits acc, const std::uint8_t* query_word, const std::int8_t* keys,
                                      std::int64_t) {
  return index_step(acc, query_word, keys);
}
// The integers of two partial sums, minus the offset.
PIVOT_INLINE PackBits pack_index_sum(PackBits a, PackBits b, const std::int32_t* offset, std::int64_t) {
  return sub_bits(add_bits(index_sum(a), index_sum(b)), load_bits(offset));
}

}  // namespace
