// Who owns which page (or slot): a free list with reference counts, and nothing else.
//
// Pages are shared by sequences with a common prefix, hence the counts. Every misuse (a release too many, an
// id that was never handed out) is a programmer error that stops the program with the numbers, because a page
// owned twice corrupts another request's memory silently.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace pivot {

// Who holds a reference: a running sequence, or something that gives it back when asked (a cached prefix).
enum class PageOwner : std::uint8_t { kSequence, kCache };

class PageAllocator {
 public:
  // `what` names the unit in messages: "ratio4 page", "slot".
  PageAllocator(std::int32_t capacity, std::string what);

  // A free id with one reference of a sequence, lowest first. kUnavailable with used and total when none is
  // free.
  Result<std::int32_t> acquire();
  // One more owner of a page in use.
  void retain(std::int32_t id, PageOwner owner = PageOwner::kSequence);
  // One owner less; true when it was the last, and the id is free again.
  bool release(std::int32_t id, PageOwner owner = PageOwner::kSequence);

  std::int32_t capacity() const { return static_cast<std::int32_t>(references_.size()); }
  std::int32_t used() const { return used_; }
  std::int32_t free() const { return capacity() - used_; }
  // In use, but by cached prefixes alone: free as soon as these are given up.
  std::int32_t cached_only() const { return cached_only_; }
  std::int32_t references(std::int32_t id) const;
  // Recounts everything: free + used = capacity, each free id listed once and unowned, cached references at
  // most all references. False never happens.
  bool consistent() const;

 private:
  std::string what_;
  bool only_cached(std::size_t index) const {
    return references_[index] > 0 && references_[index] == cached_[index];
  }

  std::vector<std::int32_t> references_;
  std::vector<std::int32_t> cached_;  // of these, of kCache
  std::vector<std::int32_t> free_;    // stack
  std::int32_t used_ = 0;
  std::int32_t cached_only_ = 0;
};

}  // namespace pivot
