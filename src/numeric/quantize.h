// Block quantisers on fp32 arrays (specification 3.1, 3.2, 4.3): the values after quantise-dequantise, and
// the codes.
#pragma once

#include <cstdint>
#include <span>

namespace pivot {

// Q8_b / Q4_b, in place. The results are BF16-representable, so bf(.) after them changes nothing.
// REQUIRES: x.size() a multiple of `group` except for a shorter last group.
void quantize_dequantize_e4m3(std::span<float> x, std::int64_t group);
void quantize_dequantize_e2m1(std::span<float> x, std::int64_t group);

// Real quantisation: codes [x.size()] and one E8M0 byte per group.
void quantize_e4m3(std::span<const float> x, std::int64_t group, std::uint8_t* codes, std::uint8_t* scales);
// codes: two a byte, low nibble = even index.
void quantize_e2m1(std::span<const float> x, std::int64_t group, std::uint8_t* codes, std::uint8_t* scales);

// NVFP4 activations, in place: per 16, block scale = e4m3(amax/6/input_scale), value = e2m1(x/(block*input))
// * block * input.
void quantize_dequantize_nvfp4(std::span<float> x, float input_scale);

// Natural-order Walsh-Hadamard transform times size^-0.5, fp32, in place; no rounding. REQUIRES: a power of
// two.
void hadamard(std::span<float> x);

}  // namespace pivot
