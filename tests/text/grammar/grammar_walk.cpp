#include "grammar_walk.h"

#include <gtest/gtest.h>

#include <vector>

namespace pivot::test {

Walk walk(TokenConstraint& constraint, const Tokenizer& tokenizer, std::string_view text) {
  Walk result;
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(mask_words(tokenizer.vocab_size())));
  std::string done;
  for (const TokenId token : tokenizer.encode(text)) {
    if (constraint.is_finished()) {
      result.problem = "finished after: " + done;
      return result;
    }
    const Result<bool> restricted = constraint.fill_mask(mask);
    if (!restricted) {
      result.problem = restricted.error().to_string();
      return result;
    }
    done += tokenizer.token_bytes(token);
    if (*restricted && !mask_allows(mask, token)) {
      result.problem = "not allowed at the end of: " + done;
      return result;
    }
    if (const Result<> accepted = constraint.accept(token); !accepted) {
      result.problem = accepted.error().to_string();
      return result;
    }
  }
  result.allowed = true;
  result.finished = constraint.is_finished();
  result.complete = result.finished;
  if (!result.finished) {
    const Result<bool> restricted = constraint.fill_mask(mask);
    result.complete = restricted && (!*restricted || mask_allows(mask, *tokenizer.special().eos));
  }
  return result;
}

std::string draw(TokenConstraint& constraint, const Tokenizer& tokenizer, std::mt19937& random, int most,
                 bool eager) {
  std::string text;
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(mask_words(tokenizer.vocab_size())));
  for (int step = 0; step < most && !constraint.is_finished(); ++step) {
    const Result<bool> restricted = constraint.fill_mask(mask);
    if (!restricted) {
      ADD_FAILURE() << restricted.error().to_string() << " after: " << text;
      return text;
    }
    std::vector<TokenId> allowed;
    for (std::int64_t id = 0; id < tokenizer.vocab_size(); ++id)
      if (!*restricted || mask_allows(mask, static_cast<TokenId>(id)))
        allowed.push_back(static_cast<TokenId>(id));
    const TokenId eos = *tokenizer.special().eos;
    const bool may_end = !*restricted || mask_allows(mask, eos);
    const TokenId token = may_end && eager ? eos : allowed[random() % allowed.size()];
    if (const Result<> accepted = constraint.accept(token); !accepted) {
      ADD_FAILURE() << accepted.error().to_string() << " after: " << text;
      return text;
    }
    if (token != eos) text += tokenizer.token_bytes(token);
  }
  return text;
}

}  // namespace pivot::test
