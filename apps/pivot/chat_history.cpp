#include "chat_history.h"

#include <nlohmann/json.hpp>

#include "text/chat/completion_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::cli {

std::vector<TokenId> ChatHistory::encode(const std::string& text) const {
  const Known* longest = nullptr;
  for (const Known& known : known_) {
    const bool fits = text.size() >= known.text.size() && text.compare(0, known.text.size(), known.text) == 0;
    if (fits && (longest == nullptr || known.text.size() > longest->text.size())) longest = &known;
  }
  if (longest == nullptr) return tokenizer_.encode(text);
  std::vector<TokenId> ids = longest->ids;
  const std::vector<TokenId> rest = tokenizer_.encode(std::string_view(text).substr(longest->text.size()));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

Result<std::vector<TokenId>> ChatHistory::ask(std::string text, const ChatOptions& options) {
  Conversation conversation;
  if (!system_.empty()) conversation.messages.push_back(ChatMessage::text(ChatRole::kSystem, system_));
  conversation.messages.insert(conversation.messages.end(), messages_.begin(), messages_.end());
  conversation.messages.push_back(ChatMessage::text(ChatRole::kUser, text));
  PIVOT_TRY(open_.text, encode_chat(conversation, options));
  open_.ids = encode(open_.text);
  messages_.push_back(conversation.messages.back());
  return open_.ids;
}

void ChatHistory::answered(const std::vector<TokenId>& tokens, ThinkingMode mode) {
  const std::string text = tokenizer_.decode(tokens);
  CompletionParser parser(mode);
  parser.feed(text);
  parser.finish();
  ChatMessage message;
  message.role = ChatRole::kAssistant;
  message.reasoning = parser.result().reasoning;
  if (!parser.result().content.empty()) message.content.push_back({"text", parser.result().content});
  for (const ParsedToolCall& call : parser.result().tool_calls) {
    if (call.complete) message.tool_calls.push_back({call.id, call.name, call.arguments});
  }
  messages_.push_back(std::move(message));
  // Two beginnings of the next prompt: with this answer as it was sampled; and, for when its reasoning is
  // dropped, the prompt without its last token (think-open or think-close), which is where the two part.
  Known before = open_;
  const std::string_view last = tokenizer_.token_bytes(before.ids.back());
  if (before.ids.size() > 1 && before.text.ends_with(last)) {
    before.text.resize(before.text.size() - last.size());
    before.ids.pop_back();
    known_.push_back(std::move(before));
  }
  open_.text += text;
  open_.ids.insert(open_.ids.end(), tokens.begin(), tokens.end());
  known_.push_back(std::move(open_));
  open_ = {};
}

void ChatHistory::withdraw() {
  if (!messages_.empty() && messages_.back().role == ChatRole::kUser) messages_.pop_back();
  open_ = {};
}

void ChatHistory::clear() {
  messages_.clear();
  known_.clear();
  open_ = {};
}

std::string ChatHistory::to_json() const {
  auto list = nlohmann::ordered_json::array();
  if (!system_.empty()) list.push_back({{"role", "system"}, {"content", system_}});
  for (const ChatMessage& message : messages_) {
    nlohmann::ordered_json entry;
    entry["role"] = to_string(message.role);
    std::string content;
    for (const ContentPart& part : message.content) content += part.text;
    entry["content"] = content;
    if (!message.reasoning.empty()) entry["reasoning_content"] = message.reasoning;
    if (!message.tool_calls.empty()) {
      auto calls = nlohmann::ordered_json::array();
      for (const ToolCall& call : message.tool_calls) {
        calls.push_back({{"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      }
      entry["tool_calls"] = std::move(calls);
    }
    list.push_back(std::move(entry));
  }
  return list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace pivot::cli
