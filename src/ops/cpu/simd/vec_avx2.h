// Eight fp32 lanes on AVX2 + FMA. Included by kernels_avx2.cpp, and by kernels_avx512.cpp for what works on
// one row.
//
// Arithmetic (+ - * /) is the compiler's own on __m256; what has no operator is here.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

#define PIVOT_INLINE static inline __attribute__((always_inline))

using Vec = __m256;
using Bits = __m256i;

PIVOT_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
// load() into a register: keeps the compiler from folding one load into several multiply-adds that share it.
PIVOT_INLINE Vec load_once(const float* p) {
  Vec v = _mm256_loadu_ps(p);
  asm("" : "+x"(v));
  return v;
}
PIVOT_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
PIVOT_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
PIVOT_INLINE Vec zero() { return _mm256_setzero_ps(); }
PIVOT_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// The second operand where either is NaN, as the instruction defines it.
PIVOT_INLINE Vec max_or_second(Vec a, Vec b) { return _mm256_max_ps(a, b); }
PIVOT_INLINE Vec min_or_second(Vec a, Vec b) { return _mm256_min_ps(a, b); }
PIVOT_INLINE Vec square_root(Vec v) { return _mm256_sqrt_ps(v); }

PIVOT_INLINE Bits bits(Vec v) { return _mm256_castps_si256(v); }
PIVOT_INLINE Vec from_bits(Bits b) { return _mm256_castsi256_ps(b); }
PIVOT_INLINE Bits splat_bits(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
PIVOT_INLINE Bits bit_and(Bits a, Bits b) { return _mm256_and_si256(a, b); }
PIVOT_INLINE Bits bit_or(Bits a, Bits b) { return _mm256_or_si256(a, b); }
PIVOT_INLINE Bits add_bits(Bits a, Bits b) { return _mm256_add_epi32(a, b); }
PIVOT_INLINE Bits sub_bits(Bits a, Bits b) { return _mm256_sub_epi32(a, b); }
template <int kCount>
PIVOT_INLINE Bits shift_left(Bits a) {
  return _mm256_slli_epi32(a, kCount);
}
template <int kCount>
PIVOT_INLINE Bits shift_right(Bits a) {
  return _mm256_srli_epi32(a, kCount);
}
PIVOT_INLINE Vec to_float(Bits a) { return _mm256_cvtepi32_ps(a); }
PIVOT_INLINE Bits to_int(Vec a) { return _mm256_cvtps_epi32(a); }  // nearest even

// Masks: all ones or zero per lane; comparisons with NaN are false, except is_nan.
PIVOT_INLINE Vec less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
PIVOT_INLINE Vec is_nan(Vec a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
PIVOT_INLINE Vec select(Vec mask, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, mask); }
PIVOT_INLINE int mask_bits(Vec mask) { return _mm256_movemask_ps(mask); }

// Sum of the lanes as ((0+1)+(2+3)) + ((4+5)+(6+7)); sum4 does four vectors at once in the same order.
PIVOT_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
  const Vec pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}
PIVOT_INLINE float sum(Vec a) {
  float out[4];
  sum4(a, a, a, a, out);
  return out[0];
}

// Lanes 0-3: the sums of a[0..3], lanes 4-7: those of b[0..3].
PIVOT_INLINE Vec sum8(const Vec a[4], const Vec b[4]) {
  const Vec p = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  const Vec q = _mm256_hadd_ps(_mm256_hadd_ps(b[0], b[1]), _mm256_hadd_ps(b[2], b[3]));
  return _mm256_permute2f128_ps(p, q, 0x20) + _mm256_permute2f128_ps(p, q, 0x31);
}
PIVOT_INLINE void store_halves(float* low, float* high, Vec v) {
  _mm_storeu_ps(low, _mm256_castps256_ps128(v));
  _mm_storeu_ps(high, _mm256_extractf128_ps(v, 1));
}

// out[v]: lanes 0-3 are low[v], low[4+v], low[8+v], low[12+v], lanes 4-7 the same of `high`.
PIVOT_INLINE void transpose4(const float* low, const float* high, Vec out[4]) {
  const auto both = [&](int at) { return _mm256_set_m128(_mm_loadu_ps(high + at), _mm_loadu_ps(low + at)); };
  const Vec r0 = both(0), r1 = both(4), r2 = both(8), r3 = both(12);
  const Vec a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
  const Vec c = _mm256_unpacklo_ps(r2, r3), d = _mm256_unpackhi_ps(r2, r3);
  out[0] = _mm256_shuffle_ps(a, c, 0x44);
  out[1] = _mm256_shuffle_ps(a, c, 0xee);
  out[2] = _mm256_shuffle_ps(b, d, 0x44);
  out[3] = _mm256_shuffle_ps(b, d, 0xee);
}
// Even and odd elements of 16.
PIVOT_INLINE void split_pairs(Vec a, Vec b, Vec out[2]) {
  const auto in_order = [](Vec v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
  };
  out[0] = in_order(_mm256_shuffle_ps(a, b, 0x88));
  out[1] = in_order(_mm256_shuffle_ps(a, b, 0xdd));
}

