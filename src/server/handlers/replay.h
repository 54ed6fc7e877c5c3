// Exact replay: the ids that the model sampled for a turn, kept so that the next request of the conversation
// has them in its prompt instead of what tokenizing the client's JSON would give.
//
// A client sends back the parsed turn: text cut into JSON, arguments spelt anew, reasoning often left out.
// Rendered again it is not the text that the model wrote, and tokenized again not the ids; the prefix cache
// would miss from there on, and the model would read its own call in other words. A turn is found by the id
// of its first tool call, or by its content where it made none, and used only where what the client sent
// agrees with what it was given.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "text/chat/completion_parser.h"
#include "text/chat/conversation.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::server {

struct ReplayTurn {
  std::vector<TokenId> ids;  // without the end token
  bool thinking = false;     // the turn began with reasoning
  std::string reasoning;
  std::string content;
  std::vector<ParsedToolCall> calls;
};

// Bounded by bytes; the turns that were used longest ago go first. Any thread.
class ReplayStore {
 public:
  explicit ReplayStore(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // `scope` keeps clients apart: a turn is found only under the scope that it was put in with. Turns with
  // neither a call nor content are not kept.
  void put(std::string_view scope, ReplayTurn turn);
  // The turn that this assistant message repeats; null where there is none or the message differs from it.
  // A message without reasoning agrees with a turn that called tools (most clients drop it).
  std::shared_ptr<const ReplayTurn> find(std::string_view scope, const ChatMessage& message);

  std::size_t turns() const;
  std::size_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const ReplayTurn> turn;
    std::size_t bytes = 0;
  };
  static std::string key_of(std::string_view scope, std::string_view call_id, std::string_view content);

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

// Ids of the prompt of `conversation`, with the ids of replayed turns in the places of these turns.
// `conversation` is changed: its replayed messages get a verbatim text. Errors: encode_chat's.
class PromptEncoder {
 public:
  PromptEncoder(const Tokenizer& tokenizer, ReplayStore& store);
  Result<std::vector<TokenId>> encode(std::string_view scope, Conversation& conversation,
                                      const ChatOptions& options);

 private:
  const Tokenizer& tokenizer_;
  ReplayStore& store_;
  std::string marker_;  // random, so that no client's text contains it
};

}  // namespace pivot::server
