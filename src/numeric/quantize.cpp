#include "numeric/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "numeric/formats.h"

namespace pivot {
namespace {

// NaN elements are left out of the maximum; they keep their own (NaN) code.
float absolute_maximum(std::span<const float> x) {
  float maximum = 0.0f;
  for (const float value : x) {
    const float magnitude = std::fabs(value);
    if (magnitude > maximum) maximum = magnitude;
  }
  return maximum;
}

template <class Work>
void for_groups(std::size_t size, std::int64_t group, const Work& work) {
  PIVOT_CHECK(group > 0, "group {}", group);
  const auto step = static_cast<std::size_t>(group);
  for (std::size_t begin = 0, index = 0; begin < size; begin += step, ++index)
    work(begin, std::min(step, size - begin), index);
}

}  // namespace

void quantize_dequantize_e4m3(std::span<float> x, std::int64_t group) {
  for_groups(x.size(), group, [&](std::size_t begin, std::size_t count, std::size_t) {
    const auto values = x.subspan(begin, count);
    const float scale = e8m0_to_float(fp8_group_scale(absolute_maximum(values)));
    for (float& value : values) value = kE4m3Values[float_to_e4m3(value / scale)] * scale;
  });
}

void quantize_dequantize_e2m1(std::span<float> x, std::int64_t group) {
  for_groups(x.size(), group, [&](std::size_t begin, std::size_t count, std::size_t) {
    const auto values = x.subspan(begin, count);
    const float scale = e8m0_to_float(fp4_group_scale(absolute_maximum(values)));
    for (float& value : values) value = e2m1_to_float(float_to_e2m1(value / scale)) * scale;
  });
}

void quantize_e4m3(std::span<const float> x, std::int64_t group, std::uint8_t* codes, std::uint8_t* scales) {
  for_groups(x.size(), group, [&](std::size_t begin, std::size_t count, std::size_t index) {
    const auto values = x.subspan(begin, count);
    scales[index] = fp8_group_scale(absolute_maximum(values));
    const float scale = e8m0_to_float(scales[index]);
    for (std::size_t i = 0; i < count; ++i) codes[begin + i] = float_to_e4m3(values[i] / scale);
  });
}

void quantize_e2m1(std::span<const float> x, std::int64_t group, std::uint8_t* codes, std::uint8_t* scales) {
  PIVOT_CHECK(group % 2 == 0, "group {} would split a byte of two codes", group);
  for_groups(x.size(), group, [&](std::size_t begin, std::size_t count, std::size_t index) {
    const auto values = x.subspan(begin, count);
    scales[index] = fp4_group_scale(absolute_maximum(values));
    const float scale = e8m0_to_float(scales[index]);
    for (std::size_t i = 0; i < count; i += 2) {
      const std::uint8_t even = float_to_e2m1(values[i] / scale);
      const std::uint8_t odd = i + 1 < count ? float_to_e2m1(values[i + 1] / scale) : std::uint8_t{0};
      codes[(begin + i) / 2] = static_cast<std::uint8_t>(even | (odd << 4));
    }
  });
}

void quantize_dequantize_nvfp4(std::span<float> x, float input_scale) {
  PIVOT_CHECK(input_scale > 0.0f, "input_scale {}", input_scale);
  for_groups(x.size(), 16, [&](std::size_t begin, std::size_t count, std::size_t) {
    const auto values = x.subspan(begin, count);
    const float block = kE4m3Values[float_to_e4m3(absolute_maximum(values) / kE2m1Max / input_scale)];
    const float scale = block * input_scale;
    // A block scale that rounds to zero (e4m3 underflow) stands for a block of zeros.
    for (float& value : values)
      value = scale > 0.0f ? e2m1_to_float(float_to_e2m1(value / scale)) * scale : std::copysign(0.0f, value);
  });
}

void hadamard(std::span<float> x) {
  const std::size_t size = x.size();
  PIVOT_CHECK(std::has_single_bit(size), "Hadamard of {} values", size);
  for (std::size_t half = 1; half < size; half *= 2) {
    for (std::size_t base = 0; base < size; base += 2 * half) {
      for (std::size_t i = base; i < base + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  for (float& value : x) value *= scale;
}

}  // namespace pivot
