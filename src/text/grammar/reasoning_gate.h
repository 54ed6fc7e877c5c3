// Leaves the thinking part of an answer free and starts the grammar after it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/constraint.h"

namespace pivot {

// Where "</think>" ends, found in bytes as they come. The marker is one token in DeepSeek-V4's vocabulary,
// but a model may also spell it out, and whoever reads the answer sees no difference.
class ThinkCloseMatcher {
 public:
  static constexpr std::size_t kLength = 8;

  // Bytes of the marker that the text so far ends with; kLength after the marker.
  std::size_t matched() const { return matched_; }
  bool complete() const { return matched_ == kLength; }
  // Takes bytes up to the end of the marker and returns how many those were.
  std::size_t take(std::string_view bytes);

 private:
  std::size_t matched_ = 0;
};

// Shared by the gates of a tokenizer.
struct ReasoningTokens {
  // Which tokens may come while `matched` bytes of the marker are there: those that do not run past its end.
  std::array<std::vector<std::uint32_t>, ThinkCloseMatcher::kLength> masks;
  // The same without the stop tokens.
  std::array<std::vector<std::uint32_t>, ThinkCloseMatcher::kLength> masks_without_stop;
  std::vector<std::string> bytes;  // of each token
  std::vector<TokenId> stop_tokens;
};

// REQUIRES: tokens->bytes and stop_tokens are filled in.
void fill_reasoning_masks(ReasoningTokens& tokens);

// `inner` in its first state; `must_answer`: no end of sentence before it.
std::unique_ptr<TokenConstraint> make_reasoning_gate(std::shared_ptr<const ReasoningTokens> tokens,
                                                     std::unique_ptr<TokenConstraint> inner,
                                                     bool must_answer);

}  // namespace pivot
