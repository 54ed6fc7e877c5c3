// Byte-pair encoding of one word: start from its bytes, apply the merge of lowest rank (leftmost on ties)
// until none fits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace pivot {

// Left and right token of a merge and the token they become; its rank is its place in the list.
struct BpeMerge {
  TokenId left{};
  TokenId right{};
  TokenId result{};
};

class Bpe {
 public:
  // Everything that encoding needs to write to: one per thread at a time. Bounded by about 2 MiB plus 48
  // bytes for each byte of the longest word, which trim() gives back.
  class Workspace {
   public:
    Workspace();
    void trim();

   private:
    friend class Bpe;
    // A word seen before and its ids; one cache line. Longer words, and words of more tokens, are not cached.
    struct alignas(64) CacheEntry {
      static constexpr std::size_t kMaxBytes = 22;
      static constexpr std::size_t kMaxTokens = 10;
      std::array<char, kMaxBytes> word;  // padded with zeros
      std::uint8_t length_bytes;         // 0: empty entry
      std::uint8_t token_count;
      std::array<TokenId, kMaxTokens> tokens;
    };
    static_assert(sizeof(CacheEntry) == 64);
    struct Node {  // a token of a long word, in a doubly linked list over the byte positions
      std::int32_t token;
      std::size_t previous;
      std::size_t next;
    };
    std::vector<CacheEntry> cache_;
    std::vector<Node> nodes_;
    std::vector<std::uint64_t> heap_;
  };

  Bpe() = default;
  Bpe(const std::array<TokenId, 256>& byte_tokens, const std::vector<BpeMerge>& merges);

  // Appends the ids of a word (not empty). O(n log n) in its length.
  void encode(std::string_view word, Workspace& workspace, std::vector<TokenId>& out) const;

 private:
  struct Slot {
    std::uint64_t pair;
    std::uint32_t rank;
    std::int32_t result;
  };
  static constexpr std::uint32_t kNoMerge = 0xFFFFFFFFu;
  static constexpr std::uint64_t kEmptyPair = ~std::uint64_t{0};

  // Where a pair is, or would go.
  std::size_t slot_of(std::uint64_t pair) const;
  // The slot of a pair's merge, or one whose rank is kNoMerge.
  const Slot& find(std::int32_t left, std::int32_t right) const;
  void merge_short(std::string_view word, std::vector<TokenId>& out) const;
  void merge_long(std::string_view word, Workspace& workspace, std::vector<TokenId>& out) const;

  std::array<std::int32_t, 256> byte_tokens_{};
  std::vector<Slot> slots_;  // open addressing, at most half full; a power of two
  int slot_shift_ = 63;
};

}  // namespace pivot
