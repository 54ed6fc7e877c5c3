#include "server/api/answer.h"

#include <algorithm>
#include <utility>

namespace pivot::api {

std::string ChoiceText::finish() {
  if (stops_.matched()) return {};
  std::string text = stops_.feed(detokenizer_.finish());
  text += stops_.finish();
  return text;
}

TokenLogprobs token_logprobs(const Tokenizer& tokenizer, const SampledToken& token) {
  TokenLogprobs out;
  out.bytes = std::string(tokenizer.token_bytes(token.id));
  out.logprob = token.logprob;
  out.top.reserve(token.top.size());
  for (const TokenLogprob& other : token.top) {
    out.top.push_back({std::string(tokenizer.token_bytes(other.id)), other.logprob});
  }
  return out;
}

ChoiceAnswer::ChoiceAnswer(const Tokenizer& tokenizer, AnswerOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      parser_(options_.thinking, options_.call_id_prefix),
      in_reasoning_(options_.is_chat && options_.thinking == ThinkingMode::kThinking) {}

void ChoiceAnswer::token(const SampledToken& token, std::string_view released, bool is_end) {
  ids_.push_back(token.id);
  if (in_reasoning_) {
    ++reasoning_tokens_;
  }
  if (options_.wants_logprobs && !is_end) {
    auto& list = in_reasoning_ ? pending_.reasoning_logprobs : pending_.content_logprobs;
    list.push_back(token_logprobs(tokenizer_, token));
  }
  if (in_reasoning_ && tokenizer_.special().think_close == token.id) in_reasoning_ = false;
  if (released.empty()) return;
  if (options_.is_chat) {
    add(parser_.feed(released));
  } else {
    add({{ParserEvent::Kind::kContent, -1, std::string(released), {}}});
  }
}

void ChoiceAnswer::finish(std::string_view released) {
  if (!options_.is_chat) {
    if (!released.empty()) add({{ParserEvent::Kind::kContent, -1, std::string(released), {}}});
    return;
  }
  add(parser_.feed(released));
  add(parser_.finish());
}

void ChoiceAnswer::add(std::vector<ParserEvent> events) {
  for (ParserEvent& event : events) {
    if (has_enough_) return;
    switch (event.kind) {
      case ParserEvent::Kind::kReasoning:
        reasoning_ += event.text;
        if (!options_.include_reasoning) continue;
        break;
      case ParserEvent::Kind::kContent:
        content_ += event.text;
        break;
      case ParserEvent::Kind::kToolCallStart:
        calls_.push_back({event.id, event.text, {}, false});
        break;
      case ParserEvent::Kind::kArguments:
        calls_[static_cast<std::size_t>(event.call)].arguments += event.text;
        break;
      case ParserEvent::Kind::kToolCallEnd:
        calls_[static_cast<std::size_t>(event.call)].complete = true;
        has_enough_ = !options_.parallel_tool_calls;
        break;
    }
    pending_.events.push_back(std::move(event));
  }
}

Delta ChoiceAnswer::take(bool all) {
  if (pending_.events.empty() && !all) return {};
  const auto keep = [](std::vector<TokenLogprobs>& list, const std::vector<TokenLogprobs>& some) {
    list.insert(list.end(), some.begin(), some.end());
  };
  keep(all_content_logprobs_, pending_.content_logprobs);
  keep(all_reasoning_logprobs_, pending_.reasoning_logprobs);
  return std::exchange(pending_, {});
}

FinishWord ChoiceAnswer::finish_word(bool by_length, bool by_stop_text) const {
  const bool all_complete =
      std::all_of(calls_.begin(), calls_.end(), [](const auto& call) { return call.complete; });
  if (!calls_.empty() && all_complete && !by_length) return FinishWord::kToolCalls;
  if (by_length) return FinishWord::kLength;
  return by_stop_text ? FinishWord::kStopText : FinishWord::kStop;
}

}  // namespace pivot::api
