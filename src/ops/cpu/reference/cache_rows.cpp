#include "ops/cpu/reference/cache_rows.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/check.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"

namespace pivot::reference {
namespace {

constexpr std::int64_t kKvGroup = 64;
constexpr std::int64_t kIndexFp4Group = 32;

}  // namespace

void round_kv(float* row, std::int32_t head_dim, std::int32_t rope, KvPrecision precision,
              std::uint8_t* scales) {
  if (precision == KvPrecision::kBf16) return;
  const std::span<float> nope(row, static_cast<std::size_t>(head_dim - rope));
  if (scales == nullptr) {
    quantize_dequantize_e4m3(nope, kKvGroup);
    return;
  }
  std::vector<std::uint8_t> codes(nope.size());
  quantize_e4m3(nope, kKvGroup, codes.data(), scales);
  for (std::size_t i = 0; i < nope.size(); ++i)
    nope[i] = kE4m3Values[codes[i]] * e8m0_to_float(scales[i / static_cast<std::size_t>(kKvGroup)]);
}

void round_index(float* row, std::int32_t width, IndexPrecision precision) {
  const std::span<float> values(row, static_cast<std::size_t>(width));
  if (precision == IndexPrecision::kFp4) quantize_dequantize_e2m1(values, kIndexFp4Group);
  if (precision == IndexPrecision::kFp8) quantize_dequantize_e4m3(values, width);
}

void store_kv(const RowLayout& layout, std::int32_t rope, KvPrecision precision, const float* row,
              std::byte* data, std::byte* scales) {
  if (layout.format == RowFormat::kKvPacked) {
    PIVOT_CHECK(precision == KvPrecision::kFp8, "a packed KV layout cannot hold kv=bf16 rows");
    pack_row(layout, row, data, scales);
    return;
  }
  std::vector<float> rounded(row, row + layout.width);
  round_kv(rounded.data(), layout.width, rope, precision, nullptr);
  pack_row(layout, rounded.data(), data, scales);
}

void store_index(const RowLayout& layout, IndexPrecision precision, const float* row, std::byte* data,
                 std::byte* scales) {
  if (layout.format == RowFormat::kIndexFp4 || layout.format == RowFormat::kIndexFp8) {
    PIVOT_CHECK((layout.format == RowFormat::kIndexFp4) == (precision == IndexPrecision::kFp4) &&
                    precision != IndexPrecision::kBf16,
                "index key layout {} does not hold index_keys precision {}", static_cast<int>(layout.format),
                static_cast<int>(precision));
    pack_row(layout, row, data, scales);
    return;
  }
  std::vector<float> rounded(row, row + layout.width);
  round_index(rounded.data(), layout.width, precision);
  pack_row(layout, rounded.data(), data, scales);
}

RowPointers ring_row(const RingView& ring, std::int32_t slot, std::int32_t position) {
  const std::int32_t row = position % ring.rows;
  std::byte* base = ring.base + slot * ring.slot_bytes;
  return {base + ring.layout.data_offset(row), base + ring.layout.scale_offset(row, ring.rows)};
}

RowPointers paged_row(const PagedView& pages, std::int32_t table, std::int64_t entry) {
  const std::int64_t page_index = entry / pages.page_rows;
  const auto row = static_cast<std::int32_t>(entry % pages.page_rows);
  PIVOT_CHECK(page_index < pages.table_stride, "entry {} beyond {} pages of {}", entry, pages.table_stride,
              pages.page_rows);
  const std::int32_t page = pages.page_table[std::int64_t{table} * pages.table_stride + page_index];
  PIVOT_CHECK(page >= 0, "no page for entry {} of table {}", entry, table);
  std::byte* base = pages.base + page * pages.page_bytes;
  return {base + pages.layout.data_offset(row), base + pages.layout.scale_offset(row, pages.page_rows)};
}

void read_ring_row(const RingView& ring, std::int32_t slot, std::int32_t position, float* row) {
  const RowPointers pointers = ring_row(ring, slot, position);
  unpack_row(ring.layout, pointers.data, pointers.scales, row);
}

void read_paged_row(const PagedView& pages, std::int32_t table, std::int64_t entry, float* row) {
  const RowPointers pointers = paged_row(pages, table, entry);
  unpack_row(pages.layout, pointers.data, pointers.scales, row);
}

}  // namespace pivot::reference
