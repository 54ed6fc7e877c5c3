#include "cache/page_allocator.h"

#include <utility>

#include "base/check.h"

namespace pivot {

PageAllocator::PageAllocator(std::int32_t capacity, std::string what)
    : what_(std::move(what)),
      references_(static_cast<std::size_t>(capacity), 0),
      cached_(static_cast<std::size_t>(capacity), 0) {
  free_.reserve(references_.size());
  for (std::int32_t id = capacity - 1; id >= 0; --id) free_.push_back(id);
}

Result<std::int32_t> PageAllocator::acquire() {
  if (free_.empty())
    return fail(ErrorCode::kUnavailable,
                "all {} {}s are in use; wait for a sequence to end, or give the cache more memory",
                capacity(), what_);
  const std::int32_t id = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(id)] = 1;
  ++used_;
  return id;
}

void PageAllocator::retain(std::int32_t id, PageOwner owner) {
  PIVOT_CHECK(references(id) > 0, "{} {} is free and cannot get another owner", what_, id);
  const auto index = static_cast<std::size_t>(id);
  cached_only_ -= only_cached(index) ? 1 : 0;
  ++references_[index];
  if (owner == PageOwner::kCache) ++cached_[index];
  cached_only_ += only_cached(index) ? 1 : 0;
}

bool PageAllocator::release(std::int32_t id, PageOwner owner) {
  PIVOT_CHECK(references(id) > 0, "{} {} was released more often than acquired", what_, id);
  const auto index = static_cast<std::size_t>(id);
  const std::int32_t of_kind =
      owner == PageOwner::kCache ? cached_[index] : references_[index] - cached_[index];
  PIVOT_CHECK(of_kind > 0, "{} {} has no such owner: {} references, {} of the cache", what_, id,
              references_[index], cached_[index]);
  cached_only_ -= only_cached(index) ? 1 : 0;
  --references_[index];
  if (owner == PageOwner::kCache) --cached_[index];
  cached_only_ += only_cached(index) ? 1 : 0;
  if (references_[index] > 0) return false;
  free_.push_back(id);
  --used_;
  return true;
}

std::int32_t PageAllocator::references(std::int32_t id) const {
  PIVOT_CHECK(id >= 0 && id < capacity(), "{} {} of {}", what_, id, capacity());
  return references_[static_cast<std::size_t>(id)];
}

bool PageAllocator::consistent() const {
  std::vector<bool> listed(references_.size(), false);
  for (std::int32_t id : free_) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= references_.size() || listed[index] || references_[index] != 0) return false;
    listed[index] = true;
  }
  std::int32_t owned = 0;
  std::int32_t cached = 0;
  for (std::size_t i = 0; i < references_.size(); ++i) {
    if (cached_[i] < 0 || cached_[i] > references_[i]) return false;
    owned += references_[i] > 0 ? 1 : 0;
    cached += only_cached(i) ? 1 : 0;
  }
  return owned == used_ && cached == cached_only_ &&
         used_ + static_cast<std::int32_t>(free_.size()) == capacity();
}

}  // namespace pivot
