// The memory of all sequences on one device: slots and pages, handed out and taken back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "cache/cache_layout.h"
#include "cache/page_allocator.h"
#include "ops/ops.h"

namespace pivot {

struct CachePoolOptions {
  std::int32_t num_slots = 1;
  std::int32_t num_pages[kNumPagePools] = {0, 0};  // ignored for a pool that no layer uses
  // Fill released slots and pages, and all memory at the start, with 0xff bytes: NaN in every format that has
  // one. For tests: state that is read although nobody wrote it shows at once (faults B04, B39).
  bool poison = false;

  // Room for `sequences` sequences of up to `tokens` tokens.
  static CachePoolOptions for_sequences(const CacheLayout& layout, std::int32_t sequences,
                                        std::int64_t tokens);
};

class CachePool {
 public:
  // Allocates everything at once; nothing is allocated later. On a CPU the operating system commits memory as
  // pages are first written. Errors: kOutOfMemory from the back-end.
  static Result<std::unique_ptr<CachePool>> create(std::shared_ptr<Backend> backend, CacheLayout layout,
                                                   const CachePoolOptions& options);
  ~CachePool();
  CachePool(const CachePool&) = delete;
  CachePool& operator=(const CachePool&) = delete;

  const CacheLayout& layout() const { return layout_; }
  Backend& backend() const { return *backend_; }
  // Equal to layout().planned_bytes of the counts given.
  std::int64_t allocated_bytes() const;

  // kUnavailable when none is free. The contents are undefined (poisoned with the option).
  Result<std::int32_t> acquire_slot();
  void release_slot(std::int32_t slot);
  Result<PageId> acquire_page(PagePool pool);
  void retain_page(PagePool pool, PageId page, PageOwner owner = PageOwner::kSequence);
  void release_page(PagePool pool, PageId page, PageOwner owner = PageOwner::kSequence);

  const PageAllocator& slots() const { return slots_; }
  const PageAllocator& pages(PagePool pool) const { return pages_[static_cast<std::size_t>(pool)]; }

  // Addresses in the back-end's memory.
  std::byte* slot_data(std::int32_t slot) const { return slot_memory_ + slot * layout_.slot_bytes; }
  std::byte* page_data(PagePool pool, PageId page) const {
    return page_memory_[static_cast<int>(pool)] + raw(page) * layout_.page_bytes[static_cast<int>(pool)];
  }

  // The views of every layer for one step. The tables are in the back-end's memory: [sequences][stride], one
  // per pool.
  struct Tables {
    const std::int32_t* ids[kNumPagePools] = {nullptr, nullptr};
    std::int32_t stride[kNumPagePools] = {0, 0};
  };
  std::vector<LayerCacheView> views(const Tables& tables) const;

 private:
  CachePool(std::shared_ptr<Backend> backend, CacheLayout layout, const CachePoolOptions& options);

  std::shared_ptr<Backend> backend_;
  CacheLayout layout_;
  bool poison_;
  PageAllocator slots_;
  std::vector<PageAllocator> pages_;  // by PagePool
  std::byte* slot_memory_ = nullptr;
  std::byte* page_memory_[kNumPagePools] = {nullptr, nullptr};
};

}  // namespace pivot
