// Exact scalar formats: BF16, E4M3 (fn), E2M1, E8M0, E4M3 block scales. The one definition of every rounding.
//
// All conversions to a narrower format round to nearest, ties to even (specification 2.0, 3.2). Decoders are
// exact.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace pivot {

// ---- BF16 ----

struct BF16 {
  std::uint16_t bits;
};

constexpr float to_float(BF16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

// Round to nearest even; NaN stays NaN (quiet), infinities and signed zeros are kept.
constexpr BF16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// bf(x) of the specification, kept in an fp32 register.
constexpr float round_bf16(float x) { return to_float(to_bf16(x)); }

// ---- E4M3 (fn: no infinity, NaN is 0x7f / 0xff, max 448, subnormals down to 2^-9) ----

inline constexpr float kE4m3Max = 448.0f;

constexpr float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t exponent = (code >> 3) & 0xfu;
  const std::uint32_t mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// e4m3_to_float of every code.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code)
    values[static_cast<std::size_t>(code)] = e4m3_to_float(static_cast<std::uint8_t>(code));
  return values;
}();

// Round to nearest even after saturating to +-448; NaN encodes as NaN. The sign of a value that rounds to
// zero is kept.
constexpr std::uint8_t float_to_e4m3(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint8_t sign = static_cast<std::uint8_t>((u >> 24) & 0x80u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3Max)) return static_cast<std::uint8_t>(sign | 0x7eu);
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6f)) {
    // Subnormal range: the step is 2^-9. Adding 2^14 (whose fp32 spacing is 2^-9) rounds to that step.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<std::uint8_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0x1p14f)));
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// ---- E2M1 (4 bits: sign, two exponent bits, one mantissa bit; values 0 .5 1 1.5 2 3 4 6) ----

inline constexpr float kE2m1Max = 6.0f;
inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

constexpr float e2m1_to_float(std::uint8_t code) { return kE2m1Values[code & 15u]; }

// Round to nearest even on the E2M1 grid after saturating to +-6 (0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 ->
// 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4). NaN has no code: it saturates to 6, callers reject NaN earlier.
constexpr std::uint8_t float_to_e2m1(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint8_t sign = static_cast<std::uint8_t>((u >> 28) & 8u);
  const float a = std::bit_cast<float>(u & 0x7fffffffu);
  std::uint8_t code = 7;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  return static_cast<std::uint8_t>(sign | code);
}

// ---- E8M0 (a power of two: 2^(byte-127); 0xff is NaN) ----

inline constexpr std::uint8_t kE8m0Nan = 0xff;

constexpr float e8m0_to_float(std::uint8_t byte) {
  if (byte == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  if (byte == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127, an fp32 subnormal
  return std::bit_cast<float>(static_cast<std::uint32_t>(byte) << 23);
}

// ceil(log2 v) by bit inspection (specification 3.1), biased by 127. REQUIRES: v > 0, finite and normal.
constexpr std::uint8_t ceil_log2_e8m0(float v) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(v);
  return static_cast<std::uint8_t>((u >> 23) + ((u & 0x7fffffu) != 0u ? 1u : 0u));
}

// ---- Group scales (specification 3.1) ----

inline constexpr float kFp8ScaleFloor = 1e-4f;             // A_min for FP8 groups
inline constexpr float kFp4ScaleFloor = 6.0f * 0x1p-126f;  // A_min for FP4 groups

// The E8M0 byte of a group with absolute maximum `amax`: ceil(log2(max(amax, floor) * fp32(1/448))).
constexpr std::uint8_t fp8_group_scale(float amax) {
  return ceil_log2_e8m0((amax > kFp8ScaleFloor ? amax : kFp8ScaleFloor) * (1.0f / 448.0f));
}
constexpr std::uint8_t fp4_group_scale(float amax) {
  return ceil_log2_e8m0((amax > kFp4ScaleFloor ? amax : kFp4ScaleFloor) * (1.0f / 6.0f));
}

}  // namespace pivot
