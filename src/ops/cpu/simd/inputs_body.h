// Inputs of linear layers on 8 lanes: column orders and quantisers. Included once per instruction set, after
// its vec_*.h.
#pragma once

#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/weights_body.h"

namespace {

// One chunk of columns in `order`; vectors as the decoders deliver them.
template <ColumnOrder kOrder>
PIVOT_INLINE void permute_chunk(const float* src, Vec* out) {
  if constexpr (kOrder == ColumnOrder::kPlain) {
    out[0] = load(src);
  } else if constexpr (kOrder == ColumnOrder::kPairs) {
    split_pairs(load(src), load(src + 8), out);
  } else if constexpr (kOrder == ColumnOrder::kQuads) {
    transpose4(src, src + 16, out);
  } else {
    transpose4(src, src + 32, out);
    transpose4(src + 16, src + 48, out + 4);
  }
}

template <ColumnOrder kOrder, int kVecs>
static void permute_order(const float* src, std::int64_t cols, float factor, float* out) {
  constexpr std::int64_t kChunk = kVecs * 8;
  const std::int64_t padded = pivot::simd::padded_columns(cols);
  for (std::int64_t c = 0; c < padded; c += kChunk) {
    Vec values[kVecs];
    if (c + kChunk <= cols) {
      permute_chunk<kOrder>(src + c, values);
    } else {
      float rest[kChunk] = {};
      if (c < cols) std::memcpy(rest, src + c, static_cast<std::size_t>(cols - c) * sizeof(float));
      permute_chunk<kOrder>(rest, values);
    }
    for (int v = 0; v < kVecs; ++v) store(out + c + 8 * v, values[v] * splat(factor));
  }
}

static void permute(const float* src, std::int64_t cols, ColumnOrder order, float* out) {
  switch (order) {
    case ColumnOrder::kPlain:
      return permute_order<ColumnOrder::kPlain, 1>(src, cols, 1.0f, out);
    case ColumnOrder::kPairs:
      return permute_order<ColumnOrder::kPairs, 2>(src, cols, 1.0f, out);
    case ColumnOrder::kQuads:
      return permute_order<ColumnOrder::kQuads, 4>(src, cols, kQuadsInputFactor, out);
    case ColumnOrder::kNibbles:
      return permute_order<ColumnOrder::kNibbles, 8>(src, cols, 1.0f, out);
    case ColumnOrder::kDigits:
      return;  // quantize_digits() makes these
  }
}

// Largest magnitude; NaN elements do not count.
PIVOT_INLINE float absolute_maximum(const float* x, std::int64_t count) {
  Vec maximum = zero();
  const Bits magnitude = splat_bits(0x7fffffffu);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    maximum = max_or_second(from_bits(bit_and(bits(load(x + i)), magnitude)), maximum);
  float lanes[8];
  store(lanes, maximum);
  float result = 0.0f;
  for (const float lane : lanes) result = lane > result ? lane : result;
  for (; i < count; ++i) {
    const float a = __builtin_fabsf(x[i]);
    result = a > result ? a : result;
  }
  return result;
}

// E8M0 byte of ceil(log2(v)), specification 3.1.
PIVOT_INLINE std::uint32_t ceil_log2_code(float v) {
  std::uint32_t u;
  std::memcpy(&u, &v, 4);
  return (u >> 23) + ((u & 0x7fffffu) != 0 ? 1u : 0u);
}

// The E4M3 value nearest to v (ties to even), |v| <= 448 or NaN.
PIVOT_INLINE Vec round_to_e4m3(Vec v) {
  const Bits sign = bit_and(bits(v), splat_bits(0x80000000u));
  Vec a = from_bits(bit_and(bits(v), splat_bits(0x7fffffffu)));
  const Vec nan = is_nan(v);
  const Vec tiny = less(a, splat(0x1p-6f));
  const Bits odd = bit_and(shift_right<20>(bits(a)), splat_bits(1));
  const Bits rounded =
      bit_and(add_bits(bits(a), add_bits(splat_bits(0x7ffffu), odd)), splat_bits(0xfff00000u));
  const Vec normal = min_or_second(splat(448.0f), from_bits(rounded));
  const Vec subnormal = (a + splat(0x1p+14f)) - splat(0x1p+14f);
  a = select(tiny, subnormal, normal);
  return select(nan, v, from_bits(bit_or(bits(a), sign)));
}

// The E2M1 value nearest to v, |v| <= 6 (or NaN, which saturates to 6 as pivot::float_to_e2m1 does).
PIVOT_INLINE Vec round_to_e2m1(Vec v) {
  const Bits sign = bit_and(bits(v), splat_bits(0x80000000u));
  const Vec a = from_bits(bit_and(bits(v), splat_bits(0x7fffffffu)));
  // Steps: 0.5 below 2, 1 below 4, 2 above. Adding 1.5 * 2^23 * step rounds to a multiple of step, ties to
  // even, which are the even codes because every step interval starts at an even code.
  const Vec fine = (a + splat(0x1.8p+22f)) - splat(0x1.8p+22f);
  const Vec middle = (a + splat(0x1.8p+23f)) - splat(0x1.8p+23f);
  const Vec coarse = (a + splat(0x1.8p+24f)) - splat(0x1.8p+24f);
  Vec r = select(less(a, splat(2.0f)), fine, select(less(a, splat(4.0f)), middle, coarse));
  r = select(is_nan(v), splat(6.0f), min_or_second(r, splat(6.0f)));
  return from_bits(bit_or(bits(r), sign));
}

template <bool kE4m3>
PIVOT_INLINE void quantize_groups(float* x, std::int64_t cols, std::int64_t group, std::uint8_t* scales) {
  for (std::int64_t begin = 0; begin < cols; begin += group) {
    const std::int64_t count = smaller(group, cols - begin);
    float* values = x + begin;
    const float amax = absolute_maximum(values, count);
    constexpr float kFloor = kE4m3 ? 1e-4f : 6.0f * 0x1p-126f;
    constexpr float kInverse = kE4m3 ? 1.0f / 448.0f : 1.0f / 6.0f;
    const std::uint32_t code = ceil_log2_code((amax > kFloor ? amax : kFloor) * kInverse);
    if (scales != nullptr) scales[begin / group] = static_cast<std::uint8_t>(code);
    const Vec scale = splat(e8m0_value(static_cast<std::byte>(code)));
    const auto step = [&](Vec v) {
      v = v / scale;
      return (kE4m3 ? round_to_e4m3(v) : round_to_e2m1(v)) * scale;
    };
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) store(values + i, step(load(values + i)));
    if (i < count) {
      float tail[8] = {};
      std::memcpy(tail, values + i, static_cast<std::size_t>(count - i) * sizeof(float));
      store(tail, step(load(tail)));
      std::memcpy(values + i, tail, static_cast<std::size_t>(count - i) * sizeof(float));
    }
  }
}

