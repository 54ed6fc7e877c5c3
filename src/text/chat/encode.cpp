#include "text/chat/encode.h"

#include <algorithm>
#include <map>

#include "text/chat/dsml.h"
#include "text/chat/python_json.h"

namespace pivot {
namespace {

using python_json::Value;

constexpr std::string_view kMaximumEffort =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

constexpr std::string_view kToolsHead =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"<｜DSML｜tool_calls>\" block like the following:\n\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
    "booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

constexpr std::string_view kResponseFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

constexpr std::string_view kPartSeparator = "\n\n";

std::string_view task_token(ChatTask task) {
  switch (task) {
    case ChatTask::kAction:
      return "<｜action｜>";
    case ChatTask::kQuery:
      return "<｜query｜>";
    case ChatTask::kAuthority:
      return "<｜authority｜>";
    case ChatTask::kDomain:
      return "<｜domain｜>";
    case ChatTask::kTitle:
      return "<｜title｜>";
    case ChatTask::kReadUrl:
      return "<｜read_url｜>";
  }
  return "";
}

std::string joined(const std::vector<ContentPart>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += kPartSeparator;
    text += parts[i].type == "text" ? parts[i].text : fmt::format("[Unsupported {}]", parts[i].type);
  }
  return text;
}

// One message after the pre-processing of specification 7.2.
struct Block {
  bool is_result = false;
  std::string_view call_id;
  std::string text;
};
struct Turn {
  ChatRole role;
  const ChatMessage* message;  // null for a user turn that begins with tool results
  std::vector<Block> blocks;   // user turns only
  std::optional<ChatTask> task;
  bool without_reasoning = false;

  bool speaks() const { return role == ChatRole::kUser || role == ChatRole::kDeveloper; }
};

// 7.2.1: tool results and consecutive user messages become blocks of one user turn.
std::vector<Turn> merge(const std::vector<const ChatMessage*>& messages) {
  std::vector<Turn> turns;
  for (const ChatMessage* message : messages) {
    const bool after_user = !turns.empty() && turns.back().role == ChatRole::kUser;
    if (message->role == ChatRole::kTool) {
      if (!after_user) turns.push_back({ChatRole::kUser, nullptr, {}, {}});
      turns.back().blocks.push_back({true, message->tool_call_id, joined(message->content)});
    } else if (message->role == ChatRole::kUser) {
      if (!after_user || turns.back().task) turns.push_back({ChatRole::kUser, message, {}, message->task});
      turns.back().blocks.push_back({false, {}, joined(message->content)});
    } else {
      turns.push_back({message->role, message, {}, message->task});
    }
  }
  return turns;
}

// 7.2.2: the results inside one user turn take the order of the calls of the assistant turn before it.
void sort_results(std::vector<Turn>& turns) {
  std::map<std::string_view, std::size_t> order;
  for (Turn& turn : turns) {
    if (turn.role == ChatRole::kAssistant && !turn.message->tool_calls.empty()) {
      order.clear();
      for (std::size_t i = 0; i < turn.message->tool_calls.size(); ++i) {
        const std::string& id = turn.message->tool_calls[i].id;
        if (!id.empty()) order[id] = i;
      }
    } else if (turn.role == ChatRole::kUser && !order.empty()) {
      std::vector<Block> results;
      for (const Block& block : turn.blocks) {
        if (block.is_result) results.push_back(block);
      }
      const auto place = [&](const Block& block) {
        const auto it = order.find(block.call_id);
        return it == order.end() ? std::size_t{0} : it->second;
      };
      std::stable_sort(results.begin(), results.end(),
                       [&](const Block& a, const Block& b) { return place(a) < place(b); });
      auto next = results.begin();
      for (Block& block : turn.blocks) {
        if (block.is_result) block = std::move(*next++);
      }
    }
  }
}

std::ptrdiff_t last_speaker(const std::vector<Turn>& turns) {
  for (std::ptrdiff_t i = std::ssize(turns) - 1; i >= 0; --i) {
    if (turns[static_cast<std::size_t>(i)].speaks()) return i;
  }
  return -1;
}

// 7.2.3: before the last user or developer turn, reasoning and developer turns go.
std::vector<Turn> drop_history(std::vector<Turn> turns) {
  const std::ptrdiff_t last = last_speaker(turns);
  std::vector<Turn> kept;
  for (std::ptrdiff_t i = 0; i < std::ssize(turns); ++i) {
    Turn& turn = turns[static_cast<std::size_t>(i)];
    if (i < last && turn.role == ChatRole::kDeveloper) continue;
    if (i < last && turn.role == ChatRole::kAssistant) turn.without_reasoning = true;
    kept.push_back(std::move(turn));
  }
  return kept;
}

Result<> append_json(std::string& out, std::string_view json, std::string_view what) {
  auto value = python_json::parse(json);
  if (!value) return fail(std::move(value).error().with(std::string(what)));
  python_json::append(out, *value);
  return {};
}

Result<> append_definitions(std::string& out, const std::vector<std::string>& tools,
                            const std::string& format) {
  if (!tools.empty()) {
    PIVOT_TRY(const std::string section, render_tools_section(tools));
    out += kPartSeparator;
    out += section;
  }
  if (!format.empty()) {
    auto value = python_json::parse(format);
    if (!value) return fail(std::move(value).error().with("response_format"));
    if (value->truthy()) {
      out += kPartSeparator;
      out += kResponseFormatHead;
      python_json::append(out, *value);
    }
  }
  return {};
}

// 7.5.
void append_tool_calls(std::string& out, const std::vector<ToolCall>& calls) {
  out += kPartSeparator;
  out += dsml::kBlockOpen;
  out += ">\n";
  for (const ToolCall& call : calls) {
    out += dsml::kInvokeOpen;
    out += " name=\"" + call.name + "\">\n";
    Value arguments;
    auto parsed = python_json::parse(call.arguments);
    if (parsed && parsed->is(Value::Kind::kObject)) {
      arguments = *std::move(parsed);
    } else {
      arguments.members.push_back({"arguments", Value{Value::Kind::kString, call.arguments, {}, {}}});
    }
    for (std::size_t i = 0; i < arguments.members.size(); ++i) {
      const auto& [key, value] = arguments.members[i];
      if (i > 0) out += '\n';
      out += dsml::kParameterOpen;
      const bool is_string = value.is(Value::Kind::kString);
      out += " name=\"" + key + "\" string=\"" + (is_string ? "true" : "false") + "\">";
      if (is_string) {
        out += value.text;
      } else {
        python_json::append(out, value);
      }
      out += dsml::kParameterClose;
      out += '>';
    }
    out += '\n';
    out += dsml::kInvokeClose;
    out += ">\n";
  }
  out += dsml::kBlockClose;
}

class Renderer {
 public:
  Renderer(const std::vector<Turn>& turns, ThinkingMode mode, bool drop)
      : turns_(turns),
        thinking_(mode == ThinkingMode::kThinking),
        drop_(drop),
        last_speaker_(last_speaker(turns)) {}

