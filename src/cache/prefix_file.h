// The file of one cached prefix (docs/prefix-cache-files.md), and how a chain of them becomes a snapshot.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/snapshot.h"

namespace pivot {

// Hash of a token sequence under one checkpoint, set of knobs and format version: an entry's name.
struct PrefixKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const PrefixKey&) const = default;
  std::string to_string() const;  // 32 hex digits
};
struct PrefixKeyHash {
  std::size_t operator()(const PrefixKey& key) const { return static_cast<std::size_t>(key.low); }
};
// The key of no tokens.
PrefixKey root_key(std::uint64_t checkpoint_fingerprint, std::uint64_t knobs_hash);
// The key of the sequence that `key` stands for, followed by `ids`. Chained: cut at the same places, the keys
// are equal.
PrefixKey extend_key(const PrefixKey& key, std::span<const TokenId> ids);

// The state at `position` as the difference to the state at parent_position, a multiple of the block.
struct PrefixFile {
  std::int64_t parent_position = 0;  // 0: no parent
  std::int64_t position = 0;
  Snapshot state;  // export_image from parent_position
};

std::string encode_prefix_file(const PrefixFile& file);
// kInvalidData naming what does not check. Everything is checked: sizes, both kinds of checksum, ranges.
Result<PrefixFile> decode_prefix_file(std::span<const std::byte> bytes);

// A chain, root first, each one's parent_position the position of the one before: the complete snapshot at
// the last one's position. kInvalidData when the pieces do not fit.
Result<Snapshot> join_prefix_files(const CacheLayout& layout, std::span<const PrefixFile> chain);

}  // namespace pivot
