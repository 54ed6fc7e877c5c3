// Packs of two rows in the 512-bit registers of AVX-512 (F, BW, DQ, VL, VNNI). Included by
// kernels_avx512.cpp, and by a test that stands in for the instructions.
//
// Rows lie in the two halves; what works on one row stays on the 256-bit vectors of vec_avx2.h. BF16's own
// dot instruction is not used: it drops subnormals and rounds pairs in an order of its own. Table look-ups
// across lanes (VBMI) are not needed, since the tables of E2M1 fit 16 bytes.
#pragma once

#include "ops/cpu/simd/vec_avx2.h"

namespace {

constexpr std::int64_t kPackRows = 2;
using Pack = __m512;
using PackBits = __m512i;

PIVOT_INLINE Pack pack_zero() { return _mm512_setzero_ps(); }
PIVOT_INLINE Pack pack_splat(float x) { return _mm512_set1_ps(x); }
PIVOT_INLINE Pack pack_load(const float* p) { return _mm512_loadu_ps(p); }
PIVOT_INLINE Pack pack_load_once(const float* p) { return _mm512_loadu_ps(p); }
PIVOT_INLINE void pack_store(float* p, Pack a) { _mm512_storeu_ps(p, a); }
PIVOT_INLINE Pack pack_of(Vec low, Vec high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
PIVOT_INLINE Pack pack_gather(const float* p, std::int64_t stride) {
  return pack_of(load(p), load(p + stride));
}
PIVOT_INLINE Pack pack_repeat(const float* p) { return _mm512_broadcast_f32x8(load(p)); }
PIVOT_INLINE Pack pack_repeat_once(const float* p) { return pack_repeat(p); }
PIVOT_INLINE Pack pack_add(Pack a, Pack b) { return _mm512_add_ps(a, b); }
PIVOT_INLINE Pack pack_multiply(Pack a, Pack b) { return _mm512_mul_ps(a, b); }
PIVOT_INLINE Pack pack_fma(Pack a, Pack b, Pack c) { return _mm512_fmadd_ps(a, b, c); }
PIVOT_INLINE Pack pack_relu(Pack a) { return _mm512_max_ps(pack_zero(), a); }
PIVOT_INLINE Pack pack_to_float(PackBits a) { return _mm512_cvtepi32_ps(a); }
PIVOT_INLINE Pack pack_join(const Vec* rows) { return pack_of(rows[0], rows[1]); }
PIVOT_INLINE void pack_split(Pack a, Vec* rows) {
  rows[0] = _mm512_castps512_ps256(a);
  rows[1] = _mm512_extractf32x8_ps(a, 1);
}

// ---- integers ----

PIVOT_INLINE __m512i bytes_of(const void* low, const void* high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(low))),
                            _mm256_loadu_si256(static_cast<const __m256i*>(high)), 1);
}
PIVOT_INLINE __m512i repeat_bytes(const void* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

using PackBytes = __m512i;
PIVOT_INLINE PackBytes pack_load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
PIVOT_INLINE void pack_store_bytes(std::uint8_t* p, PackBytes b) { _mm512_storeu_si512(p, b); }

// 64 E2M1 codes of each row (`stride` bytes apart) as 2*value + 12: even columns, odd columns.
PIVOT_INLINE void pack_e2m1(const std::byte* p, std::int64_t stride, PackBytes out[2]) {
  const __m512i x = bytes_of(p, p + stride);
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  out[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(x, nibble));
  out[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(x, 4), nibble));
}

// Scale bytes of both rows: four in the low 128-bit lane of each half, repeated.
PIVOT_INLINE __m512i scale_words(const std::byte* p, std::int64_t stride, std::size_t bytes) {
  std::int32_t low = 0, high = 0;
  std::memcpy(&low, p, bytes);
  std::memcpy(&high, p + stride, bytes);
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi32(low)), _mm256_set1_epi32(high), 1);
}
// Lanes 0-3 of each row from byte `at` of its word, lanes 4-7 from the next: E8M0 as fp32.
template <int kAt>
PIVOT_INLINE Pack spread_e8m0(__m512i words) {
  const __m256i pattern =
      _mm256_setr_epi8(kAt, -1, -1, -1, kAt, -1, -1, -1, kAt, -1, -1, -1, kAt, -1, -1, -1, kAt + 1, -1, -1,
                       -1, kAt + 1, -1, -1, -1, kAt + 1, -1, -1, -1, kAt + 1, -1, -1, -1);
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_shuffle_epi8(words, _mm512_broadcast_i64x4(pattern)), 23));
}
PIVOT_INLINE Pack pack_e8m0(const std::byte* p, std::int64_t stride) {
  return spread_e8m0<0>(scale_words(p, stride, 2));
}
PIVOT_INLINE void pack_e8m0_two(const std::byte* p, std::int64_t stride, Pack out[2]) {
  const __m512i words = scale_words(p, stride, 4);
  out[0] = spread_e8m0<0>(words);
  out[1] = spread_e8m0<2>(words);
}
PIVOT_INLINE Pack pack_e4m3_scales(const std::byte* p, std::int64_t stride) {
  const __m256i spread = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1,
                                          -1, 2, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 3);
  const __m512i top = _mm512_shuffle_epi8(scale_words(p, stride, 4), _mm512_broadcast_i64x4(spread));
  const __m512i keep = _mm512_set1_epi32(static_cast<int>(0x87f00000u));
  return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(_mm512_srai_epi32(top, 4), keep)),
                       _mm512_set1_ps(0x1p+120f));
}