  // 7.3, one turn with the tokens that follow it.
  Result<> append(std::string& out, std::ptrdiff_t index) const {
    const Turn& turn = turns_[static_cast<std::size_t>(index)];
    switch (turn.role) {
      case ChatRole::kSystem:
        out += joined(turn.message->content);
        PIVOT_TRY_VOID(append_definitions(out, turn.message->tools, turn.message->response_format));
        break;
      case ChatRole::kDeveloper: {
        const std::string text = joined(turn.message->content);
        if (text.empty()) {
          return fail(ErrorCode::kInvalidArgument,
                      "a developer message has a content; found an empty one: leave the message out or give "
                      "it a text");
        }
        out += dsml::kUser;
        out += text;
        PIVOT_TRY_VOID(append_definitions(out, turn.message->tools, turn.message->response_format));
        break;
      }
      case ChatRole::kUser:
        append_user(out, turn);
        break;
      case ChatRole::kLatestReminder:
        out += dsml::kLatestReminder;
        out += joined(turn.message->content);
        break;
      case ChatRole::kAssistant:
        append_assistant(out, index);
        break;
      case ChatRole::kTool:
        break;  // merge() left none
    }
    const bool last = index + 1 == std::ssize(turns_);
    const ChatRole next = last ? ChatRole::kAssistant : turns_[static_cast<std::size_t>(index) + 1].role;
    if (next != ChatRole::kAssistant && next != ChatRole::kLatestReminder) return {};
    if (turn.task) {
      if (*turn.task == ChatTask::kAction) {
        out += dsml::kAssistant;
        out += thinking_ ? dsml::kThinkOpen : dsml::kThinkClose;
      }
      out += task_token(*turn.task);
    } else if (turn.speaks()) {
      out += dsml::kAssistant;
      out += thinking_ && (!drop_ || index >= last_speaker_) ? dsml::kThinkOpen : dsml::kThinkClose;
    }
    return {};
  }

 private:
  static void append_user(std::string& out, const Turn& turn) {
    out += dsml::kUser;
    for (std::size_t i = 0; i < turn.blocks.size(); ++i) {
      if (i > 0) out += kPartSeparator;
      const Block& block = turn.blocks[i];
      if (block.is_result) {
        out += "<tool_result>" + block.text + "</tool_result>";
      } else {
        out += block.text;
      }
    }
  }

