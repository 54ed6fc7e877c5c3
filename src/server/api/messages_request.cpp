// /v1/messages: Anthropic's shape.
#include <fmt/format.h>

#include "server/api/common_fields.h"

namespace pivot::api {
namespace {

tl::unexpected<ApiError> unsupported_block(const std::string& path, std::string_view type) {
  ApiError error;
  error.param = path;
  error.code = "unsupported";
  error.message = fmt::format(
      "a block of type \"{}\" is not supported: this model reads text only, no image, document or "
      "server tool",
      quotable(type));
  return tl::unexpected(std::move(error));
}

ApiResult<std::string> read_text_block(const Json& value, const std::string& path) {
  PIVOT_TRY(Fields block, Fields::of(value, path));
  PIVOT_TRY(const std::string type, block.required_string("type"));
  if (type != "text") return unsupported_block(path, type);
  return block.required_string("text");
}

// Text blocks, or a string; the content of `system` and of tool results.
ApiResult<std::vector<ContentPart>> read_text_blocks(const Json& value, const std::string& path) {
  return read_parts(value, path, "blocks", read_text_block);
}

// A user message becomes tool results and a user message, in the order of its blocks.
ApiResult<> read_user(const Json& content, const std::string& path, Conversation& out) {
  if (content.is(JsonKind::kString)) {
    out.messages.push_back(ChatMessage::text(ChatRole::kUser, content.text));
    return {};
  }
  if (!content.is(JsonKind::kArray)) {
    return bad_field(
        path, fmt::format("`{}` is a string or a list of blocks; found {}", path, content.kind_name()));
  }
  ChatMessage text;
  text.role = ChatRole::kUser;
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    PIVOT_TRY(Fields block, Fields::of(content.items[i], at));
    PIVOT_TRY(const std::string type, block.required_string("type"));
    if (type == "text") {
      PIVOT_TRY(std::string part, block.required_string("text"));
      text.content.push_back({"text", std::move(part)});
    } else if (type == "tool_result") {
      if (!text.content.empty())
        out.messages.push_back(std::exchange(text, ChatMessage::text(ChatRole::kUser, {})));
      ChatMessage result;
      result.role = ChatRole::kTool;
      PIVOT_TRY(result.tool_call_id, block.required_string("tool_use_id"));
      if (const Json* value = block.get("content")) {
        PIVOT_TRY(result.content, read_text_blocks(*value, block.path("content")));
      }
      out.messages.push_back(std::move(result));
    } else {
      return unsupported_block(at, type);
    }
  }
  if (!text.content.empty()) out.messages.push_back(std::move(text));
  return {};
}

ApiResult<ChatMessage> read_assistant(const Json& content, const std::string& path) {
  ChatMessage message;
  message.role = ChatRole::kAssistant;
  if (content.is(JsonKind::kString)) return ChatMessage::text(ChatRole::kAssistant, content.text);
  if (!content.is(JsonKind::kArray)) {
    return bad_field(
        path, fmt::format("`{}` is a string or a list of blocks; found {}", path, content.kind_name()));
  }
  std::string text;
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    PIVOT_TRY(Fields block, Fields::of(content.items[i], at));
    PIVOT_TRY(const std::string type, block.required_string("type"));
    if (type == "text") {
      PIVOT_TRY(const std::string part, block.required_string("text"));
      text += part;
    } else if (type == "thinking") {
      PIVOT_TRY(const std::string part, block.required_string("thinking"));
      message.reasoning += part;
    } else if (type == "redacted_thinking") {
      // Encrypted for another server: nothing that this model could read.
    } else if (type == "tool_use") {
      ToolCall call;
      PIVOT_TRY(call.id, block.required_string("id"));
      PIVOT_TRY(call.name, block.required_string("name"));
      PIVOT_TRY_VOID(check_tool_name(call.name, block.path("name")));
      const Json* input = block.get("input");
      if (input != nullptr && !input->is(JsonKind::kObject)) {
        return bad_field(block.path("input"),
                         fmt::format("`{}` is an object; found {}", block.path("input"), input->kind_name()));
      }
      call.arguments = input == nullptr ? "{}" : python_json::dumps(*input);
      message.tool_calls.push_back(std::move(call));
    } else {
      return unsupported_block(at, type);
    }
  }
  if (!text.empty()) message.content.push_back({"text", std::move(text)});
  return message;
}