// x[2i], x[2i+1] exchanged.
PIVOT_INLINE Vec swap_pairs(Vec v) { return _mm256_permute_ps(v, 0xb1); }
// a0 a0 a1 a1 a2 a2 a3 a3 of four floats.
PIVOT_INLINE Vec load_doubled(const float* p) {
  const __m128 four = _mm_loadu_ps(p);
  return _mm256_set_m128(_mm_unpackhi_ps(four, four), _mm_unpacklo_ps(four, four));
}

PIVOT_INLINE Bits equal_bits(Bits a, Bits b) { return _mm256_cmpeq_epi32(a, b); }
// Eight bytes, or eight BF16, each to a 32-bit lane.
PIVOT_INLINE Bits widen_bytes(const std::byte* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
PIVOT_INLINE Vec widen_bf16(const std::byte* p) {
  return from_bits(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}

// ---- weight decoders: vectors of unscaled code values ----

// 16 BF16: even columns, odd columns.
PIVOT_INLINE void decode_bf16(const std::byte* p, Vec out[2]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  out[0] = from_bits(_mm256_slli_epi32(x, 16));
  out[1] = from_bits(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// 32 E4M3 codes times 2^-120: columns c mod 4 = 0, 1, 2, 3. A code's eight bits go to the top of a 32-bit
// lane, the arithmetic shift by 4 puts exponent and mantissa at their fp32 places, and the mask drops the
// copies of the sign. Subnormal codes become fp32 subnormals, which the hardware multiplies exactly.
PIVOT_INLINE void decode_e4m3(const std::byte* p, Vec out[4]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i keep = _mm256_set1_epi16(static_cast<short>(0x87f0));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(x, 4), keep);
  const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 4), keep);
  out[0] = from_bits(_mm256_slli_epi32(even, 16));
  out[1] = from_bits(_mm256_slli_epi32(odd, 16));
  out[2] = from_bits(_mm256_and_si256(even, high));
  out[3] = from_bits(_mm256_and_si256(odd, high));
}
// Eight E4M3 codes in column order, times 2^-120; a NaN code becomes a number.
PIVOT_INLINE Vec widen_e4m3(const std::byte* p) {
  const __m256i top = _mm256_slli_epi32(widen_bytes(p), 24);
  return from_bits(
      _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32(static_cast<int>(0x87f00000u))));
}
// Collects whether any code was NaN (0x7f, 0xff).
struct CodeCheck {
  __m256i largest = _mm256_setzero_si256();
};
PIVOT_INLINE void note_e4m3(const std::byte* p, CodeCheck& check) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  check.largest = _mm256_max_epu8(check.largest, _mm256_or_si256(x, _mm256_set1_epi8(-128)));
}
PIVOT_INLINE bool saw_nan(const CodeCheck& check) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(check.largest, _mm256_set1_epi8(-1))) != 0;
}