// kDigits digits of 64 columns, the same for both rows.
template <int kDigits>
struct DigitPacks {
  __m512i even[kDigits], odd[kDigits];
};
template <int kDigits>
PIVOT_INLINE DigitPacks<kDigits> load_digits(const std::int8_t* digits) {
  DigitPacks<kDigits> v;
#pragma GCC unroll 3
  for (int i = 0; i < kDigits; ++i) {
    v.even[i] = repeat_bytes(digits + 64 * i);
    v.odd[i] = repeat_bytes(digits + 64 * i + 32);
  }
  return v;
}
PIVOT_INLINE PackBits pack_repeat_bits(const std::int32_t* p) { return repeat_bytes(p); }

// Lane i: sum over columns 8i..8i+7 of byte times (digit0 + kBase*digit1 + kBase^2*digit2), minus the offset.
template <int kDigits, int kBase>
PIVOT_INLINE PackBits digit_dot(PackBytes even, PackBytes odd, const DigitPacks<kDigits>& x,
                                PackBits offset) {
  constexpr int kShift = kBase == 256 ? 8 : 7;
  const auto digit = [&](int i) __attribute__((always_inline)) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), even, x.even[i]), odd, x.odd[i]);
  };
  __m512i sum = digit(kDigits - 1);
#pragma GCC unroll 2
  for (int i = kDigits - 2; i >= 0; --i) sum = _mm512_add_epi32(_mm512_slli_epi32(sum, kShift), digit(i));
  return _mm512_sub_epi32(sum, offset);
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
PIVOT_INLINE void high_words_of(const std::int8_t* digits, std::int16_t* words) {
  for (int parity = 0; parity < 2; ++parity) {
    __m256i out[2];
    widen_digit(_mm256_load_si256(reinterpret_cast<const __m256i*>(digits + 128 + 32 * parity)), out);
    for (int i = 0; i < 2; ++i)
      _mm256_store_si256(reinterpret_cast<__m256i*>(words + 32 * parity + 16 * i), out[i]);
  }
}

// 64 E2M1 codes of each row as words of 2*value, in the order of words_of(): four vectors.
PIVOT_INLINE void pack_e2m1_words(const std::byte* p, std::int64_t stride, PackBytes out[4]) {
  const __m512i x = bytes_of(p, p + stride);
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  const __m512i bytes[2] = {_mm512_shuffle_epi8(table, _mm512_and_si512(x, nibble)),
                            _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(x, 4), nibble))};
  for (int parity = 0; parity < 2; ++parity) {
    out[2 * parity] = _mm512_srai_epi16(_mm512_slli_epi16(bytes[parity], 8), 8);
    out[2 * parity + 1] = _mm512_srai_epi16(bytes[parity], 8);
  }
}

// 64 words of an input, the same for both rows.
struct WordPack {
  __m512i w[4];
};
PIVOT_INLINE WordPack load_words(const std::int16_t* words) {
  WordPack x;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) x.w[i] = repeat_bytes(words + 16 * i);
  return x;
}
PIVOT_INLINE PackBits word_dot(const std::uint8_t* weights, const WordPack& x) {
  const auto part = [&](int i) __attribute__((always_inline)) {
    return _mm512_madd_epi16(x.w[i], _mm512_loadu_si512(weights + 64 * i));
  };
  return _mm512_add_epi32(_mm512_add_epi32(part(0), part(1)), _mm512_add_epi32(part(2), part(3)));
}
PIVOT_INLINE PackBits join_words(PackBits low, PackBits high) {
  return _mm512_add_epi32(low, _mm512_slli_epi32(high, 14));
}

// ---- index keys ----

PIVOT_INLINE PackBits pack_index_zero() { return _mm512_setzero_si512(); }
// acc += four bytes of a query, the same for all keys, times the keys' bytes; two tiles `stride` bytes apart.
PIVOT_INLINE PackBits pack_index_step(PackBits acc, const std::uint8_t* query_word, const std::int8_t* keys,
                                      std::int64_t stride) {
  std::int32_t word;
  std::memcpy(&word, query_word, 4);
  return _mm512_dpbusd_epi32(acc, _mm512_set1_epi32(word), bytes_of(keys, keys + stride));
}
PIVOT_INLINE PackBits pack_index_sum(PackBits a, PackBits b, const std::int32_t* offset,
                                     std::int64_t stride) {
  const auto* bytes = reinterpret_cast<const std::byte*>(offset);
  return _mm512_sub_epi32(_mm512_add_epi32(a, b), bytes_of(bytes, bytes + stride));
}

}  // namespace
