// A sequence's complete state at one position, kept so that another sequence can go on from it: the pages by
// reference, the fixed part (rings, compressor states) copied to the host.
//
// This is what the prefix cache holds and what the choices of one request fork from. Unlike a snapshot it is
// tied to its pool: no page is copied, so keeping one costs the fixed part only. A page that is only partly
// filled at the position is copied by whoever writes to it next (SequenceState::reserve).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/sequence_state.h"

namespace pivot {

// A range of a slot's bytes.
struct SlotRange {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};
// What of a slot a continuation at `position` reads, ascending: every window ring, and the compressor rows of
// the unfinished blocks (specification 2.5). At multiples of 128 nothing of a ratio-128 compressor. Ranges
// with a small gap between them are merged, because each is a transfer of its own.
std::vector<SlotRange> slot_ranges(const CacheLayout& layout, std::int64_t position);

class StateImage {
 public:
  // The state at sequence.position(). `logits` (optional) are those that follow the last token.
  static std::shared_ptr<const StateImage> capture(const SequenceState& sequence,
                                                   std::span<const float> logits = {});
  ~StateImage();  // gives its page references back
  StateImage(const StateImage&) = delete;
  StateImage& operator=(const StateImage&) = delete;

  std::int64_t position() const { return position_; }
  std::span<const std::int32_t> pages(PagePool pool) const { return pages_[static_cast<std::size_t>(pool)]; }
  std::span<const float> logits() const { return logits_; }  // empty where none were kept
  std::int64_t host_bytes() const;                           // what keeping it costs outside the pool

  CachePool& pool() const { return pool_; }
  // Puts the fixed part where it lies in a slot; the rest of `slot` (slot_bytes) is left as it is.
  void copy_fixed(std::span<std::byte> slot) const;

  // Makes an empty sequence of the same pool continue here. `tokens` are the position() tokens of the image:
  // the caller knows them, the image does not keep them.
  void restore(SequenceState& sequence, std::span<const TokenId> tokens) const;

 private:
  explicit StateImage(CachePool& pool) : pool_(pool) {}
  CachePool& pool_;
  std::int64_t position_ = 0;
  std::vector<std::int32_t> pages_[kNumPagePools];
  std::vector<std::byte> fixed_;  // the slot ranges one after another
  std::vector<float> logits_;
};

}  // namespace pivot
