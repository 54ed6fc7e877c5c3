// What this instruction set can do at best: the yardsticks of measure.h. Included once per instruction set,
// after its vec_*.h.
#pragma once

#include "ops/cpu/simd/inputs_body.h"
#include "ops/cpu/simd/kernels.h"

namespace {

// Reads every byte once, eight loads in flight; returns something that depends on all of them.
static float read_stream(const float* data, std::int64_t count) {
  Vec acc[8];
  for (Vec& v : acc) v = zero();
  for (std::int64_t i = 0; i + 64 <= count; i += 64)
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) acc[k] = from_bits(bit_or(bits(acc[k]), bits(load(data + i + 8 * k))));
  for (int k = 1; k < 8; ++k) acc[0] = from_bits(bit_or(bits(acc[0]), bits(acc[k])));
  return sum(acc[0]);
}

// `rounds` times twelve independent multiply-adds of 8 lanes, none waiting for memory.
static float multiply_add_burst(std::int64_t rounds, float seed) {
  Vec acc[12];
  for (int k = 0; k < 12; ++k) acc[k] = splat(seed + static_cast<float>(k));
  const Vec a = splat(0.999f), b = splat(seed);
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int k = 0; k < 12; ++k) acc[k] = fma(acc[k], a, b);
  for (int k = 1; k < 12; ++k) acc[0] = acc[0] + acc[k];
  return sum(acc[0]);
}

}  // namespace
