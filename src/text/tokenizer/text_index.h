// Ids by text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace pivot {

// Finds the id of a text among texts[id]. Stores ids only: the texts are the caller's and are passed to each
// call.
class TextIndex {
 public:
  // Room for `count` texts, which must not be exceeded.
  explicit TextIndex(std::size_t count = 0);
  // Adds texts[id]. False, changing nothing, where an equal text is there already.
  bool insert(std::span<const std::string_view> texts, TokenId id);
  std::optional<TokenId> find(std::span<const std::string_view> texts, std::string_view text) const;

 private:
  struct Slot {
    std::uint32_t hash_low;
    std::int32_t id;  // -1: empty
  };
  // The slot that holds the text or would.
  std::size_t slot_of(std::span<const std::string_view> texts, std::string_view text,
                      std::uint64_t hash) const;
  std::vector<Slot> slots_;  // open addressing, at most half full; a power of two
};

}  // namespace pivot
