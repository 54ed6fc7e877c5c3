#include "recall/device_rows.h"

#include <algorithm>

#include "base/check.h"
#include "numeric/formats.h"

namespace pivot::recall {
namespace {

void fetch(Backend& backend, void* host, const void* device, std::int64_t bytes) {
  if (bytes <= 0) return;
  (void)backend.synchronize();  // a device fault is reported by the forward pass itself
  backend.download(host, device, bytes);
}

std::byte* page_of(Backend& backend, const PagedView& pages, std::int32_t table, std::int64_t entry) {
  std::int32_t page = 0;
  fetch(backend, &page, pages.page_table + std::int64_t{table} * pages.table_stride + entry / pages.page_rows,
        4);
  return pages.base + page * pages.page_bytes;
}

}  // namespace

std::vector<float> read_acts(Backend& backend, const Act* data, std::int64_t first, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  if (backend.activation_bytes() == 4) {
    fetch(backend, values.data(), static_cast<const float*>(data) + first, count * 4);
    return values;
  }
  std::vector<BF16> narrow(static_cast<std::size_t>(count));
  fetch(backend, narrow.data(), static_cast<const BF16*>(data) + first, count * 2);
  std::transform(narrow.begin(), narrow.end(), values.begin(), [](BF16 x) { return to_float(x); });
  return values;
}

std::vector<float> read_floats(Backend& backend, const float* data, std::int64_t first, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  fetch(backend, values.data(), data + first, count * 4);
  return values;
}

std::vector<std::int32_t> read_ints(Backend& backend, const std::int32_t* data, std::int64_t first,
                                    std::int64_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  fetch(backend, values.data(), data + first, count * 4);
  return values;
}

std::vector<float> read_entries(Backend& backend, const PagedView& pages, std::int32_t table,
                                std::int64_t first, std::int64_t last) {
  const RowLayout& layout = pages.layout;
  std::vector<float> rows(static_cast<std::size_t>(std::max<std::int64_t>(0, last - first) * layout.width));
  if (last <= first) return rows;
  const std::int64_t first_page = first / pages.page_rows;
  const std::vector<std::int32_t> table_row =
      read_ints(backend, pages.page_table + std::int64_t{table} * pages.table_stride, first_page,
                (last - 1) / pages.page_rows - first_page + 1);
  std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes(pages.page_rows)));
  for (std::int64_t j = first; j < last; ++j) {
    const auto row = static_cast<std::int32_t>(j % pages.page_rows);
    if (j == first || row == 0)
      fetch(backend, page.data(),
            pages.base +
                table_row[static_cast<std::size_t>(j / pages.page_rows - first_page)] * pages.page_bytes,
            static_cast<std::int64_t>(page.size()));
    unpack_row(layout, page.data() + layout.data_offset(row),
               page.data() + layout.scale_offset(row, pages.page_rows),
               rows.data() + (j - first) * layout.width);
  }
  return rows;
}

EntryReader::EntryReader(Backend& backend, const PagedView& pages, std::int32_t table, std::int64_t count)
    : backend_(backend),
      pages_(pages),
      table_(read_ints(backend, pages.page_table + std::int64_t{table} * pages.table_stride, 0,
                       (count + pages.page_rows - 1) / pages.page_rows)),
      count_(count),
      bytes_(static_cast<std::size_t>(pages.layout.page_bytes(pages.page_rows))),
      rows_(static_cast<std::size_t>(pages.page_rows) * static_cast<std::size_t>(pages.layout.width)) {}

const float* EntryReader::row(std::int64_t j) {
  const RowLayout& layout = pages_.layout;
  const std::int64_t page = j / pages_.page_rows;
  PIVOT_CHECK(j >= 0 && j < count_ && page >= page_, "entry {} of {}, page {} is read", j, count_, page_);
  if (page != page_) {
    page_ = page;
    fetch(backend_, bytes_.data(), pages_.base + table_[static_cast<std::size_t>(page)] * pages_.page_bytes,
          static_cast<std::int64_t>(bytes_.size()));
    const std::int64_t filled = std::min<std::int64_t>(pages_.page_rows, count_ - page * pages_.page_rows);
    for (std::int32_t r = 0; r < filled; ++r)
      unpack_row(layout, bytes_.data() + layout.data_offset(r),
                 bytes_.data() + layout.scale_offset(r, pages_.page_rows),
                 rows_.data() + std::int64_t{r} * layout.width);
  }
  return rows_.data() + (j - page * pages_.page_rows) * layout.width;
}

std::vector<float> read_ring(Backend& backend, const RingView& ring, std::int32_t slot, std::int64_t first,
                             std::int64_t last) {
  const RowLayout& layout = ring.layout;
  std::vector<float> rows(static_cast<std::size_t>(std::max<std::int64_t>(0, last - first) * layout.width));
  if (last <= first) return rows;
  std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes(ring.rows)));
  fetch(backend, page.data(), ring.base + slot * ring.slot_bytes, static_cast<std::int64_t>(page.size()));
  for (std::int64_t p = first; p < last; ++p) {
    const auto row = static_cast<std::int32_t>(p % ring.rows);
    unpack_row(layout, page.data() + layout.data_offset(row),
               page.data() + layout.scale_offset(row, ring.rows), rows.data() + (p - first) * layout.width);
  }
  return rows;
}

void write_entry(Backend& backend, const PagedView& pages, std::int32_t table, std::int64_t entry,
                 std::span<const std::byte> data, std::span<const std::byte> scales) {
  std::byte* page = page_of(backend, pages, table, entry);
  const auto row = static_cast<std::int32_t>(entry % pages.page_rows);
  backend.upload(page + pages.layout.data_offset(row), data.data(), static_cast<std::int64_t>(data.size()));
  if (!scales.empty())
    backend.upload(page + pages.layout.scale_offset(row, pages.page_rows), scales.data(),
                   static_cast<std::int64_t>(scales.size()));
}

EntryBytes read_entry_bytes(Backend& backend, const PagedView& pages, std::int32_t table,
                            std::int64_t entry) {
  const std::byte* page = page_of(backend, pages, table, entry);
  const auto row = static_cast<std::int32_t>(entry % pages.page_rows);
  EntryBytes bytes;
  bytes.data.resize(static_cast<std::size_t>(pages.layout.data_bytes));
  bytes.scales.resize(static_cast<std::size_t>(pages.layout.scale_bytes));
  fetch(backend, bytes.data.data(), page + pages.layout.data_offset(row), pages.layout.data_bytes);
  fetch(backend, bytes.scales.data(), page + pages.layout.scale_offset(row, pages.page_rows),
        pages.layout.scale_bytes);
  return bytes;
}

}  // namespace pivot::recall
