// An answer on its way from tokens to a client: text with stop strings, reasoning, content, tool calls,
// log-probabilities, usage. Knows no API's JSON and no engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "engine/sampler.h"
#include "engine/stop_strings.h"
#include "text/chat/completion_parser.h"
#include "text/tokenizer/streaming_detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::api {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  std::int64_t completion_tokens = 0;  // of all choices, end tokens and what a stop string cut included
  std::int64_t reasoning_tokens = 0;   // of these, up to and including </think>
};

struct AlternativeToken {
  std::string bytes;  // of the token, perhaps half a character
  float logprob = 0;
};
struct TokenLogprobs {
  std::string bytes;
  float logprob = 0;
  bool is_first = false;  // of a prompt: it has no probability
  std::vector<AlternativeToken> top;
};

enum class FinishWord : std::uint8_t {
  kStop,      // the model ended its turn
  kStopText,  // a stop string or stop token of the client's
  kLength,    // max_tokens, or the context is full
  kToolCalls,
};
struct ChoiceEnd {
  FinishWord word = FinishWord::kStop;
  std::string stop_text;                      // kStopText by a string: which
  std::optional<std::int64_t> stop_token_id;  // kStopText by a token: which
};

// What some tokens of one choice add to its answer.
struct Delta {
  std::vector<ParserEvent> events;
  std::vector<TokenLogprobs> content_logprobs;
  std::vector<TokenLogprobs> reasoning_logprobs;
  bool empty() const { return events.empty(); }
};

// The text of one choice: bytes of tokens into whole characters, stop strings held back and cut. A client
// sees the same text however its tokens are cut.
class ChoiceText {
 public:
  ChoiceText(const Tokenizer& tokenizer, StopStrings stops, bool skip_special)
      : detokenizer_(tokenizer, skip_special), stops_(std::move(stops)) {}

  // The text that this token releases; "" from a match on.
  std::string push(TokenId id) { return stops_.feed(detokenizer_.push(id)); }
  // The end: releases what was held back.
  std::string finish();
  bool matched() const { return stops_.matched(); }
  const std::string& match() const { return stops_.match(); }

 private:
  StreamingDetokenizer detokenizer_;
  StopStrings stops_;
};

struct AnswerOptions {
  bool is_chat = true;  // false: plain text, nothing is parsed
  ThinkingMode thinking = ThinkingMode::kChat;
  bool include_reasoning = true;
  bool wants_logprobs = false;
  bool parallel_tool_calls = true;
  std::string call_id_prefix = "call_";
};

// The answer of one choice so far.
class ChoiceAnswer {
 public:
  ChoiceAnswer(const Tokenizer& tokenizer, AnswerOptions options);

  // A generated token and the text that it released. `is_end` for the token that ended the turn: it counts,
  // but is no text.
  void token(const SampledToken& token, std::string_view released, bool is_end);
  // The end of the text.
  void finish(std::string_view released);
  // What came since the last call. Log-probabilities wait for the text of their tokens; `all` also gives
  // those whose text never came.
  Delta take(bool all = false);

  // True once a call was complete that may be the only one: the choice should end.
  bool has_enough() const { return has_enough_; }
  const ParsedCompletion& parsed() const { return parser_.result(); }
  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::vector<ParsedToolCall>& tool_calls() const { return calls_; }
  const std::vector<TokenLogprobs>& content_logprobs() const { return all_content_logprobs_; }
  const std::vector<TokenLogprobs>& reasoning_logprobs() const { return all_reasoning_logprobs_; }
  std::int64_t generated_tokens() const { return static_cast<std::int64_t>(ids_.size()); }
  std::int64_t reasoning_tokens() const { return reasoning_tokens_; }
  std::span<const TokenId> ids() const { return ids_; }  // the end token included

  // The word for how it ended, given how the engine says that it did.
  FinishWord finish_word(bool by_length, bool by_stop_text) const;

 private:
  void add(std::vector<ParserEvent> events);

  const Tokenizer& tokenizer_;
  AnswerOptions options_;
  CompletionParser parser_;
  bool in_reasoning_;
  bool has_enough_ = false;
  std::int64_t reasoning_tokens_ = 0;
  std::vector<TokenId> ids_;
  std::string content_;
  std::string reasoning_;
  std::vector<ParsedToolCall> calls_;
  Delta pending_;
  std::vector<TokenLogprobs> all_content_logprobs_;
  std::vector<TokenLogprobs> all_reasoning_logprobs_;
};

TokenLogprobs token_logprobs(const Tokenizer& tokenizer, const SampledToken& token);

}  // namespace pivot::api
