#include "text/chat/conversation.h"

#include <array>
#include <utility>

#include "text/chat/python_json.h"

namespace pivot {
namespace {

using python_json::Value;
using Kind = Value::Kind;

constexpr std::array<std::pair<std::string_view, ChatRole>, 6> kRoles = {
    {{"system", ChatRole::kSystem},
     {"user", ChatRole::kUser},
     {"assistant", ChatRole::kAssistant},
     {"tool", ChatRole::kTool},
     {"latest_reminder", ChatRole::kLatestReminder},
     {"developer", ChatRole::kDeveloper}}};

constexpr std::array<std::pair<std::string_view, ChatTask>, 6> kTasks = {{{"action", ChatTask::kAction},
                                                                          {"query", ChatTask::kQuery},
                                                                          {"authority", ChatTask::kAuthority},
                                                                          {"domain", ChatTask::kDomain},
                                                                          {"title", ChatTask::kTitle},
                                                                          {"read_url", ChatTask::kReadUrl}}};

// null and absent are the same.
const Value* present(const Value& object, std::string_view key) {
  const Value* value = object.find(key);
  return value == nullptr || value->is(Kind::kNull) ? nullptr : value;
}

Result<std::string> optional_string(const Value& object, std::string_view key) {
  const Value* value = present(object, key);
  if (value == nullptr) return std::string();
  if (!value->is(Kind::kString)) {
    return fail(ErrorCode::kInvalidArgument, "`{}` is a string or null; found {}", key, value->kind_name());
  }
  return value->text;
}

Result<std::vector<ContentPart>> read_content(const Value& message) {
  std::vector<ContentPart> parts;
  const Value* content = present(message, "content");
  if (content == nullptr) return parts;
  if (content->is(Kind::kString)) {
    parts.push_back({"text", content->text});
    return parts;
  }
  if (!content->is(Kind::kArray)) {
    return fail(ErrorCode::kInvalidArgument, "`content` is a string, a list of parts or null; found {}",
                content->kind_name());
  }
  for (const Value& item : content->items) {
    if (item.is(Kind::kString)) {
      parts.push_back({"text", item.text});
      continue;
    }
    const Value* type = item.find("type");
    if (type == nullptr || !type->is(Kind::kString)) {
      return fail(ErrorCode::kInvalidArgument,
                  "part {} of `content` is an object with a string `type`; found {}", parts.size(),
                  item.is(Kind::kObject) ? "an object without one" : item.kind_name());
    }
    ContentPart part{type->text, ""};
    if (part.type == "text") {
      PIVOT_TRY(part.text, optional_string(item, "text"));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<std::vector<ToolCall>> read_tool_calls(const Value& message) {
  std::vector<ToolCall> calls;
  const Value* list = present(message, "tool_calls");
  if (list == nullptr) return calls;
  if (!list->is(Kind::kArray)) {
    return fail(ErrorCode::kInvalidArgument, "`tool_calls` is a list; found {}", list->kind_name());
  }
  for (const Value& item : list->items) {
    const Value* function = present(item, "function");
    const Value* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !name->is(Kind::kString)) {
      return fail(ErrorCode::kInvalidArgument,
                  "tool call {} is {{\"id\", \"function\": {{\"name\", \"arguments\"}}}} with a string name; "
                  "found none",
                  calls.size());
    }
    ToolCall call;
    call.name = name->text;
    PIVOT_TRY(call.id, optional_string(item, "id"));
    if (call.id.empty()) {
      PIVOT_TRY(call.id, optional_string(*function, "id"));
    }
    const Value* arguments = present(*function, "arguments");
    if (arguments == nullptr) {
      call.arguments = "{}";
    } else if (arguments->is(Kind::kString)) {
      call.arguments = arguments->text;
    } else if (arguments->is(Kind::kObject)) {
      call.arguments = python_json::dumps(*arguments);
    } else {
      return fail(ErrorCode::kInvalidArgument,
                  "`arguments` of tool call {} is the JSON text of an object; found {}", calls.size(),
                  arguments->kind_name());
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

Result<std::vector<std::string>> read_tools(const Value& object) {
  std::vector<std::string> tools;
  const Value* list = present(object, "tools");
  if (list == nullptr) return tools;
  if (!list->is(Kind::kArray)) {
    return fail(ErrorCode::kInvalidArgument, "`tools` is a list; found {}", list->kind_name());
  }
  for (const Value& item : list->items) {
    const Value* function = item.find("function");
    if (function == nullptr || !function->is(Kind::kObject)) {
      return fail(ErrorCode::kInvalidArgument,
                  "tool {} is {{\"type\": \"function\", \"function\": {{...}}}}; found no `function` object",
                  tools.size());
    }
    tools.push_back(python_json::dumps(*function));
  }
  return tools;
}

std::string read_response_format(const Value& object) {
  const Value* format = object.find("response_format");
  return format == nullptr || !format->truthy() ? std::string() : python_json::dumps(*format);
}

Result<ChatMessage> read_message(const Value& item) {
  if (!item.is(Kind::kObject)) {
    return fail(ErrorCode::kInvalidArgument, "a message is an object; found {}", item.kind_name());
  }
  ChatMessage message;
  PIVOT_TRY(const std::string role, optional_string(item, "role"));
  const auto known = chat_role(role);
  if (!known) {
    return fail(ErrorCode::kInvalidArgument,
                "`role` is one of system, user, assistant, tool, latest_reminder, developer; found \"{}\"",
                role);
  }
  message.role = *known;
  PIVOT_TRY(message.content, read_content(item));
  PIVOT_TRY(message.reasoning, optional_string(item, "reasoning_content"));
  PIVOT_TRY(message.tool_calls, read_tool_calls(item));
  PIVOT_TRY(message.tool_call_id, optional_string(item, "tool_call_id"));
  PIVOT_TRY(message.tools, read_tools(item));
  message.response_format = read_response_format(item);
  PIVOT_TRY(const std::string task, optional_string(item, "task"));
  if (present(item, "task") != nullptr) {
    message.task = chat_task(task);
    if (!message.task) {
      return fail(ErrorCode::kInvalidArgument,
                  "`task` is one of action, query, authority, domain, title, read_url; found \"{}\"", task);
    }
  }
  const Value* without_eos = item.find("wo_eos");
  message.without_eos = without_eos != nullptr && without_eos->truthy();
  return message;
}

}  // namespace

std::string_view to_string(ChatRole role) {
  for (const auto& [name, value] : kRoles) {
    if (value == role) return name;
  }
  return "";
}

std::optional<ChatRole> chat_role(std::string_view name) {
  for (const auto& [known, value] : kRoles) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::optional<ChatTask> chat_task(std::string_view name) {
  for (const auto& [known, value] : kTasks) {
    if (known == name) return value;
  }
  return std::nullopt;
}

ChatMessage ChatMessage::text(ChatRole role, std::string content) {
  ChatMessage message;
  message.role = role;
  if (!content.empty()) message.content.push_back({"text", std::move(content)});
  return message;
}

Result<Conversation> parse_conversation(std::string_view json) {
  PIVOT_TRY(const Value document, python_json::parse(json));
  Conversation conversation;
  const Value* messages = &document;
  if (document.is(Kind::kObject)) {
    messages = present(document, "messages");
    PIVOT_TRY(conversation.tools, read_tools(document));
    conversation.response_format = read_response_format(document);
  }
  if (messages == nullptr || !messages->is(Kind::kArray)) {
    return fail(ErrorCode::kInvalidArgument,
                "a conversation is a list of messages or an object with such a list as `messages`; found {}",
                messages == nullptr ? "an object without one" : messages->kind_name());
  }
  for (const Value& item : messages->items) {
    auto message = read_message(item);
    if (!message)
      return fail(std::move(message).error().with(fmt::format("message {}", conversation.messages.size())));
    conversation.messages.push_back(*std::move(message));
  }
  return conversation;
}

}  // namespace pivot