  void append_assistant(std::string& out, std::ptrdiff_t index) const {
    const Turn& turn = turns_[static_cast<std::size_t>(index)];
    const bool answers_task = index > 0 && turns_[static_cast<std::size_t>(index) - 1].task.has_value();
    const bool with_thinking = thinking_ && !answers_task && (!drop_ || index > last_speaker_);
    if (!turn.message->verbatim.empty() && !turn.without_reasoning &&
        turn.message->verbatim_thinking == with_thinking) {
      out += turn.message->verbatim;
    } else {
      if (with_thinking) {
        if (!turn.without_reasoning) out += turn.message->reasoning;
        out += dsml::kThinkClose;
      }
      out += joined(turn.message->content);
      if (!turn.message->tool_calls.empty()) append_tool_calls(out, turn.message->tool_calls);
    }
    if (!turn.message->without_eos) out += dsml::kEos;
  }

  const std::vector<Turn>& turns_;
  bool thinking_;
  bool drop_;
  std::ptrdiff_t last_speaker_;
};

// The text before the first message, in thinking mode.
Result<std::string_view> effort_prefix(const ChatOptions& options) {
  const bool is_0731 = options.encoding == ChatEncoding::k0731;
  switch (options.effort) {
    case ReasoningEffort::kDefault:
      return std::string_view();
    case ReasoningEffort::kLow:
      if (is_0731) return std::string_view();
      return fail(ErrorCode::kInvalidArgument,
                  "reasoning effort is none, high or max for this checkpoint's encoding; found low");
    case ReasoningEffort::kHigh:
      return is_0731 ? kMaximumEffort : std::string_view();
    case ReasoningEffort::kMax:
      if (!is_0731) return kMaximumEffort;
      if (!options.max_effort_text.empty()) return std::string_view(options.max_effort_text);
      return fail(
          ErrorCode::kUnsupported,
          "reasoning effort max of the 0731 encoding needs the prompt text of the checkpoint's own encoder, "
          "which was not given; use high");
  }
  return std::string_view();
}

}  // namespace

std::string_view maximum_effort_text() { return kMaximumEffort; }

Result<ReasoningEffort> parse_reasoning_effort(std::string_view name) {
  if (name == "none") return ReasoningEffort::kDefault;
  if (name == "low") return ReasoningEffort::kLow;
  if (name == "high") return ReasoningEffort::kHigh;
  if (name == "max") return ReasoningEffort::kMax;
  return fail(ErrorCode::kInvalidArgument, "reasoning effort is none, low, high or max; found \"{}\"", name);
}

Result<std::string> render_tools_section(const std::vector<std::string>& tools) {
  std::string out(kToolsHead);
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) out += '\n';
    PIVOT_TRY_VOID(append_json(out, tools[i], fmt::format("tool {}", i)));
  }
  out += kToolsTail;
  return out;
}

Result<std::string> encode_chat(const Conversation& conversation, const ChatOptions& options) {
  std::vector<const ChatMessage*> messages;
  messages.reserve(conversation.messages.size() + 1);
  for (const ChatMessage& message : conversation.messages) messages.push_back(&message);
  if (messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "a conversation needs at least one message; found none");
  }
  ChatMessage head;
  if (!conversation.tools.empty() || !conversation.response_format.empty()) {
    const bool has_system = messages.front()->role == ChatRole::kSystem;
    if (has_system) head = *messages.front();
    head.role = ChatRole::kSystem;
    head.tools.insert(head.tools.end(), conversation.tools.begin(), conversation.tools.end());
    if (head.response_format.empty()) head.response_format = conversation.response_format;
    if (has_system) {
      messages.front() = &head;
    } else {
      messages.insert(messages.begin(), &head);
    }
  }

  std::vector<Turn> turns = merge(messages);
  sort_results(turns);
  const bool has_tools = std::any_of(turns.begin(), turns.end(), [](const Turn& turn) {
    return turn.role != ChatRole::kUser && !turn.message->tools.empty();
  });
  const bool drop = options.drop_thinking && !has_tools;
  if (options.thinking == ThinkingMode::kThinking && drop) turns = drop_history(std::move(turns));

  PIVOT_TRY(const std::string_view effort, effort_prefix(options));
  std::string out(dsml::kBos);
  if (options.thinking == ThinkingMode::kThinking) out += effort;
  const Renderer renderer(turns, options.thinking, drop);
  for (std::ptrdiff_t i = 0; i < std::ssize(turns); ++i) {
    auto done = renderer.append(out, i);
    if (!done) {
      const ChatRole role = turns[static_cast<std::size_t>(i)].role;
      return fail(std::move(done).error().with(fmt::format("turn {} ({})", i, to_string(role))));
    }
  }
  return out;
}

Result<std::string> encode_chat(std::string_view messages_json, const ChatOptions& options) {
  PIVOT_TRY(const Conversation conversation, parse_conversation(messages_json));
  return encode_chat(conversation, options);
}

}  // namespace pivot