ApiResult<> read_messages(Fields& fields, ChatPrompt& out) {
  Conversation& conversation = out.conversation;
  if (const Json* system = fields.get("system")) {
    ChatMessage message;
    message.role = ChatRole::kSystem;
    PIVOT_TRY(message.content, read_text_blocks(*system, "system"));
    if (!message.content.empty()) conversation.messages.push_back(std::move(message));
  }
  PIVOT_TRY(const Json* list, fields.list("messages"));
  if (list == nullptr || list->items.empty()) {
    return bad_field("messages", "`messages` is required: a list of at least one message");
  }
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    PIVOT_TRY(Fields message, Fields::of(list->items[i], fmt::format("messages[{}]", i)));
    PIVOT_TRY(const std::string role, message.required_string("role"));
    const Json* content = message.get("content");
    if (content == nullptr) {
      return bad_field(message.path("content"), fmt::format("`{}` is required", message.path("content")));
    }
    if (role == "user") {
      PIVOT_TRY_VOID(read_user(*content, message.path("content"), conversation));
    } else if (role == "assistant") {
      PIVOT_TRY(ChatMessage assistant, read_assistant(*content, message.path("content")));
      // The last one is a beginning that the model goes on from.
      assistant.without_eos = i + 1 == list->items.size();
      conversation.messages.push_back(std::move(assistant));
    } else if (role == "system") {
      ChatMessage instructions;
      instructions.role = ChatRole::kSystem;
      PIVOT_TRY(instructions.content, read_text_blocks(*content, message.path("content")));
      conversation.messages.push_back(std::move(instructions));
    } else {
      return bad_field(message.path("role"), fmt::format("`{}` is user or assistant; found \"{}\"",
                                                         message.path("role"), quotable(role)));
    }
  }
  return {};
}

ApiResult<> read_tools(Fields& fields, ChatPrompt& out) {
  PIVOT_TRY(const Json* list, fields.list("tools"));
  for (std::size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    PIVOT_TRY(Fields item, Fields::of(list->items[i], path));
    PIVOT_TRY(const auto type, item.string("type"));
    if (type && *type != "custom") {
      return bad_field(item.path("type"),
                       fmt::format("`{}` is custom; found \"{}\", a tool that this server does not run",
                                   item.path("type"), quotable(*type)));
    }
    // The encoding knows OpenAI's form: name, description, parameters.
    Json function;
    function.kind = JsonKind::kObject;
    for (const std::string_view name : {"name", "description"}) {
      if (const Json* value = item.get(name)) function.members.push_back({std::string(name), *value});
    }
    if (const Json* schema = item.get("input_schema")) function.members.push_back({"parameters", *schema});
    if (const Json* strict = item.get("strict")) function.members.push_back({"strict", *strict});
    PIVOT_TRY_VOID(add_tool(function, path, out));
  }
  PIVOT_TRY(auto choice, fields.object("tool_choice"));
  if (choice) {
    PIVOT_TRY(const std::string type, choice->required_string("type"));
    if (type == "none") {
      out.tool_choice.kind = ToolChoice::Kind::kNone;
    } else if (type == "any") {
      out.tool_choice.kind = ToolChoice::Kind::kRequired;
    } else if (type == "tool") {
      out.tool_choice.kind = ToolChoice::Kind::kNamed;
      PIVOT_TRY(out.tool_choice.name, choice->required_string("name"));
    } else if (type != "auto") {
      return bad_field(
          "tool_choice.type",
          fmt::format("`tool_choice.type` is auto, any, tool or none; found \"{}\"", quotable(type)));
    }
    PIVOT_TRY(const auto serial, choice->boolean("disable_parallel_tool_use"));
    out.parallel_tool_calls = !serial.value_or(false);
  }
  return resolve_tool_choice("tool_choice", out);
}

ApiResult<GenerationRequest> read_request(const Json& body, bool wants_limit) {
  GenerationRequest request;
  request.api = Api::kMessages;
  Fields fields(body, "");
  ChatPrompt prompt;
  PIVOT_TRY(request.model, read_model(fields));
  PIVOT_TRY_VOID(read_messages(fields, prompt));
  PIVOT_TRY_VOID(read_sampling(fields, request.sampling));
  PIVOT_TRY(request.sampling.stop, read_stops(fields, "stop_sequences"));
  PIVOT_TRY(const auto limit, fields.integer("max_tokens", 1, std::int64_t{1} << 40));
  if (!limit && wants_limit) return bad_field("max_tokens", "`max_tokens` is required");
  request.sampling.max_tokens = limit.value_or(0);
  PIVOT_TRY(const auto stream, fields.boolean("stream"));
  request.stream = stream.value_or(false);
  PIVOT_TRY_VOID(read_thinking(fields, prompt));
  PIVOT_TRY_VOID(read_tools(fields, prompt));
  PIVOT_TRY(auto output, fields.object("output_config"));
  if (output) {
    if (const Json* format = output->get("format")) {
      PIVOT_TRY_VOID(read_format(*format, output->path("format"), /*schema_inside=*/false, request.grammar));
    }
    PIVOT_TRY(const auto effort, output->string("effort"));
    if (effort && prompt.thinking.value_or(false))
      PIVOT_TRY_VOID(apply_effort(*effort, output->path("effort"), prompt));
  }
  PIVOT_TRY_VOID(fields.refuse("mcp_servers", "this server runs no tools"));
  fields.ignore({"container", "betas", "context_management", "cache_control"});
  request.ignored_fields = fields.unknown();
  request.prompt = std::move(prompt);
  return request;
}

}  // namespace

ApiResult<GenerationRequest> read_messages_request(const Json& body) { return read_request(body, true); }
ApiResult<GenerationRequest> read_count_tokens_request(const Json& body) { return read_request(body, false); }

}  // namespace pivot::api