// 64 E2M1 codes: BF16 patterns from two byte tables, then widened. Vector 4u+c, lane l holds column
// 32*(l/4) + 16*u + 4*(l%4) + c.
PIVOT_INLINE void decode_e2m1(const std::byte* p, Vec out[8]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, static_cast<char>(0x80), static_cast<char>(0xbf),
      static_cast<char>(0xbf), static_cast<char>(0xbf), static_cast<char>(0xc0), static_cast<char>(0xc0),
      static_cast<char>(0xc0), static_cast<char>(0xc0)));
  const __m256i low_bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0x00, 0x00, static_cast<char>(0x80), static_cast<char>(0xc0), 0x00, 0x40,
                    static_cast<char>(0x80), static_cast<char>(0xc0), 0x00, 0x00, static_cast<char>(0x80),
                    static_cast<char>(0xc0), 0x00, 0x40, static_cast<char>(0x80), static_cast<char>(0xc0)));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i even = _mm256_and_si256(x, nibble);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
  const __m256i even_high = _mm256_shuffle_epi8(high_bytes, even);
  const __m256i even_low = _mm256_shuffle_epi8(low_bytes, even);
  const __m256i odd_high = _mm256_shuffle_epi8(high_bytes, odd);
  const __m256i odd_low = _mm256_shuffle_epi8(low_bytes, odd);
  const __m256i even0 = _mm256_unpacklo_epi8(even_low, even_high);
  const __m256i odd0 = _mm256_unpacklo_epi8(odd_low, odd_high);
  const __m256i even1 = _mm256_unpackhi_epi8(even_low, even_high);
  const __m256i odd1 = _mm256_unpackhi_epi8(odd_low, odd_high);
  out[0] = from_bits(_mm256_slli_epi32(even0, 16));
  out[1] = from_bits(_mm256_slli_epi32(odd0, 16));
  out[2] = from_bits(_mm256_and_si256(even0, high));
  out[3] = from_bits(_mm256_and_si256(odd0, high));
  out[4] = from_bits(_mm256_slli_epi32(even1, 16));
  out[5] = from_bits(_mm256_slli_epi32(odd1, 16));
  out[6] = from_bits(_mm256_and_si256(even1, high));
  out[7] = from_bits(_mm256_and_si256(odd1, high));
}

// 2^(byte-127) of two E8M0 bytes: lanes 0-3 the first, 4-7 the second. 0x00 counts as zero, not 2^-127.
PIVOT_INLINE Vec decode_e8m0_pair(const std::byte* p) {
  std::uint16_t pair;
  std::memcpy(&pair, p, 2);
  const __m256i spread = _mm256_setr_epi8(0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1, -1,
                                          -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi16(static_cast<short>(pair)), spread);
  return from_bits(_mm256_slli_epi32(bytes, 23));
}

// Four E4M3 scales: out[0] lanes 0-3 the first, 4-7 the third; out[1] the second and the fourth.
PIVOT_INLINE void decode_e4m3_scales(const std::byte* p, Vec out[2]) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  const __m256i all = _mm256_set1_epi32(four);
  const __m256i keep = _mm256_set1_epi32(static_cast<int>(0x87f00000u));
  const __m256i first = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1,
                                         -1, 2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 2);
  const __m256i second = _mm256_setr_epi8(-1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1,
                                          -1, 3, -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1, 3);
  const auto widen = [&](__m256i pattern) {
    return from_bits(_mm256_and_si256(_mm256_srai_epi32(_mm256_shuffle_epi8(all, pattern), 4), keep)) *
           splat(0x1p+120f);
  };
  out[0] = widen(first);
  out[1] = widen(second);
}

// ---- index keys ----

// acc (int16 pairs) += unsigned query bytes, one 4-byte word for all 8 keys, times signed key bytes.
PIVOT_INLINE Bits index_step(Bits acc, const std::uint8_t* query_word, const std::int8_t* keys) {
  std::int32_t word;
  std::memcpy(&word, query_word, 4);
  const __m256i key = _mm256_load_si256(reinterpret_cast<const __m256i*>(keys));
  return _mm256_add_epi16(acc, _mm256_maddubs_epi16(_mm256_set1_epi32(word), key));
}
PIVOT_INLINE Bits index_zero() { return _mm256_setzero_si256(); }
// The int32 sum of each key.
PIVOT_INLINE Bits index_sum(Bits acc) { return _mm256_madd_epi16(acc, _mm256_set1_epi16(1)); }
PIVOT_INLINE Bits load_bits(const std::int32_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

// 16 bytes of E2M1 codes of 8 keys to 8 words x 8 keys x 4 bytes of 2*E2M1: words 0-3 low nibbles, 4-7 high
// nibbles.
PIVOT_INLINE void index_words(const std::byte* const keys[8], std::int8_t* out) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const auto pair = [&](int a) {  // key a low half, key a+4 high half
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(keys[a]))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys[a + 4])), 1);
  };
  const __m256i k0 = pair(0), k1 = pair(1), k2 = pair(2), k3 = pair(3);
  const __m256i a = _mm256_unpacklo_epi32(k0, k1), b = _mm256_unpackhi_epi32(k0, k1);
  const __m256i c = _mm256_unpacklo_epi32(k2, k3), d = _mm256_unpackhi_epi32(k2, k3);
  const __m256i words[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                            _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  for (int w = 0; w < 4; ++w) {
    const __m256i low = _mm256_and_si256(words[w], nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(words[w], 4), nibble);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + 32 * w), _mm256_shuffle_epi8(table, low));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + 32 * (w + 4)), _mm256_shuffle_epi8(table, high));
  }
}

}  // namespace
