// The chat encoding of DeepSeek-V4 (specification section 7): a conversation in, the exact prompt text
// out. There is no template language: this code is the definition, checked byte by byte against the
// official vectors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat/conversation.h"

namespace pivot {

enum class ThinkingMode : std::uint8_t {
  kChat,      // the prompt closes the thinking part: the answer starts at once
  kThinking,  // the prompt opens it: the model reasons up to </think>
};

enum class ReasoningEffort : std::uint8_t { kDefault, kLow, kHigh, kMax };
// "none", "low", "high", "max"; kInvalidArgument with the list for another word.
Result<ReasoningEffort> parse_reasoning_effort(std::string_view name);

// The two published encoders differ in the effort prefixes only.
enum class ChatEncoding : std::uint8_t {
  kPreview,  // none (default), high: nothing; max: a text of 476 bytes; low is refused
  k0731,     // low (default): nothing; high: the preview's max text; max: a longer text, see max_effort_text
};

struct ChatOptions {
  ThinkingMode thinking = ThinkingMode::kThinking;
  // Leave out the reasoning of turns before the last user message. Forced off when any message defines
  // tools.
  bool drop_thinking = true;
  ReasoningEffort effort = ReasoningEffort::kDefault;
  ChatEncoding encoding = ChatEncoding::kPreview;
  // The 0731 encoder's text for effort max. Pivot does not carry it; whoever has the checkpoint's own
  // encoder file can pass it. Empty: effort max under k0731 is refused (kUnsupported).
  std::string max_effort_text;
};

// The prompt, from the begin-of-sentence token to the place where the answer starts. Documented behaviour
// of the cases that public servers get wrong (public-faults.md B28):
// - Tool results of one user turn are put in the order of the calls they answer; a result whose id matches
//   no call counts as an answer to the first call, and is never lost.
// - A developer message between a call and its result is rendered where it stands, except in thinking mode
//   without tools, where developer messages before the last user or developer message are left out.
// - Arguments that are not the JSON text of an object become one string parameter called `arguments`.
// Errors: kInvalidArgument naming the message (no messages, empty developer content, JSON that does not
// parse, an effort that the encoding does not know); kUnsupported for effort max under k0731 without its
// text.
Result<std::string> encode_chat(const Conversation& conversation, const ChatOptions& options);
// The same from JSON text (parse_conversation).
Result<std::string> encode_chat(std::string_view messages_json, const ChatOptions& options);

// The tools section of a system or developer message, for JSON texts of `function` objects (specification
// 7.4).
Result<std::string> render_tools_section(const std::vector<std::string>& tools);

// The literal effort prefix of the preview's max and of 0731's high.
std::string_view maximum_effort_text();

}  // namespace pivot
