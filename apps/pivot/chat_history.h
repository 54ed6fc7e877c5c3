// The conversation of `pivot chat` as messages and as tokens.
//
// The tokens that the model sampled are kept: encoding its answer's text again may split it differently, and
// the key-value state behind it could then not be used for the next turn (specification 7.6).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "text/chat/encode.h"

namespace pivot {
class Tokenizer;
}

namespace pivot::cli {

class ChatHistory {
 public:
  explicit ChatHistory(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The system message of the turns from now on; empty: none.
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }

  // The prompt of a turn that begins with the user's text. Until `answered` or `withdraw` the turn is open.
  Result<std::vector<TokenId>> ask(std::string text, const ChatOptions& options);
  // The answer to the open turn: the tokens as sampled, an end token at their end included.
  void answered(const std::vector<TokenId>& tokens, ThinkingMode mode);
  // Forgets the open turn.
  void withdraw();
  void clear();

  const std::vector<ChatMessage>& messages() const { return messages_; }
  // [{"role", "content" [, "reasoning_content"]}], as `pivot generate --messages` reads it.
  std::string to_json() const;

 private:
  // A text whose tokens are known: the beginning of later prompts.
  struct Known {
    std::string text;
    std::vector<TokenId> ids;
  };
  std::vector<TokenId> encode(const std::string& text) const;

  const Tokenizer& tokenizer_;
  std::string system_;
  std::vector<ChatMessage> messages_;
  std::vector<Known> known_;
  Known open_;  // the prompt of the open turn
};

}  // namespace pivot::cli
