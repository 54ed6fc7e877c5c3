// One sequence: its tokens, its slot and its pages. The bytes lie in the pool; this is the book-keeping.
//
// The life of a step: reserve(n), build a SequenceSpan from position() and slot(), run the forward pass,
// append(ids). Not thread-safe; belongs to whoever runs the steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/cache_pool.h"

namespace pivot {

class SequenceState {
 public:
  // Takes a slot. kUnavailable when none is free.
  static Result<std::unique_ptr<SequenceState>> create(std::shared_ptr<CachePool> pool);
  ~SequenceState();  // gives slot and pages back
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  CachePool& pool() const { return *pool_; }
  std::int32_t slot() const { return slot_; }
  // Tokens whose state is complete in the cache.
  std::span<const TokenId> tokens() const { return tokens_; }
  std::int64_t position() const { return static_cast<std::int64_t>(tokens_.size()); }  // of the next token
  std::span<const std::int32_t> pages(PagePool pool) const { return pages_[static_cast<std::size_t>(pool)]; }

  // Makes sure that the pages of the next num_tokens tokens are there and owned by this sequence alone (a
  // page shared with another sequence that would be written to is copied first). kUnavailable when the pool
  // is full; then nothing has changed.
  Result<> reserve(std::int64_t num_tokens);
  // Starts an empty sequence on pages that others hold too, one more reference each. The slot's bytes are the
  // caller's to restore. REQUIRES: position() == 0, and exactly the pages that `tokens` need.
  void attach(std::span<const TokenId> tokens, std::span<const std::int32_t> ratio4_pages,
              std::span<const std::int32_t> ratio128_pages);
  // Records tokens whose step has been computed. REQUIRES: reserved.
  void append(std::span<const TokenId> ids);

  // Tells that the slot's bytes were put there from elsewhere: they hold what a continuation at position()
  // reads, and nothing older. attach() does it itself.
  void mark_restored();

  // Whether the rings still hold what a continuation at num_tokens needs: always at 0 and at position(), and
  // in between as far back as the rings are longer than the window (128) and a compressor block (8, 128),
  // counted from the furthest token that was ever written, and never past the point a state was restored at.
  bool can_truncate(std::int64_t num_tokens) const;
  // Forgets the tokens from num_tokens on and gives their pages back. kUnsupported when !can_truncate.
  Result<> truncate(std::int64_t num_tokens);
  // Forgets tokens and pages without asking whether the rings allow it: the caller restores the slot's bytes
  // to what they were at num_tokens. REQUIRES: num_tokens <= position().
  void rewind_bookkeeping(std::int64_t num_tokens);

 private:
  SequenceState(std::shared_ptr<CachePool> pool, std::int32_t slot) : pool_(std::move(pool)), slot_(slot) {}
  Result<> make_private(PagePool pool, std::size_t index);

  std::shared_ptr<CachePool> pool_;
  std::int32_t slot_;
  std::vector<TokenId> tokens_;
  std::int64_t written_ = 0;   // tokens whose rows are, or were until they were forgotten, in the rings
  std::int64_t restored_ = 0;  // position() when the slot was filled from elsewhere
  std::vector<std::int32_t> pages_[kNumPagePools];
};

// First position whose ring row a continuation at `position` still reads: of the window, and of a compressor
// of `ratio` (specification 2.4, 2.5). Equal to `position` when none is.
std::int64_t first_window_row(std::int64_t position, std::int64_t sliding_window);
std::int64_t first_state_row(std::int64_t position, int ratio);

// The page tables of a step in the back-end's memory: one row per sequence and pool.
class PageTables {
 public:
  // kOutOfMemory from the back-end.
  static Result<std::unique_ptr<PageTables>> create(std::shared_ptr<Backend> backend,
                                                    const CacheLayout& layout, std::int32_t max_sequences,
                                                    std::int64_t max_tokens);
  ~PageTables();
  PageTables(const PageTables&) = delete;
  PageTables& operator=(const PageTables&) = delete;

  // Row i gets the pages of sequences[i]. REQUIRES: at most max_sequences, each of at most max_tokens tokens.
  void upload(std::span<const SequenceState* const> sequences);
  CachePool::Tables tables() const;
  std::int64_t allocated_bytes() const;
  static std::int64_t planned_bytes(const CacheLayout& layout, std::int32_t max_sequences,
                                    std::int64_t max_tokens);

 private:
  PageTables(std::shared_ptr<Backend> backend, std::int32_t max_sequences)
      : backend_(std::move(backend)), max_sequences_(max_sequences) {}
  std::shared_ptr<Backend> backend_;
  std::int32_t max_sequences_;
  std::int32_t stride_[kNumPagePools] = {0, 0};
  std::int32_t* device_[kNumPagePools] = {nullptr, nullptr};
  std::vector<std::int32_t> host_[kNumPagePools];
};

}  // namespace pivot
