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

class PageAllocator {
 public:
  // `what` names the unit in messages: "ratio4 page", "slot".
  PageAllocator(std::int32_t capacity, std::string what);

  // A free id with one reference, lowest first. kUnavailable with used and total when none is free.
  Result<std::int32_t> acquire();
  // One more owner of a page in use.
  void retain(std::int32_t id);
  // One owner less; true when it was the last, and the id is free again.
  bool release(std::int32_t id);

  std::int32_t capacity() const { return static_cast<std::int32_t>(references_.size()); }
  std::int32_t used() const { return used_; }
  std::int32_t free() const { return capacity() - used_; }
  std::int32_t references(std::int32_t id) const;
  // Recounts everything: free + used = capacity, each free id listed once and unowned. False never happens.
  bool consistent() const;

 private:
  std::string what_;
  std::vector<std::int32_t> references_;
  std::vector<std::int32_t> free_;  // stack
  std::int32_t used_ = 0;
};

}  // namespace pivot
