#include "text/grammar/reasoning_gate.h"

#include <algorithm>

#include "text/chat/dsml.h"

namespace pivot {
namespace {

static_assert(dsml::kThinkClose.size() == ThinkCloseMatcher::kLength);

void forbid(std::vector<std::uint32_t>& mask, std::size_t token) {
  mask[token / 32] &= ~(1u << (token % 32));
}

class ReasoningGate final : public TokenConstraint {
 public:
  ReasoningGate(std::shared_ptr<const ReasoningTokens> tokens, std::unique_ptr<TokenConstraint> inner,
                bool must_answer)
      : tokens_(std::move(tokens)), inner_(std::move(inner)), must_answer_(must_answer) {}

  Result<bool> fill_mask(std::span<std::uint32_t> mask) override {
    if (close_.complete()) return inner_->fill_mask(mask);
    const auto& words = (must_answer_ ? tokens_->masks_without_stop : tokens_->masks)[close_.matched()];
    if (mask.size() < words.size())
      return fail(ErrorCode::kInternal, "a mask of {} words was given; the vocabulary has {}", mask.size(),
                  words.size());
    std::copy(words.begin(), words.end(), mask.begin());
    return true;
  }

  Result<> accept(TokenId token) override {
    if (close_.complete()) return inner_->accept(token);
    const auto index = static_cast<std::size_t>(raw(token));
    if (raw(token) < 0 || index >= tokens_->bytes.size())
      return fail(ErrorCode::kInternal, "token {} is outside the vocabulary", raw(token));
    const auto& stops = tokens_->stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      stopped_ = true;
      return {};
    }
    const std::string_view bytes = tokens_->bytes[index];
    if (close_.take(bytes) != bytes.size())
      return fail(ErrorCode::kInternal,
                  "token {} goes on after the end of the reasoning, which its mask forbade", raw(token));
    return {};
  }

  bool is_finished() const override { return stopped_ || (close_.complete() && inner_->is_finished()); }

  std::unique_ptr<TokenConstraint> clone() const override {
    auto copy = std::make_unique<ReasoningGate>(tokens_, inner_->clone(), must_answer_);
    copy->close_ = close_;
    copy->stopped_ = stopped_;
    return copy;
  }

 private:
  std::shared_ptr<const ReasoningTokens> tokens_;
  std::unique_ptr<TokenConstraint> inner_;
  bool must_answer_;
  ThinkCloseMatcher close_;
  bool stopped_ = false;
};

}  // namespace

std::size_t ThinkCloseMatcher::take(std::string_view bytes) {
  // '<' occurs in the marker only at its start, so a mismatch can begin a new match at the same byte only.
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == dsml::kThinkClose[matched_]) {
      if (++matched_ == kLength) return i + 1;
    } else {
      matched_ = bytes[i] == dsml::kThinkClose[0] ? 1 : 0;
    }
  }
  return bytes.size();
}

void fill_reasoning_masks(ReasoningTokens& tokens) {
  const std::size_t count = tokens.bytes.size();
  for (std::size_t state = 0; state < ThinkCloseMatcher::kLength; ++state) {
    std::vector<std::uint32_t>& mask = tokens.masks[state];
    mask.assign(static_cast<std::size_t>(mask_words(static_cast<std::int64_t>(count))), ~0u);
    for (std::size_t id = count; id < mask.size() * 32; ++id) forbid(mask, id);
    for (std::size_t id = 0; id < count; ++id) {
      const std::string_view bytes = tokens.bytes[id];
      // A token without bytes is a hole in the vocabulary.
      if (bytes.empty()) forbid(mask, id);
      if (bytes.find('>') == std::string_view::npos) continue;
      ThinkCloseMatcher matcher;
      matcher.take(dsml::kThinkClose.substr(0, state));
      if (matcher.take(bytes) != bytes.size()) forbid(mask, id);
    }
    tokens.masks_without_stop[state] = mask;
    for (const TokenId stop : tokens.stop_tokens)
      forbid(tokens.masks_without_stop[state], static_cast<std::size_t>(raw(stop)));
  }
}

std::unique_ptr<TokenConstraint> make_reasoning_gate(std::shared_ptr<const ReasoningTokens> tokens,
                                                     std::unique_ptr<TokenConstraint> inner,
                                                     bool must_answer) {
  return std::make_unique<ReasoningGate>(std::move(tokens), std::move(inner), must_answer);
}

}  // namespace pivot
