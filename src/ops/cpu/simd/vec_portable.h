// Eight fp32 lanes in plain C++ (the compiler's vector extension), for CPUs without AVX2 and as the second
// witness of the same kernels. Included by kernels_portable.cpp alone.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

#define PIVOT_INLINE static inline __attribute__((always_inline))

using Vec = float __attribute__((vector_size(32)));
using Bits = std::int32_t __attribute__((vector_size(32)));

PIVOT_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
PIVOT_INLINE Vec load_once(const float* p) { return load(p); }
PIVOT_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
PIVOT_INLINE Vec splat(float x) { return Vec{x, x, x, x, x, x, x, x}; }
PIVOT_INLINE Vec zero() { return splat(0.0f); }
// Two roundings: a fused multiply-add without the instruction is a slow library call.
PIVOT_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }

PIVOT_INLINE Bits bits(Vec v) { return reinterpret_cast<Bits>(v); }
PIVOT_INLINE Vec from_bits(Bits b) { return reinterpret_cast<Vec>(b); }
PIVOT_INLINE Bits splat_bits(std::uint32_t x) {
  const auto i = static_cast<std::int32_t>(x);
  return Bits{i, i, i, i, i, i, i, i};
}
PIVOT_INLINE Bits bit_and(Bits a, Bits b) { return a & b; }
PIVOT_INLINE Bits bit_or(Bits a, Bits b) { return a | b; }
using Unsigned = std::uint32_t __attribute__((vector_size(32)));
PIVOT_INLINE Bits add_bits(Bits a, Bits b) {
  return reinterpret_cast<Bits>(reinterpret_cast<Unsigned>(a) + reinterpret_cast<Unsigned>(b));
}
PIVOT_INLINE Bits sub_bits(Bits a, Bits b) {
  return reinterpret_cast<Bits>(reinterpret_cast<Unsigned>(a) - reinterpret_cast<Unsigned>(b));
}
template <int kCount>
PIVOT_INLINE Bits shift_left(Bits a) {
  return reinterpret_cast<Bits>(reinterpret_cast<Unsigned>(a) << kCount);
}
template <int kCount>
PIVOT_INLINE Bits shift_right(Bits a) {
  return reinterpret_cast<Bits>(reinterpret_cast<Unsigned>(a) >> kCount);
}

// Masks: all ones or zero per lane; comparisons with NaN are false, except is_nan.
PIVOT_INLINE Vec less(Vec a, Vec b) { return from_bits(a < b); }
PIVOT_INLINE Vec is_nan(Vec a) { return from_bits(a != a); }
PIVOT_INLINE Vec select(Vec mask, Vec yes, Vec no) {
  return from_bits((bits(yes) & bits(mask)) | (bits(no) & ~bits(mask)));
}
PIVOT_INLINE int mask_bits(Vec mask) {
  // Through memory: g++ 12 reads a wrong lane where -fsanitize=bounds checks a variable index of a vector.
  std::int32_t m[8];
  std::memcpy(m, &mask, sizeof(m));
  int result = 0;
  for (int l = 0; l < 8; ++l) result |= (m[l] < 0 ? 1 : 0) << l;
  return result;
}
PIVOT_INLINE Vec max_or_second(Vec a, Vec b) { return select(less(b, a), a, b); }
PIVOT_INLINE Vec min_or_second(Vec a, Vec b) { return select(less(a, b), a, b); }
PIVOT_INLINE Vec square_root(Vec v) {
  float r[8];
  store(r, v);
  for (float& lane : r) lane = std::sqrt(lane);
  return load(r);
}

PIVOT_INLINE Vec to_float(Bits a) { return __builtin_convertvector(a, Vec); }
// Nearest even for |a| < 2^22: the sum with 1.5*2^23 has that spacing.
PIVOT_INLINE Bits to_int(Vec a) {
  const float magic = 12582912.0f;
  return sub_bits(bits(a + splat(magic)), splat_bits(0x4b400000u));
}

PIVOT_INLINE float sum(Vec a) { return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])); }
PIVOT_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
  out[0] = sum(a);
  out[1] = sum(b);
  out[2] = sum(c);
  out[3] = sum(d);
}
// Lanes 0-3: the sums of a[0..3], lanes 4-7: those of b[0..3].
PIVOT_INLINE Vec sum8(const Vec a[4], const Vec b[4]) {
  return Vec{sum(a[0]), sum(a[1]), sum(a[2]), sum(a[3]), sum(b[0]), sum(b[1]), sum(b[2]), sum(b[3])};
}
PIVOT_INLINE void store_halves(float* low, float* high, Vec v) {
  std::memcpy(low, &v, 16);
  std::memcpy(high, reinterpret_cast<const std::byte*>(&v) + 16, 16);
}
// out[v]: lanes 0-3 are low[v], low[4+v], low[8+v], low[12+v], lanes 4-7 the same of `high`.
PIVOT_INLINE void transpose4(const float* low, const float* high, Vec out[4]) {
  for (int v = 0; v < 4; ++v)
    out[v] =
        Vec{low[v], low[4 + v], low[8 + v], low[12 + v], high[v], high[4 + v], high[8 + v], high[12 + v]};
}
// Even and odd elements of 16.
PIVOT_INLINE void split_pairs(Vec a, Vec b, Vec out[2]) {
  out[0] = Vec{a[0], a[2], a[4], a[6], b[0], b[2], b[4], b[6]};
  out[1] = Vec{a[1], a[3], a[5], a[7], b[1], b[3], b[5], b[7]};
}
PIVOT_INLINE Vec swap_pairs(Vec v) { return Vec{v[1], v[0], v[3], v[2], v[5], v[4], v[7], v[6]}; }
PIVOT_INLINE Vec load_doubled(const float* p) { return Vec{p[0], p[0], p[1], p[1], p[2], p[2], p[3], p[3]}; }

