// Reading what a back-end holds, wherever its memory is: activations, ring rows, paged rows, as fp32 on the
// host. Reads wait for the device: whoever measures on a running server bounds how often (step_probe.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace pivot::recall {

// `count` activations from element `first` on.
std::vector<float> read_acts(Backend& backend, const Act* data, std::int64_t first, std::int64_t count);
std::vector<float> read_floats(Backend& backend, const float* data, std::int64_t first, std::int64_t count);
std::vector<std::int32_t> read_ints(Backend& backend, const std::int32_t* data, std::int64_t first,
                                    std::int64_t count);

// Entries [first, last) of one sequence, [last-first][width].
std::vector<float> read_entries(Backend& backend, const PagedView& pages, std::int32_t table,
                                std::int64_t first, std::int64_t last);
// The same rows one at a time, in ascending order: a page is unpacked when its first row is asked for, so
// that all of a long sequence's are never held at once.
class EntryReader {
 public:
  // Entries [0, count) of one sequence. The back-end must outlive the reader.
  EntryReader(Backend& backend, const PagedView& pages, std::int32_t table, std::int64_t count);
  // [width]; valid until the next call. REQUIRES: j < count, not below the j of the call before.
  const float* row(std::int64_t j);

 private:
  Backend& backend_;
  const PagedView& pages_;
  std::vector<std::int32_t> table_;
  std::int64_t count_;
  std::int64_t page_ = -1;
  std::vector<std::byte> bytes_;
  std::vector<float> rows_;  // of that page
};
// Rows of positions [first, last) of one sequence. REQUIRES: last - first <= ring.rows.
std::vector<float> read_ring(Backend& backend, const RingView& ring, std::int32_t slot, std::int64_t first,
                             std::int64_t last);

// The other way round, for the fault injector: one row as the layout packs it.
void write_entry(Backend& backend, const PagedView& pages, std::int32_t table, std::int64_t entry,
                 std::span<const std::byte> data, std::span<const std::byte> scales);
// The raw bytes of one entry.
struct EntryBytes {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
};
EntryBytes read_entry_bytes(Backend& backend, const PagedView& pages, std::int32_t table, std::int64_t entry);

}  // namespace pivot::recall
