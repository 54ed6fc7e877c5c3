// What a sampler asks of constrained decoding: which tokens may come next, and what has come.
//
// The interface is here, in the lower layer, so that the engine includes no grammar and the grammar no
// engine. One object follows one sequence; calls come from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/ids.h"

namespace pivot {

// Words of a mask over a vocabulary: bit (id % 32) of word id / 32 belongs to token id.
constexpr std::int64_t mask_words(std::int64_t vocab_size) { return (vocab_size + 31) / 32; }
inline bool mask_allows(std::span<const std::uint32_t> mask, TokenId id) {
  return (mask[static_cast<std::size_t>(raw(id)) / 32] >> (raw(id) % 32) & 1u) != 0;
}

class TokenConstraint {
 public:
  enum class Mask : std::uint8_t {
    kRestricted,   // the bits say which tokens may come next; at least one may
    kUnrestricted  // every token may come next; the words were left as they were
  };

  virtual ~TokenConstraint() = default;

  // Tokens that the mask speaks of: [0, vocab_size). Logits beyond it must be treated as forbidden.
  virtual std::int64_t vocab_size() const = 0;

  // Writes which tokens may come next into mask_words(vocab_size()) words; 1 allows. The end-of-sentence
  // token is allowed exactly where the text so far is complete. Bits beyond the vocabulary are 0.
  // Errors: kInternal where no token may come next, or the grammar library failed.
  virtual Result<Mask> fill_mask(std::span<std::uint32_t> words) = 0;

  // A token was chosen. kInvalidArgument, with the state as before, where it was not allowed.
  virtual Result<> accept(TokenId id) = 0;

  // The end-of-sentence token was accepted: nothing may follow, fill_mask must not be called any more.
  virtual bool is_finished() const = 0;

  // The text so far is complete and nothing but the end may follow: the sequence can stop without another
  // step.
  virtual bool is_complete() const = 0;

  // An independent copy in the same state (n > 1, pre-emption, speculation).
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
};

}  // namespace pivot
