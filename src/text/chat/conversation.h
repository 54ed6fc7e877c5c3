// A conversation as the chat encoding sees it (specification 7.1). The HTTP server fills this structure;
// for JSON text there is parse_conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {

enum class ChatRole : std::uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };
std::string_view to_string(ChatRole role);  // "system", ..., "latest_reminder"
std::optional<ChatRole> chat_role(std::string_view name);

// Quick-instruction tasks; each has a token of its own.
enum class ChatTask : std::uint8_t { kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };
std::optional<ChatTask> chat_task(std::string_view name);

// One part of a content list. Anything but type "text" is rendered as "[Unsupported TYPE]".
struct ContentPart {
  std::string type = "text";
  std::string text;
};

struct ToolCall {
  std::string id;  // pairs the call with its result; may be empty
  std::string name;
  std::string arguments;  // JSON text of an object; other text becomes one parameter called `arguments`
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::vector<ContentPart> content;  // empty: null or "" (the encoding makes no difference)
  std::string reasoning;             // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  std::vector<std::string> tools;    // system, developer: JSON text of each `function` object
  std::string response_format;       // system, developer: JSON text; empty: none
  std::optional<ChatTask> task;      // user
  bool without_eos = false;  // assistant: leave out the end-of-sentence token, so that the text goes on
  // assistant: the turn's text as the model wrote it, reasoning, content and tool calls, without its end. It
  // stands in the prompt in place of what would be rendered from the parts above, where these would be
  // rendered with the reasoning (verbatim_thinking) or without it. Empty: none.
  std::string verbatim;
  bool verbatim_thinking = false;

  static ChatMessage text(ChatRole role, std::string content);
};

struct Conversation {
  std::vector<ChatMessage> messages;
  // Given beside the messages: they belong to the first message if it is the system message, else to an
  // empty system message put before it.
  std::vector<std::string> tools;  // JSON text of each `function` object
  std::string response_format;     // JSON text; empty: none
};

// Reads a JSON list of OpenAI-like messages, or an object {"messages": [...], "tools": [...],
// "response_format": ...}. Tools may be {"type": "function", "function": {...}}. Keys that the encoding
// does not use are ignored. Differences to the reference encoder, which fails on them: content null is "",
// content lists are joined by blank lines for every role, `arguments` may be an object, null or absent (no
// arguments). Errors: kInvalidArgument naming the message and the key. Lone surrogates in escapes become
// U+FFFD.
Result<Conversation> parse_conversation(std::string_view json);

}  // namespace pivot
