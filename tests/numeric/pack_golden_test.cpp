// Packed rows and pages against the wide goldens, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "numeric/row_layout.h"
#include "support/golden_file.h"
#include "support/test_data.h"

namespace pivot {
namespace {

// Packs every row of `x` and compares bytes; unpacks the golden bytes and compares with `sim` bit for bit.
void check_group(const test::GoldenFile& golden, const RowLayout& layout, const std::string& group) {
  const std::vector<float> x = golden.floats(group + ".x");
  const std::vector<float> sim = golden.floats(group + ".sim");
  const std::vector<std::uint8_t> packed = golden.bytes(group + ".packed");
  const auto width = static_cast<std::size_t>(layout.width);
  const auto bytes = static_cast<std::size_t>(layout.row_bytes());
  ASSERT_EQ(packed.size() / bytes, x.size() / width);
  for (std::size_t r = 0; r < x.size() / width; ++r) {
    std::vector<std::uint8_t> row(bytes, 0xee);
    auto* data = reinterpret_cast<std::byte*>(row.data());
    pack_row(layout, x.data() + r * width, data, data + layout.data_bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(row[i], packed[r * bytes + i]) << group << " row " << r << " byte " << i;
    std::vector<float> back(width);
    unpack_row(layout, data, data + layout.data_bytes, back.data());
    for (std::size_t i = 0; i < width; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(sim[r * width + i]))
          << group << " " << r << " " << i;
  }
}

TEST(PackGolden, RowsAreBitEqual) {
  PIVOT_NEED_DATA(path, "goldens-wide/data/pack.safetensors");
  const test::GoldenFile golden(path);
  for (const char* group : {"synthetic", "model"}) {
    check_group(golden, kv_packed_layout(512, 64), std::string("pack.main.") + group);
    check_group(golden, index_fp4_layout(128), std::string("pack.index.") + group);
  }
}

TEST(PackGolden, HadamardFeedsTheIndexKeys) {
  PIVOT_NEED_DATA(path, "goldens-wide/data/pack.safetensors");
  const test::GoldenFile golden(path);
  std::vector<float> x = golden.floats("pack.index.model.x_before_hadamard");
  const std::vector<float> expected = golden.floats("pack.index.model.x");
  for (std::size_t r = 0; r < x.size() / 128; ++r) hadamard({x.data() + r * 128, 128});
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(round_bf16(x[i]), expected[i]) << i;
}

TEST(PackGolden, APageOf64IsBitEqual) {
  PIVOT_NEED_DATA(path, "goldens-wide/data/pack.safetensors");
  const test::GoldenFile golden(path);
  PIVOT_NEED_DATA(decode_path, "goldens-wide/data/decode_bf16_n515.safetensors");
  const test::GoldenFile decode(decode_path);
  const std::vector<std::uint8_t> expected = golden.bytes("pack.page64.packed");
  const std::vector<std::uint8_t> rows = decode.bytes("decode.L1.compressed_packed");
  const RowLayout layout = kv_packed_layout(512, 64);
  ASSERT_EQ(static_cast<std::int64_t>(expected.size()), layout.page_bytes(64));
  // Rows keep their bytes when they move into a page; only the offsets differ.
  std::vector<std::uint8_t> page(expected.size(), 0);
  for (std::int32_t r = 0; r < 64; ++r) {
    const std::uint8_t* row = rows.data() + r * layout.row_bytes();
    std::copy_n(row, layout.data_bytes, page.data() + layout.data_offset(r));
    std::copy_n(row + layout.data_bytes, layout.scale_bytes, page.data() + layout.scale_offset(r, 64));
  }
  EXPECT_EQ(page, expected);
}

}  // namespace
}  // namespace pivot
