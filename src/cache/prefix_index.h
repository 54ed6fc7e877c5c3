// Which cached states a prompt can go on from: an exact index over token ids, least recently used out first.
//
// A tree of blocks of block_tokens ids: a node is found by the hash of its ids and accepted only when the ids
// themselves are equal, so a hit is never a hash collision. States hang at the node of the last full block
// before their position, with the ids of the rest. The index belongs to one engine, hence to one checkpoint
// and one set of knobs; what leaves the process (disk tier) is keyed on these too.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/state_image.h"

namespace pivot {

class PrefixIndex {
 public:
  PrefixIndex(std::int32_t block_tokens, std::int64_t max_host_bytes);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  struct Match {
    // The longest state that a sequence with these ids can go on from: its position is below ids.size(), or
    // equal to it where the state's logits were kept. Null: none.
    std::shared_ptr<const StateImage> image;
    // Tokens that these ids share with some cached path, in whole blocks. Above the image's position: other
    // prompts had this prefix too, and a state there would have served.
    std::int64_t shared_tokens = 0;
  };
  // The state found becomes the most recently used.
  Match find(std::span<const TokenId> ids);

  // The state at exactly these ids, or null. Does not count as a use.
  std::shared_ptr<const StateImage> peek(std::span<const TokenId> ids) const;

  // Adds the state at these ids (ids.size() == image->position() > 0) as the most recently used, and evicts
  // others until max_host_bytes hold. One that is there stays, unless the new one has logits and it has none.
  // False when the image alone exceeds max_host_bytes: it is not kept.
  bool insert(std::span<const TokenId> ids, std::shared_ptr<const StateImage> image);
  // Drops the state at these ids, if there is one.
  void erase(std::span<const TokenId> ids);
  // Drops the least recently used state; false when the index is empty.
  bool evict_one();
  void clear();

  // Every state that is kept, most recently used first.
  std::vector<std::shared_ptr<const StateImage>> images() const;
  std::int64_t entries() const { return static_cast<std::int64_t>(order_.size()); }
  std::int64_t host_bytes() const { return host_bytes_; }
  std::uint64_t insertions() const { return insertions_; }
  std::uint64_t evictions() const { return evictions_; }  // by insert and evict_one

 private:
  struct Node;
  struct Entry;
  using Order = std::list<Entry*>;  // most recent first

  Node* child(const Node& node, std::span<const TokenId> block) const;
  Node* walk(std::span<const TokenId> ids) const;  // null when a block is missing
  Entry* find_entry(std::span<const TokenId> ids) const;
  void remove(Entry* entry);

  std::int32_t block_tokens_;
  std::int64_t max_host_bytes_;
  std::unique_ptr<Node> root_;
  Order order_;
  std::int64_t host_bytes_ = 0;
  std::uint64_t insertions_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace pivot
