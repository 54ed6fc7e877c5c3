// Rows of the caches: the rounding that the kv and index_keys knobs ask for, and where a row lies.
#pragma once

#include <cstdint>

#include "numeric/row_layout.h"
#include "ops/knobs.h"
#include "ops/ops.h"

namespace pivot::reference {

// The kv knob on one main row [nope | rope], in place: Q8_64 on the NoPE dims. `scales` (optional): the group
// bytes.
void round_kv(float* row, std::int32_t head_dim, std::int32_t rope, KvPrecision precision,
              std::uint8_t* scales);
// The index_keys knob on one index query head or key after the Hadamard rotation, in place: Q4_32, one E4M3
// group over the whole vector, or nothing (BF16 rounding has happened).
void round_index(float* row, std::int32_t width, IndexPrecision precision);

// Writes an unrounded main row: packed layouts take codes and scales from it, wide ones its rounded values.
void store_kv(const RowLayout& layout, std::int32_t rope, KvPrecision precision, const float* row,
              std::byte* data, std::byte* scales);
void store_index(const RowLayout& layout, IndexPrecision precision, const float* row, std::byte* data,
                 std::byte* scales);

struct RowPointers {
  std::byte* data = nullptr;
  std::byte* scales = nullptr;
};
RowPointers ring_row(const RingView& ring, std::int32_t slot, std::int32_t position);
// REQUIRES: the page table holds a page for the entry.
RowPointers paged_row(const PagedView& pages, std::int32_t table, std::int64_t entry);

void read_ring_row(const RingView& ring, std::int32_t slot, std::int32_t position, float* row);
void read_paged_row(const PagedView& pages, std::int32_t table, std::int64_t entry, float* row);

}  // namespace pivot::reference
