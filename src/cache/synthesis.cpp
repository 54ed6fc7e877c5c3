#include "cache/synthesis.h"

#include <array>
#include <bit>
#include <random>
#include <vector>

#include "base/threads.h"
#include "numeric/formats.h"
#include "numeric/row_layout.h"

namespace pivot {
namespace {

// Rows differ, but need not be drawn one by one: a million of them come from this many.
constexpr std::size_t kPatterns = 61;

// Values in (-1, 1) that BF16 can hold.
float draw(std::mt19937& random) {
  return round_bf16(static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-31f);
}

class RowPatterns {
 public:
  RowPatterns(const RowLayout& layout, std::uint32_t seed) : layout_(layout) {
    std::mt19937 random(seed);
    std::vector<float> x(static_cast<std::size_t>(layout.width));
    data_.resize(kPatterns * static_cast<std::size_t>(layout.data_bytes));
    scales_.resize(kPatterns * static_cast<std::size_t>(layout.scale_bytes));
    for (std::size_t i = 0; i < kPatterns; ++i) {
      for (float& value : x) value = draw(random);
      pack_row(layout, x.data(), data_.data() + i * static_cast<std::size_t>(layout.data_bytes),
               scales_.data() + i * static_cast<std::size_t>(layout.scale_bytes));
    }
  }

  // Pages [0, count) of `rows` rows each, `stride` bytes apart.
  void fill(std::byte* base, std::int64_t stride, std::int64_t count, std::int32_t rows,
            ThreadPool& pool) const {
    pool.for_ranges(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t page = begin; page < end; ++page)
        for (std::int32_t row = 0; row < rows; ++row) {
          const std::size_t from = static_cast<std::size_t>(page * rows + row) % kPatterns;
          std::byte* at = base + page * stride;
          copy(data_, from, layout_.data_bytes, at + layout_.data_offset(row));
          copy(scales_, from, layout_.scale_bytes, at + layout_.scale_offset(row, rows));
        }
    });
  }

 private:
  static void copy(const std::vector<std::byte>& rows, std::size_t row, std::int32_t bytes, std::byte* to) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(row) * bytes;
    std::copy(begin, begin + bytes, to);
  }

  RowLayout layout_;
  std::vector<std::byte> data_, scales_;
};

void fill_state(const CompressorStateView& state, std::int64_t slots, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    float* values = state.base + slot * state.slot_floats;
    for (std::int64_t i = 0; i < std::int64_t{2} * state.rows * state.width; ++i) values[i] = draw(random);
  }
}

}  // namespace

void synthesize_host_cache(std::span<const LayerCacheView> layers, std::int64_t num_slots,
                           std::int64_t ratio4_pages, std::int64_t ratio128_pages) {
  ThreadPool pool(0);
  std::uint32_t seed = 1;
  const auto pages = [&](const PagedView& view, std::int64_t count) {
    RowPatterns(view.layout, ++seed).fill(view.base, view.page_bytes, count, view.page_rows, pool);
  };
  for (const LayerCacheView& layer : layers) {
    RowPatterns(layer.window.layout, ++seed)
        .fill(layer.window.base, layer.window.slot_bytes, num_slots, layer.window.rows, pool);
    if (layer.compressed.base == nullptr) continue;
    const bool indexed = layer.index_keys.base != nullptr;
    const std::int64_t count = indexed ? ratio4_pages : ratio128_pages;
    pages(layer.compressed, count);
    fill_state(layer.compressor, num_slots, ++seed);
    if (!indexed) continue;
    pages(layer.index_keys, count);
    fill_state(layer.index_compressor, num_slots, ++seed);
  }
}

}  // namespace pivot