PIVOT_INLINE Bits equal_bits(Bits a, Bits b) { return a == b; }
// Eight bytes, or eight BF16, each to a 32-bit lane.
PIVOT_INLINE Bits widen_bytes(const std::byte* p) {
  Bits b;
  for (int l = 0; l < 8; ++l) b[l] = static_cast<std::int32_t>(p[l]);
  return b;
}
PIVOT_INLINE Vec widen_bf16(const std::byte* p) {
  std::uint16_t half[8];
  std::memcpy(half, p, sizeof(half));
  Bits b;
  for (int l = 0; l < 8; ++l) b[l] = static_cast<std::int32_t>(static_cast<std::uint32_t>(half[l]) << 16);
  return from_bits(b);
}

// ---- weight decoders: vectors of unscaled code values, in the column orders of kernels.h ----

PIVOT_INLINE void decode_bf16(const std::byte* p, Vec out[2]) {
  Bits x;
  std::memcpy(&x, p, sizeof(x));
  out[0] = from_bits(shift_left<16>(x));
  out[1] = from_bits(x & splat_bits(0xffff0000u));
}

PIVOT_INLINE void decode_e4m3(const std::byte* p, Vec out[4]) {
  Bits x;
  std::memcpy(&x, p, sizeof(x));
  const Bits keep = splat_bits(0x87f00000u);
  out[0] = from_bits((shift_left<24>(x) >> 4) & keep);
  out[1] = from_bits((shift_left<16>(x) >> 4) & keep);
  out[2] = from_bits((shift_left<8>(x) >> 4) & keep);
  out[3] = from_bits((x >> 4) & keep);
}
// Eight E4M3 codes in column order, times 2^-120; a NaN code becomes a number.
PIVOT_INLINE Vec widen_e4m3(const std::byte* p) {
  return from_bits((shift_left<24>(widen_bytes(p)) >> 4) & splat_bits(0x87f00000u));
}
struct CodeCheck {
  bool nan = false;
};
PIVOT_INLINE void note_e4m3(const std::byte* p, CodeCheck& check) {
  for (int i = 0; i < 32; ++i) check.nan |= (static_cast<unsigned>(p[i]) & 0x7fu) == 0x7fu;
}
PIVOT_INLINE bool saw_nan(const CodeCheck& check) { return check.nan; }

PIVOT_INLINE void decode_e2m1(const std::byte* p, Vec out[8]) {
  constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  for (int u = 0; u < 2; ++u)
    for (int c = 0; c < 4; ++c)
      for (int l = 0; l < 8; ++l) {
        const auto pair = static_cast<unsigned>(p[16 * (l / 4) + 8 * u + 2 * (l % 4) + c / 2]);
        out[4 * u + c][l] = kValues[c % 2 == 0 ? pair & 15u : pair >> 4];
      }
}
PIVOT_INLINE Vec decode_e8m0_pair(const std::byte* p) {
  const auto a = static_cast<std::int32_t>(static_cast<std::uint32_t>(p[0]) << 23);
  const auto b = static_cast<std::int32_t>(static_cast<std::uint32_t>(p[1]) << 23);
  return from_bits(Bits{a, a, a, a, b, b, b, b});
}

// Four E4M3 scales: out[0] lanes 0-3 the first, 4-7 the third; out[1] the second and the fourth.
PIVOT_INLINE void decode_e4m3_scales(const std::byte* p, Vec out[2]) {
  for (int u = 0; u < 2; ++u) {
    const auto a = static_cast<std::int32_t>(static_cast<std::uint32_t>(p[u]) << 24) >> 4;
    const auto b = static_cast<std::int32_t>(static_cast<std::uint32_t>(p[2 + u]) << 24) >> 4;
    out[u] = from_bits(Bits{a, a, a, a, b, b, b, b} & splat_bits(0x87f00000u)) * splat(0x1p+120f);
  }
}

// ---- index keys ----

PIVOT_INLINE Bits index_step(Bits acc, const std::uint8_t* query_word, const std::int8_t* keys) {
  for (int l = 0; l < 8; ++l)
    for (int i = 0; i < 4; ++i) acc[l] += static_cast<std::int32_t>(query_word[i]) * keys[4 * l + i];
  return acc;
}
PIVOT_INLINE Bits index_zero() { return splat_bits(0); }
PIVOT_INLINE Bits index_sum(Bits acc) { return acc; }
PIVOT_INLINE Bits load_bits(const std::int32_t* p) {
  Bits b;
  std::memcpy(&b, p, sizeof(b));
  return b;
}
PIVOT_INLINE void index_words(const std::byte* const keys[8], std::int8_t* out) {
  constexpr std::int8_t table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int w = 0; w < 4; ++w)
    for (int key = 0; key < 8; ++key)
      for (int i = 0; i < 4; ++i) {
        const auto pair = static_cast<unsigned>(keys[key][4 * w + i]);
        out[32 * w + 4 * key + i] = table[pair & 15u];
        out[32 * (w + 4) + 4 * key + i] = table[pair >> 4];
      }
}

}  // namespace
