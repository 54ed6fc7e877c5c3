// What a structured-output grammar tells the sampler: which tokens may come next.
//
// A constraint belongs to one choice of one request and is called on the engine thread only, once before and
// once after each of the choice's tokens. It must be fast (the whole batch waits for it) and must not block.
// The interface lies below the engine, so that the engine includes no grammar and the grammar no engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/ids.h"

namespace pivot {

// Words of a bit mask over `vocab_size` tokens: token t is bit t mod 32 of word t / 32, 1 = allowed.
constexpr std::int64_t mask_words(std::int64_t vocab_size) { return (vocab_size + 31) / 32; }
inline bool mask_allows(std::span<const std::uint32_t> mask, TokenId token) {
  return (mask[static_cast<std::size_t>(raw(token)) / 32] >> (raw(token) % 32) & 1u) != 0;
}

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Writes which tokens may come next into `mask` (mask_words(vocab_size) words, contents undefined before).
  // Returns false when every token is allowed; the mask is then not read. The stop tokens (end of sentence)
  // must be allowed exactly where the text may end. Bits beyond the vocabulary are ignored.
  // An error fails this request and no other. kInternal: no token is allowed although is_finished() is false.
  virtual Result<bool> fill_mask(std::span<std::uint32_t> mask) = 0;

  // Takes the token that was chosen, stop tokens included. REQUIRES: the last mask allowed it.
  // An error fails this request and no other.
  virtual Result<> accept(TokenId token) = 0;

  // True when nothing may follow: the engine ends the choice with FinishReason::kStopToken after the token
  // that was accepted last.
  virtual bool is_finished() const = 0;

  // An independent copy in the same state: one for each choice of a request with num_choices > 1.
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
};

}  // namespace pivot
