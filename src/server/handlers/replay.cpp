#include "server/handlers/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "text/chat/python_json.h"

namespace pivot::server {
namespace {

std::size_t size_of(const ReplayTurn& turn) {
  std::size_t bytes = sizeof(ReplayTurn) + 256 + turn.ids.size() * sizeof(TokenId) + turn.reasoning.size() +
                      turn.content.size();
  for (const ParsedToolCall& call : turn.calls)
    bytes += sizeof(call) + call.name.size() + call.arguments.size();
  return bytes;
}

// Clients often parse and write arguments again: other spaces, other order of keys, the same value.
bool equal_json(const python_json::Value& a, const python_json::Value& b) {
  if (a.kind != b.kind || a.text != b.text || a.items.size() != b.items.size() ||
      a.members.size() != b.members.size())
    return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equal_json(a.items[i], b.items[i])) return false;
  }
  return std::all_of(a.members.begin(), a.members.end(), [&](const auto& member) {
    const python_json::Value* other = b.find(member.key);
    return other != nullptr && equal_json(member.value, *other);
  });
}

bool same_arguments(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto left = python_json::parse(a);
  const auto right = python_json::parse(b);
  return left && right && equal_json(*left, *right);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string content_of(const ChatMessage& message) {
  if (message.content.size() == 1) return message.content[0].text;
  std::string text;
  for (const ContentPart& part : message.content) text += part.text;
  return text;
}

bool agrees(const ChatMessage& message, const std::string& content, const ReplayTurn& turn) {
  if (message.tool_calls.size() != turn.calls.size()) return false;
  for (std::size_t i = 0; i < turn.calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    if (call.id != turn.calls[i].id || call.name != turn.calls[i].name ||
        !same_arguments(call.arguments, turn.calls[i].arguments)) {
      return false;
    }
  }
  if (trimmed(content) != trimmed(turn.content)) return false;
  const bool dropped = message.reasoning.empty() && !turn.calls.empty();
  return dropped || trimmed(message.reasoning) == trimmed(turn.reasoning);
}

}  // namespace

std::string ReplayStore::key_of(std::string_view scope, std::string_view call_id, std::string_view content) {
  if (!call_id.empty()) return fmt::format("{}\n#{}", scope, call_id);
  return fmt::format("{}\n={}", scope, trimmed(content));
}

void ReplayStore::put(std::string_view scope, ReplayTurn turn) {
  if (turn.ids.empty() || (turn.calls.empty() && trimmed(turn.content).empty())) return;
  Entry entry;
  entry.key = key_of(scope, turn.calls.empty() ? std::string_view() : std::string_view(turn.calls[0].id),
                     turn.content);
  entry.bytes = size_of(turn) + 2 * entry.key.size();
  if (entry.bytes > max_bytes_) return;
  entry.turn = std::make_shared<const ReplayTurn>(std::move(turn));

  const std::lock_guard lock(mutex_);
  if (const auto old = by_key_.find(entry.key); old != by_key_.end()) {
    bytes_ -= old->second->bytes;
    entries_.erase(old->second);
    by_key_.erase(old);
  }
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  by_key_.emplace(entries_.front().key, entries_.begin());
  while (bytes_ > max_bytes_) {
    bytes_ -= entries_.back().bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

std::shared_ptr<const ReplayTurn> ReplayStore::find(std::string_view scope, const ChatMessage& message) {
  if (message.role != ChatRole::kAssistant || message.without_eos) return nullptr;
  const std::string content = content_of(message);
  const std::string_view call_id = message.tool_calls.empty() ? std::string_view() : message.tool_calls[0].id;
  if (call_id.empty() && (trimmed(content).empty() || !message.tool_calls.empty())) return nullptr;
  std::shared_ptr<const ReplayTurn> turn;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key_of(scope, call_id, content));
    if (found == by_key_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    turn = found->second->turn;
  }
  return agrees(message, content, *turn) ? turn : nullptr;
}

std::size_t ReplayStore::turns() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t ReplayStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer, ReplayStore& store)
    : tokenizer_(tokenizer), store_(store) {
  std::random_device device;
  marker_ = fmt::format("\x01replay-{:08x}{:08x}{:08x}{:08x}-", device(), device(), device(), device());
}

// The rendered text is cut at the markers and each part tokenized alone. That gives the ids of the whole: on
// both sides of a turn stand added tokens (<think>, </think>, the end of sentence), which no word crosses.
Result<std::vector<TokenId>> PromptEncoder::encode(std::string_view scope, Conversation& conversation,
                                                   const ChatOptions& options) {
  std::vector<std::shared_ptr<const ReplayTurn>> turns;
  for (ChatMessage& message : conversation.messages) {
    auto turn = store_.find(scope, message);
    if (!turn) continue;
    message.verbatim = fmt::format("{}{}\x01", marker_, turns.size());
    message.verbatim_thinking = turn->thinking;
    turns.push_back(std::move(turn));
  }
  PIVOT_TRY(const std::string text, encode_chat(conversation, options));
  if (turns.empty()) return tokenizer_.encode(text);

  std::vector<TokenId> ids;
  const auto append = [&](std::span<const TokenId> more) { ids.insert(ids.end(), more.begin(), more.end()); };
  std::string_view rest = text;
  for (std::size_t at = rest.find(marker_); at != std::string_view::npos; at = rest.find(marker_)) {
    append(tokenizer_.encode(rest.substr(0, at)));
    rest.remove_prefix(at + marker_.size());
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
    static_cast<void>(error);  // this program wrote the number
    append(turns.at(index)->ids);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  }
  append(tokenizer_.encode(rest));
  return ids;
}

}  // namespace pivot::server
