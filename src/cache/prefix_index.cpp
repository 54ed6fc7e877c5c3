#include "cache/prefix_index.h"

#include <xxhash.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace pivot {
namespace {

std::uint64_t hash_ids(std::span<const TokenId> ids) { return XXH3_64bits(ids.data(), ids.size_bytes()); }

bool equal(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

struct PrefixIndex::Entry {
  Node* node = nullptr;
  std::vector<TokenId> tail;  // after the node's block, fewer than a block
  std::shared_ptr<const StateImage> image;
  std::int64_t bytes = 0;
  Order::iterator order;
};

struct PrefixIndex::Node {
  Node* parent = nullptr;
  std::vector<TokenId> block;  // empty at the root
  std::uint64_t hash = 0;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Node>> children;
  std::vector<std::unique_ptr<Entry>> entries;
};

PrefixIndex::PrefixIndex(std::int32_t block_tokens, std::int64_t max_host_bytes)
    : block_tokens_(block_tokens), max_host_bytes_(max_host_bytes), root_(std::make_unique<Node>()) {}

PrefixIndex::~PrefixIndex() { clear(); }

PrefixIndex::Node* PrefixIndex::child(const Node& node, std::span<const TokenId> block) const {
  const auto [begin, end] = node.children.equal_range(hash_ids(block));
  for (auto it = begin; it != end; ++it)
    if (equal(it->second->block, block)) return it->second.get();
  return nullptr;
}

PrefixIndex::Node* PrefixIndex::walk(std::span<const TokenId> ids) const {
  const auto block = static_cast<std::size_t>(block_tokens_);
  Node* node = root_.get();
  for (std::size_t at = 0; at + block <= ids.size() && node != nullptr; at += block)
    node = child(*node, ids.subspan(at, block));
  return node;
}

PrefixIndex::Entry* PrefixIndex::find_entry(std::span<const TokenId> ids) const {
  Node* node = walk(ids);
  if (node == nullptr) return nullptr;
  const std::span<const TokenId> tail = ids.last(ids.size() % static_cast<std::size_t>(block_tokens_));
  for (const auto& entry : node->entries)
    if (equal(entry->tail, tail)) return entry.get();
  return nullptr;
}

std::shared_ptr<const StateImage> PrefixIndex::peek(std::span<const TokenId> ids) const {
  const Entry* entry = find_entry(ids);
  return entry == nullptr ? nullptr : entry->image;
}

PrefixIndex::Match PrefixIndex::find(std::span<const TokenId> ids) {
  const auto block = static_cast<std::size_t>(block_tokens_);
  Match match;
  Entry* best = nullptr;
  std::size_t best_position = 0;
  Node* node = root_.get();
  std::size_t at = 0;
  while (true) {
    const std::span<const TokenId> rest = ids.subspan(at);
    for (const auto& entry : node->entries) {
      const std::size_t position = at + entry->tail.size();
      if (position <= best_position || position > ids.size()) continue;
      if (position == ids.size() && entry->image->logits().empty()) continue;
      if (!equal(entry->tail, rest.first(entry->tail.size()))) continue;
      best = entry.get();
      best_position = position;
    }
    match.shared_tokens = static_cast<std::int64_t>(at);
    if (rest.size() < block) break;
    node = child(*node, rest.first(block));
    if (node == nullptr) break;
    at += block;
  }
  if (best != nullptr) {
    order_.splice(order_.begin(), order_, best->order);
    match.image = best->image;
  }
  return match;
}

bool PrefixIndex::insert(std::span<const TokenId> ids, std::shared_ptr<const StateImage> image) {
  PIVOT_CHECK(!ids.empty() && static_cast<std::int64_t>(ids.size()) == image->position(),
              "{} ids, position {}", ids.size(), image->position());
  const std::int64_t bytes = image->host_bytes() + static_cast<std::int64_t>(ids.size_bytes());
  if (bytes > max_host_bytes_) return false;
  if (Entry* entry = find_entry(ids); entry != nullptr) {
    if (!entry->image->logits().empty() || image->logits().empty()) {
      order_.splice(order_.begin(), order_, entry->order);
      return true;
    }
    remove(entry);
  }
  const auto block = static_cast<std::size_t>(block_tokens_);
  Node* node = root_.get();
  std::size_t at = 0;
  for (; at + block <= ids.size(); at += block) {
    const std::span<const TokenId> part = ids.subspan(at, block);
    Node* next = child(*node, part);
    if (next == nullptr) {
      auto added = std::make_unique<Node>();
      added->parent = node;
      added->block.assign(part.begin(), part.end());
      added->hash = hash_ids(part);
      next = added.get();
      node->children.emplace(added->hash, std::move(added));
    }
    node = next;
  }
  auto entry = std::make_unique<Entry>();
  entry->node = node;
  entry->tail.assign(ids.begin() + static_cast<std::ptrdiff_t>(at), ids.end());
  entry->image = std::move(image);
  entry->bytes = bytes;
  order_.push_front(entry.get());
  entry->order = order_.begin();
  node->entries.push_back(std::move(entry));
  host_bytes_ += bytes;
  ++insertions_;
  while (host_bytes_ > max_host_bytes_) evict_one();
  return true;
}

void PrefixIndex::erase(std::span<const TokenId> ids) {
  if (Entry* entry = find_entry(ids); entry != nullptr) remove(entry);
}

bool PrefixIndex::evict_one() {
  if (order_.empty()) return false;
  remove(order_.back());
  ++evictions_;
  return true;
}

std::vector<std::shared_ptr<const StateImage>> PrefixIndex::images() const {
  std::vector<std::shared_ptr<const StateImage>> images;
  for (const Entry* entry : order_) images.push_back(entry->image);
  return images;
}

void PrefixIndex::clear() {
  while (!order_.empty()) remove(order_.back());
}

void PrefixIndex::remove(Entry* entry) {
  host_bytes_ -= entry->bytes;
  order_.erase(entry->order);
  Node* node = entry->node;
  std::erase_if(node->entries, [&](const auto& e) { return e.get() == entry; });
  // Paths that lead nowhere go too.
  while (node->parent != nullptr && node->entries.empty() && node->children.empty()) {
    Node* parent = node->parent;
    const auto [begin, end] = parent->children.equal_range(node->hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second.get() != node) continue;
      parent->children.erase(it);
      break;
    }
    node = parent;
  }
}

}  // namespace pivot
