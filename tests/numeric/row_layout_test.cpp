#include "numeric/row_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"

namespace pivot {
namespace {

std::vector<float> random_row(std::int32_t width, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(width));
  for (float& value : x) value = round_bf16(normal(random));
  return x;
}

std::vector<float> unpack(const RowLayout& layout, const std::vector<std::byte>& row) {
  std::vector<float> x(static_cast<std::size_t>(layout.width));
  unpack_row(layout, row.data(), row.data() + layout.data_bytes, x.data());
  return x;
}

std::vector<std::byte> pack(const RowLayout& layout, const std::vector<float>& x) {
  std::vector<std::byte> row(static_cast<std::size_t>(layout.row_bytes()), std::byte{0xee});
  pack_row(layout, x.data(), row.data(), row.data() + layout.data_bytes);
  return row;
}

TEST(RowLayout, SizesOfSpecification51) {
  const RowLayout main = kv_packed_layout(512, 64);
  EXPECT_EQ(main.data_bytes, 576);
  EXPECT_EQ(main.scale_bytes, 8);
  EXPECT_EQ(main.row_bytes(), 584);
  EXPECT_EQ(main.page_bytes(64), 37440);
  EXPECT_EQ(main.data_offset(3), 3 * 576);
  EXPECT_EQ(main.scale_offset(3, 64), 64 * 576 + 3 * 8);
  EXPECT_EQ(kv_scale_groups(main), 7);
  EXPECT_EQ(bf16_layout(512).row_bytes(), 1024);
  EXPECT_EQ(index_fp4_layout(128).row_bytes(), 68);
  EXPECT_EQ(index_fp8_layout(128).row_bytes(), 132);
  EXPECT_EQ(index_fp8_layout(128).page_bytes(64), 8448);
  EXPECT_EQ(bf16_layout(128).row_bytes(), 256);
  EXPECT_EQ(kv_packed_layout(128, 64).row_bytes(), 64 + 128 + 8);
}

TEST(RowLayout, RowsOfAPageDoNotOverlap) {
  for (const RowLayout& layout : {kv_packed_layout(512, 64), index_fp4_layout(128), index_fp8_layout(128)}) {
    std::set<std::int64_t> seen;
    for (std::int32_t row = 0; row < 64; ++row) {
      for (std::int64_t i = 0; i < layout.data_bytes; ++i)
        EXPECT_TRUE(seen.insert(layout.data_offset(row) + i).second);
      for (std::int64_t i = 0; i < layout.scale_bytes; ++i)
        EXPECT_TRUE(seen.insert(layout.scale_offset(row, 64) + i).second);
    }
    EXPECT_LE(*seen.rbegin() + 1, layout.page_bytes(64));
  }
}

TEST(RowLayout, PackedRowsHoldExactlyTheQuantisedValues) {
  for (const std::int32_t head_dim : {512, 128, 192, 100}) {
    const RowLayout layout = kv_packed_layout(head_dim, 64);
    const std::vector<float> x = random_row(head_dim, 5);
    std::vector<float> expected = x;
    quantize_dequantize_e4m3({expected.data(), static_cast<std::size_t>(head_dim - 64)}, 64);
    const std::vector<std::byte> row = pack(layout, x);
    EXPECT_EQ(unpack(layout, row), expected) << head_dim;
    for (std::int32_t i = kv_scale_groups(layout); i < layout.scale_bytes; ++i)
      EXPECT_EQ(row[static_cast<std::size_t>(layout.data_bytes + i)], std::byte{0});
  }
}

TEST(RowLayout, IndexRowsHoldExactlyTheQuantisedValues) {
  const std::vector<float> x = random_row(128, 6);
  std::vector<float> fp4 = x, fp8 = x;
  quantize_dequantize_e2m1(fp4, 32);
  quantize_dequantize_e4m3(fp8, 128);
  EXPECT_EQ(unpack(index_fp4_layout(128), pack(index_fp4_layout(128), x)), fp4);
  EXPECT_EQ(unpack(index_fp8_layout(128), pack(index_fp8_layout(128), x)), fp8);
  EXPECT_EQ(unpack(bf16_layout(128), pack(bf16_layout(128), x)), x);
  std::vector<float> exact = x;
  exact[0] = 0.1f;  // not BF16
  EXPECT_EQ(unpack(f32_layout(128), pack(f32_layout(128), exact)), exact);
}

TEST(RowLayout, Fp8IndexScaleIsAPowerOfTwoFloat) {
  const std::vector<std::byte> row = pack(index_fp8_layout(128), random_row(128, 7));
  float scale = 0;
  std::memcpy(&scale, row.data() + 128, 4);
  EXPECT_EQ(std::exp2(std::round(std::log2(scale))), scale);
}

TEST(RowLayout, GivenScalesReproduceTheBytesOfTheUnroundedRow) {
  // 228 rounds down to 224 at scale 1; packing the rounded row would choose scale 1/2 (specification 3.1).
  const RowLayout layout = kv_packed_layout(512, 64);
  std::vector<float> x = random_row(512, 8);
  for (std::int32_t i = 0; i < 448; i += 64) x[static_cast<std::size_t>(i)] = 228.0f;
  const std::vector<std::byte> expected = pack(layout, x);
  std::vector<float> rounded = x;
  std::vector<std::uint8_t> codes(448), scales(7);
  quantize_e4m3({x.data(), 448}, 64, codes.data(), scales.data());
  quantize_dequantize_e4m3({rounded.data(), 448}, 64);

  std::vector<std::byte> row(584, std::byte{0xee});
  pack_kv_row(layout, rounded.data(), scales.data(), row.data(), row.data() + 576);
  EXPECT_EQ(row, expected);

  const std::vector<std::byte> derived = pack(layout, rounded);
  EXPECT_NE(derived, expected);
  EXPECT_EQ(unpack(layout, derived), unpack(layout, expected));  // other bytes, the same values
}

}  // namespace
}  // namespace pivot
