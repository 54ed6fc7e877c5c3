#include "numeric/row_layout.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"

namespace pivot {
namespace {

constexpr std::int32_t kKvGroup = 64;
constexpr std::int32_t kIndexFp4Group = 32;
constexpr std::int32_t kKvScaleAlignment = 8;

constexpr std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

void store_bf16(const float* x, std::int32_t count, std::byte* out) {
  for (std::int32_t i = 0; i < count; ++i) {
    const std::uint16_t bits = to_bf16(x[i]).bits;
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

void load_bf16(const std::byte* in, std::int32_t count, float* x) {
  for (std::int32_t i = 0; i < count; ++i) {
    BF16 value{};
    std::memcpy(&value.bits, in + 2 * i, 2);
    x[i] = to_float(value);
  }
}

// Rope dims and padding of a packed row, shared by both packers.
void store_kv_tail(const RowLayout& layout, const float* x, std::byte* data, std::byte* scales) {
  const std::int32_t nope = layout.width - layout.rope;
  store_bf16(x + nope, layout.rope, data + nope);
  for (std::int32_t i = kv_scale_groups(layout); i < layout.scale_bytes; ++i) scales[i] = std::byte{0};
}

}  // namespace

RowLayout kv_packed_layout(std::int32_t head_dim, std::int32_t rope) {
  PIVOT_CHECK(rope >= 0 && rope < head_dim, "head_dim {}, rope {}", head_dim, rope);
  const std::int32_t nope = head_dim - rope;
  const std::int32_t groups = ceil_div(nope, kKvGroup);
  return {RowFormat::kKvPacked, head_dim, rope, nope + 2 * rope,
          ceil_div(groups, kKvScaleAlignment) * kKvScaleAlignment};
}

RowLayout bf16_layout(std::int32_t width) { return {RowFormat::kBf16, width, 0, 2 * width, 0}; }

RowLayout f32_layout(std::int32_t width) { return {RowFormat::kF32, width, 0, 4 * width, 0}; }

RowLayout index_fp4_layout(std::int32_t width) {
  PIVOT_CHECK(width % kIndexFp4Group == 0, "index key width {}", width);
  return {RowFormat::kIndexFp4, width, 0, width / 2, width / kIndexFp4Group};
}

RowLayout index_fp8_layout(std::int32_t width) { return {RowFormat::kIndexFp8, width, 0, width, 4}; }

std::int32_t kv_scale_groups(const RowLayout& layout) {
  return ceil_div(layout.width - layout.rope, kKvGroup);
}

void pack_row(const RowLayout& layout, const float* x, std::byte* data, std::byte* scales) {
  auto* codes = reinterpret_cast<std::uint8_t*>(data);
  auto* scale_codes = reinterpret_cast<std::uint8_t*>(scales);
  const auto width = static_cast<std::size_t>(layout.width);
  switch (layout.format) {
    case RowFormat::kKvPacked:
      quantize_e4m3({x, static_cast<std::size_t>(layout.width - layout.rope)}, kKvGroup, codes, scale_codes);
      store_kv_tail(layout, x, data, scales);
      return;
    case RowFormat::kBf16:
      store_bf16(x, layout.width, data);
      return;
    case RowFormat::kF32:
      std::memcpy(data, x, 4 * width);
      return;
    case RowFormat::kIndexFp4:
      quantize_e2m1({x, width}, kIndexFp4Group, codes, scale_codes);
      return;
    case RowFormat::kIndexFp8: {
      std::uint8_t scale_code = 0;
      quantize_e4m3({x, width}, layout.width, codes, &scale_code);
      const float scale = e8m0_to_float(scale_code);
      std::memcpy(scales, &scale, 4);
      return;
    }
  }
}

void pack_kv_row(const RowLayout& layout, const float* x, const std::uint8_t* group_scales, std::byte* data,
                 std::byte* scales) {
  PIVOT_CHECK(layout.format == RowFormat::kKvPacked, "format {}", static_cast<int>(layout.format));
  const std::int32_t nope = layout.width - layout.rope;
  for (std::int32_t i = 0; i < nope; ++i)
    data[i] = static_cast<std::byte>(float_to_e4m3(x[i] / e8m0_to_float(group_scales[i / kKvGroup])));
  std::memcpy(scales, group_scales, static_cast<std::size_t>(kv_scale_groups(layout)));
  store_kv_tail(layout, x, data, scales);
}

void unpack_row(const RowLayout& layout, const std::byte* data, const std::byte* scales, float* x) {
  const auto width = static_cast<std::size_t>(layout.width);
  switch (layout.format) {
    case RowFormat::kKvPacked: {
      const std::int32_t nope = layout.width - layout.rope;
      for (std::int32_t begin = 0; begin < nope; begin += kKvGroup) {
        const float scale = e8m0_to_float(static_cast<std::uint8_t>(scales[begin / kKvGroup]));
        const std::int32_t end = std::min(begin + kKvGroup, nope);
        for (std::int32_t i = begin; i < end; ++i)
          x[i] = kE4m3Values[static_cast<std::uint8_t>(data[i])] * scale;
      }
      load_bf16(data + nope, layout.rope, x + nope);
      return;
    }
    case RowFormat::kBf16:
      load_bf16(data, layout.width, x);
      return;
    case RowFormat::kF32:
      std::memcpy(x, data, 4 * width);
      return;
    case RowFormat::kIndexFp4:
      for (std::int32_t i = 0; i < layout.width; i += 2) {
        const float scale = e8m0_to_float(static_cast<std::uint8_t>(scales[i / kIndexFp4Group]));
        const auto pair = static_cast<std::uint8_t>(data[i / 2]);
        x[i] = e2m1_to_float(pair & 15u) * scale;
        x[i + 1] = e2m1_to_float(static_cast<std::uint8_t>(pair >> 4)) * scale;
      }
      return;
    case RowFormat::kIndexFp8: {
      float scale = 0.0f;
      std::memcpy(&scale, scales, 4);
      for (std::size_t i = 0; i < width; ++i) x[i] = kE4m3Values[static_cast<std::uint8_t>(data[i])] * scale;
      return;
    }
  }
}

}  // namespace pivot
