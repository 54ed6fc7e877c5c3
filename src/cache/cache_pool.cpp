#include "cache/cache_pool.h"

#include <utility>

#include "base/check.h"

namespace pivot {
namespace {

constexpr int kPoisonByte = 0xff;
constexpr PagePool kPools[] = {PagePool::kRatio4, PagePool::kRatio128};

std::int32_t capacity(const CacheLayout& layout, const CachePoolOptions& options, PagePool pool) {
  return layout.uses(pool) ? options.num_pages[static_cast<int>(pool)] : 0;
}

}  // namespace

CachePoolOptions CachePoolOptions::for_sequences(const CacheLayout& layout, std::int32_t sequences,
                                                 std::int64_t tokens) {
  CachePoolOptions options;
  options.num_slots = sequences;
  for (PagePool pool : kPools)
    options.num_pages[static_cast<int>(pool)] =
        static_cast<std::int32_t>(sequences * layout.pages_for(pool, tokens));
  return options;
}

CachePool::CachePool(std::shared_ptr<Backend> backend, CacheLayout layout, const CachePoolOptions& options)
    : backend_(std::move(backend)),
      layout_(std::move(layout)),
      poison_(options.poison),
      slots_(options.num_slots, "cache slot") {
  for (PagePool pool : kPools)
    pages_.emplace_back(capacity(layout_, options, pool), std::string(to_string(pool)) + " page");
}

Result<std::unique_ptr<CachePool>> CachePool::create(std::shared_ptr<Backend> backend, CacheLayout layout,
                                                     const CachePoolOptions& options) {
  std::unique_ptr<CachePool> pool(new CachePool(std::move(backend), std::move(layout), options));
  const auto take = [&](std::byte*& memory, std::int64_t bytes, std::string_view purpose) -> Result<> {
    if (bytes == 0) return {};
    PIVOT_TRY(memory, pool->backend_->allocate(bytes, purpose));
    if (options.poison) pool->backend_->fill(memory, kPoisonByte, bytes);
    return {};
  };
  PIVOT_TRY_VOID(take(pool->slot_memory_, options.num_slots * pool->layout_.slot_bytes, "sequence slots"));
  for (PagePool kind : kPools) {
    const int i = static_cast<int>(kind);
    PIVOT_TRY_VOID(take(pool->page_memory_[i], pool->pages(kind).capacity() * pool->layout_.page_bytes[i],
                        kind == PagePool::kRatio4 ? "ratio-4 cache pages" : "ratio-128 cache pages"));
  }
  return pool;
}

CachePool::~CachePool() {
  for (std::byte* memory : {slot_memory_, page_memory_[0], page_memory_[1]})
    if (memory != nullptr) backend_->release(memory);
}

std::int64_t CachePool::allocated_bytes() const {
  return layout_.planned_bytes(slots_.capacity(), pages(PagePool::kRatio4).capacity(),
                               pages(PagePool::kRatio128).capacity());
}

Result<std::int32_t> CachePool::acquire_slot() { return slots_.acquire(); }

void CachePool::release_slot(std::int32_t slot) {
  if (slots_.release(slot) && poison_) backend_->fill(slot_data(slot), kPoisonByte, layout_.slot_bytes);
}

Result<PageId> CachePool::acquire_page(PagePool pool) {
  PIVOT_TRY(const std::int32_t id, pages_[static_cast<std::size_t>(pool)].acquire());
  return PageId{id};
}

void CachePool::retain_page(PagePool pool, PageId page, PageOwner owner) {
  pages_[static_cast<std::size_t>(pool)].retain(raw(page), owner);
}

void CachePool::release_page(PagePool pool, PageId page, PageOwner owner) {
  if (pages_[static_cast<std::size_t>(pool)].release(raw(page), owner) && poison_)
    backend_->fill(page_data(pool, page), kPoisonByte, layout_.page_bytes[static_cast<int>(pool)]);
}

std::vector<LayerCacheView> CachePool::views(const Tables& tables) const {
  std::vector<LayerCacheView> views;
  views.reserve(layout_.layers.size());
  for (const LayerLayout& layer : layout_.layers) {
    LayerCacheView view;
    view.window = {slot_memory_ + layer.window_offset, layout_.slot_bytes, layout_.options.window_rows,
                   layout_.kv};
    const auto paged = [&](PagePool pool, std::int64_t offset, const RowLayout& rows) {
      const int i = static_cast<int>(pool);
      return PagedView{page_memory_[i] == nullptr ? nullptr : page_memory_[i] + offset,
                       layout_.page_bytes[i],
                       layout_.page_rows(pool),
                       rows,
                       tables.ids[i],
                       tables.stride[i]};
    };
    const auto state = [&](std::int64_t offset, std::int32_t rows, std::int32_t width) {
      return CompressorStateView{reinterpret_cast<float*>(slot_memory_ + offset),
                                 layout_.slot_bytes / static_cast<std::int64_t>(sizeof(float)), rows, width};
    };
    if (layer.ratio == 4) {
      view.compressed = paged(PagePool::kRatio4, layer.compressed_offset, layout_.kv);
      view.index_keys = paged(PagePool::kRatio4, layer.index_keys_offset, layout_.index_key);
      view.compressor =
          state(layer.compressor_offset, layout_.options.ratio4_state_rows, layout_.compressor_width4);
      view.index_compressor = state(layer.index_compressor_offset, layout_.options.ratio4_state_rows,
                                    layout_.index_compressor_width);
    } else if (layer.ratio == 128) {
      view.compressed = paged(PagePool::kRatio128, layer.compressed_offset, layout_.kv);
      view.compressor =
          state(layer.compressor_offset, layout_.options.ratio128_state_rows, layout_.compressor_width128);
    }
    views.push_back(view);
  }
  return views;
}

}  // namespace pivot
