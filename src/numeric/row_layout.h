// Byte layouts of cached rows: main KV rows, index keys, and pages of them (specification 5.1).
//
// A main row is [nope | rope]; an index key is one vector. A page of P rows stores all row data first, then
// all scale bytes, and is padded to a multiple of the row's data bytes (the layout FlashMLA calls MODEL1), so
// a single row is a page of one. Readers and writers both go through these offsets: there is no second
// definition.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pivot {

enum class RowFormat : std::uint8_t {
  kKvPacked,  // E4M3 codes of the NoPE dims, BF16 rope dims; one E8M0 byte per 64 NoPE dims, padded to 8
  kBf16,      // every dim BF16
  kF32,       // every dim F32 (knob activations=f32)
  kIndexFp4,  // E2M1 codes, low nibble = even dim; one E8M0 byte per 32 dims
  kIndexFp8,  // E4M3 codes; one F32 power-of-two scale for the whole key
};

struct RowLayout {
  RowFormat format = RowFormat::kBf16;
  std::int32_t width = 0;        // dims of a row
  std::int32_t rope = 0;         // trailing rotary dims (kKvPacked)
  std::int32_t data_bytes = 0;   // per row, in the data part of a page
  std::int32_t scale_bytes = 0;  // per row, in the scale part of a page

  std::int32_t row_bytes() const { return data_bytes + scale_bytes; }  // 584 for kKvPacked at 448+64
  std::int64_t page_bytes(std::int32_t page_rows) const {
    const std::int64_t used = std::int64_t{page_rows} * row_bytes();
    return scale_bytes == 0 ? used : (used + data_bytes - 1) / data_bytes * data_bytes;
  }
  std::int64_t data_offset(std::int32_t row) const { return std::int64_t{row} * data_bytes; }
  std::int64_t scale_offset(std::int32_t row, std::int32_t page_rows) const {
    return std::int64_t{page_rows} * data_bytes + std::int64_t{row} * scale_bytes;
  }
};

RowLayout kv_packed_layout(std::int32_t head_dim, std::int32_t rope);
RowLayout bf16_layout(std::int32_t width);
RowLayout f32_layout(std::int32_t width);
RowLayout index_fp4_layout(std::int32_t width);
RowLayout index_fp8_layout(std::int32_t width);

// Quantises `x` (fp32, already rounded as the caller's numerics demand) into a row. `data` and `scales` point
// at the row's parts. For kKvPacked the rope dims must be BF16-representable.
void pack_row(const RowLayout& layout, const float* x, std::byte* data, std::byte* scales);
// As pack_row for kKvPacked, with the E8M0 bytes of the NoPE groups given instead of derived from `x`. Needed
// where `x` has already been rounded: a group whose maximum rounded down to 224 * 2^k would otherwise get
// half the scale, that is other bytes for the same values (specification 3.1). `group_scales`:
// kv_scale_groups(layout) bytes.
void pack_kv_row(const RowLayout& layout, const float* x, const std::uint8_t* group_scales, std::byte* data,
                 std::byte* scales);
// Groups of 64 NoPE dims that carry a scale byte.
std::int32_t kv_scale_groups(const RowLayout& layout);
// The exact fp32 values a row stands for.
void unpack_row(const RowLayout& layout, const std::byte* data, const std::byte* scales, float* x);

}  // namespace pivot
