// Cached rows on the device: addresses by ring and page table, packing and unpacking (numeric/row_layout.h).
#pragma once

#include <cstdint>

#include "ops/cuda/device/numeric.cuh"
#include "ops/views.h"

namespace pivot::cuda {

inline constexpr int kKvGroup = 64;        // NoPE dims per E8M0 byte of a packed KV row
inline constexpr int kIndexFp4Group = 32;  // dims per E8M0 byte of an FP4 index key

struct RowAddress {
  std::uint8_t* data;
  std::uint8_t* scales;
};

__device__ __forceinline__ RowAddress ring_row(const RingView& ring, std::int32_t slot,
                                               std::int32_t position) {
  const std::int32_t row = position % ring.rows;
  auto* base = reinterpret_cast<std::uint8_t*>(ring.base) + slot * ring.slot_bytes;
  return {base + static_cast<std::int64_t>(row) * ring.layout.data_bytes,
          base + static_cast<std::int64_t>(ring.rows) * ring.layout.data_bytes +
              static_cast<std::int64_t>(row) * ring.layout.scale_bytes};
}
__device__ __forceinline__ RowAddress paged_row(const PagedView& pages, std::int32_t table,
                                                std::int32_t entry) {
  const std::int32_t row = entry % pages.page_rows;
  const std::int32_t page =
      pages.page_table[static_cast<std::int64_t>(table) * pages.table_stride + entry / pages.page_rows];
  auto* base = reinterpret_cast<std::uint8_t*>(pages.base) + page * pages.page_bytes;
  return {base + static_cast<std::int64_t>(row) * pages.layout.data_bytes,
          base + static_cast<std::int64_t>(pages.page_rows) * pages.layout.data_bytes +
              static_cast<std::int64_t>(row) * pages.layout.scale_bytes};
}

// Eight E4M3 codes times one E8M0 scale as BF16 pairs, exact.
__device__ __forceinline__ uint4 decode_e4m3x8(uint2 codes, std::uint8_t scale_byte) {
  const float scale = e8m0_to_float(scale_byte);
  std::uint32_t out[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const std::uint32_t two = (p < 2 ? codes.x : codes.y) >> (16 * (p % 2));
    const std::uint32_t half2 = e4m3x2_to_f16x2(two & 0xffffu);
    const float low = __half2float(__ushort_as_half(static_cast<unsigned short>(half2 & 0xffffu))) * scale;
    const float high = __half2float(__ushort_as_half(static_cast<unsigned short>(half2 >> 16))) * scale;
    out[p] =
        __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);  // exact: the low halves are zero
  }
  return uint4{out[0], out[1], out[2], out[3]};
}

}  // namespace pivot::cuda
