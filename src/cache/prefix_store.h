// Cached prefixes on disk: they survive a restart, are complete or absent, and damaged bytes are never
// served.
//
// An entry is the state at one position of one token sequence, stored as the difference to an earlier entry
// of the same sequence (its parent, at a multiple of the block), so that the turns of a conversation write
// what is new. docs/prefix-cache-files.md describes the files. In memory there are only names, sizes and the
// order of use. Files of another checkpoint or other knobs are other entries: never found, and removed when
// room is needed.
//
// Everything that can go wrong with a file (missing, short, flipped bits, an unreadable parent) drops the
// entry and is a miss. All methods may be called from any thread; write() hands over to a writer thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "cache/prefix_file.h"

namespace pivot {

struct PrefixStoreOptions {
  std::filesystem::path folder;  // created where it does not exist; one process at a time
  std::int64_t max_bytes = 0;    // the least recently used entries go first
  std::uint64_t checkpoint_fingerprint = 0;
  std::int32_t max_pending = 8;  // files that wait for the writer; further ones are skipped
};

struct PrefixStoreStats {
  std::uint64_t writes = 0;
  std::uint64_t write_failures = 0;
  std::uint64_t skipped_writes = 0;  // too many were waiting
  std::uint64_t evictions = 0;
  std::uint64_t damaged = 0;  // entries dropped because their bytes did not check
  std::int64_t entries = 0;
  std::int64_t bytes = 0;
};

class PrefixStore {
 public:
  // Reads the names in the folder and removes what an interrupted write left behind.
  // Errors: kCannotCreate, kPermission, kIo for the folder; kUnavailable when another process uses it.
  static Result<std::unique_ptr<PrefixStore>> open(const PrefixStoreOptions& options,
                                                   const CacheLayout& layout);
  ~PrefixStore();  // flush()
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  // Position of the longest entry that is a proper prefix of `ids`; 0: none. Looks at names alone.
  std::int64_t find(std::span<const TokenId> ids) const;
  // The complete snapshot at ids[0, position); nullopt when there is none, or when the entry or one of its
  // parents turned out to be damaged or gone.
  std::optional<Snapshot> load(std::span<const TokenId> ids, std::int64_t position);
  // Whether there is an entry at exactly these ids, on disk or waiting for the writer.
  bool contains(std::span<const TokenId> ids) const;
  // The best parent of an entry at `ids`: the longest entry at a multiple of the block, below ids.size(), on
  // disk or waiting for the writer; 0: none.
  std::int64_t parent_of(std::span<const TokenId> ids) const;

  // Whether the writer would take another file.
  bool accepts() const;
  // Queues an entry; ids.size() == file.position, and an entry at file.parent_position must exist unless it
  // is 0. False when it is there already, or when too many wait.
  bool write(std::span<const TokenId> ids, PrefixFile file);
  // Waits until everything queued is on disk or has failed.
  void flush();

  PrefixStoreStats stats() const;

 private:
  struct State;
  explicit PrefixStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pivot