static void quantize_e4m3(float* x, std::int64_t cols, std::int64_t group, std::uint8_t* scales) {
  quantize_groups<true>(x, cols, group, scales);
}
static void quantize_e2m1(float* x, std::int64_t cols, std::int64_t group) {
  quantize_groups<false>(x, cols, group, nullptr);
}

// ---- digits (linear_digits_body.h) ----

PIVOT_INLINE void write_digits(const std::int32_t* numbers, float scale, pivot::simd::Digits& out) {
  std::int32_t all = 0;
  for (int i = 0; i < 64; ++i) all |= numbers[i];
  const bool is_short = (all & 7) == 0;
  out.is_short = is_short ? 1 : 0;
  // 2^-9 or 2^-6 of the codes, 2^-1 of the doubled weights.
  out.scale = scale * (is_short ? 0x1p-7f : 0x1p-10f);
  std::int32_t units[64];
  std::int8_t low[64], middle[64], high[64] = {};
  if (is_short) {
    for (int i = 0; i < 64; ++i) {
      const std::int32_t number = units[i] = numbers[i] >> 3;
      const std::int32_t digit = ((number + 128) & 255) - 128;
      low[i] = static_cast<std::int8_t>(digit);
      middle[i] = static_cast<std::int8_t>((number - digit) >> 8);
    }
  } else {
    for (int i = 0; i < 64; ++i) {
      const std::int32_t number = units[i] = numbers[i];
      const std::int32_t digit = ((number + 64) & 127) - 64, rest = (number - digit) >> 7;
      const std::int32_t next = ((rest + 64) & 127) - 64;
      low[i] = static_cast<std::int8_t>(digit);
      middle[i] = static_cast<std::int8_t>(next);
      high[i] = static_cast<std::int8_t>((rest - next) >> 7);
    }
  }
  for (int i = 0; i < 32; ++i)
    for (int parity = 0; parity < 2; ++parity) {
      out.digits[32 * parity + i] = low[2 * i + parity];
      out.digits[64 + 32 * parity + i] = middle[2 * i + parity];
      out.digits[128 + 32 * parity + i] = high[2 * i + parity];
    }
  for (int lane = 0; lane < 8; ++lane) {
    std::int32_t total = 0;
    for (int i = 8 * lane; i < 8 * lane + 8; ++i) total += units[i];
    out.offset[lane] = 12 * total;
  }
}

// Q8 of specification 3.3, in groups of 128.
static void quantize_digits(const float* x, std::int64_t cols, pivot::simd::Digits* out) {
  const std::int64_t padded = pivot::simd::padded_columns(cols);
  for (std::int64_t begin = 0; begin < padded; begin += 128) {
    const float amax = absolute_maximum(x + begin, smaller(128, cols - begin));
    const std::uint32_t code = ceil_log2_code((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f));
    const float scale = e8m0_value(static_cast<std::byte>(code));
    for (std::int64_t chunk = begin; chunk < smaller(begin + 128, padded); chunk += 64) {
      std::int32_t numbers[64] = {};
      Vec nan = zero();
      for (int i = 0; i < 64; i += 8) {
        const std::int64_t left = cols - (chunk + i);
        if (left <= 0) break;
        float rest[8] = {};
        if (left < 8) std::memcpy(rest, x + chunk + i, static_cast<std::size_t>(left) * sizeof(float));
        const Vec rounded = round_to_e4m3((left >= 8 ? load(x + chunk + i) : load(rest)) / splat(scale));
        nan = from_bits(bit_or(bits(nan), bits(is_nan(rounded))));
        const Bits integers = to_int(rounded * splat(512.0f));
        std::memcpy(numbers + i, &integers, sizeof(integers));
      }
      // A NaN makes every product of its row NaN, and so does a NaN scale.
      const bool poisoned = mask_bits(nan) != 0;
      if (poisoned) std::memset(numbers, 0, sizeof(numbers));
      write_digits(numbers, poisoned ? __builtin_nanf("") : scale, out[chunk / 64]);
    }
  }
}

}  // namespace
