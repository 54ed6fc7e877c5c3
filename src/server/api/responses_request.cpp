// /v1/responses: OpenAI's Responses API, without server-side state.
#include <fmt/format.h>

#include "server/api/common_fields.h"

namespace pivot::api {
namespace {

ApiResult<ChatMessage> read_message_item(Fields& item) {
  ChatMessage message;
  PIVOT_TRY(const std::string role, item.required_string("role"));
  if (role == "user") {
    message.role = ChatRole::kUser;
  } else if (role == "assistant") {
    message.role = ChatRole::kAssistant;
  } else if (role == "system" || role == "developer") {
    message.role = ChatRole::kSystem;
  } else {
    return bad_field(item.path("role"),
                     fmt::format("`{}` is user, assistant, system or developer; found \"{}\"",
                                 item.path("role"), quotable(role)));
  }
  if (const Json* content = item.get("content")) {
    PIVOT_TRY(message.content, read_content(*content, item.path("content")));
  }
  return message;
}

// The text of a reasoning item: its content where there is one, else its summary.
ApiResult<std::string> read_reasoning_item(Fields& item) {
  std::string text;
  for (const std::string_view name : {"content", "summary"}) {
    PIVOT_TRY(const Json* list, item.list(name));
    for (std::size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
      PIVOT_TRY(Fields part, Fields::of(list->items[i], fmt::format("{}[{}]", item.path(name), i)));
      PIVOT_TRY(const std::string piece, part.required_string("text"));
      text += piece;
    }
    if (!text.empty()) return text;
  }
  return text;
}

// Items of one assistant turn (reasoning, message, calls) become one message.
class ItemReader {
 public:
  explicit ItemReader(Conversation& out) : out_(out) {}

  ApiResult<> read(const Json& value, const std::string& path) {
    PIVOT_TRY(Fields item, Fields::of(value, path));
    PIVOT_TRY(const auto given, item.string("type"));
    const std::string type = given.value_or("message");
    if (type == "message") {
      PIVOT_TRY(ChatMessage message, read_message_item(item));
      if (message.role != ChatRole::kAssistant) {
        open_ = false;
        out_.messages.push_back(std::move(message));
        return {};
      }
      ChatMessage& turn = assistant();
      for (ContentPart& part : message.content) turn.content.push_back(std::move(part));
      return {};
    }
    if (type == "reasoning") {
      PIVOT_TRY(const std::string text, read_reasoning_item(item));
      assistant().reasoning += text;
      return {};
    }
    if (type == "function_call") {
      ToolCall call;
      PIVOT_TRY(call.id, item.required_string("call_id"));
      PIVOT_TRY(call.name, item.required_string("name"));
      PIVOT_TRY_VOID(check_tool_name(call.name, item.path("name")));
      PIVOT_TRY(call.arguments, item.required_string("arguments"));
      assistant().tool_calls.push_back(std::move(call));
      return {};
    }
    if (type == "function_call_output") {
      open_ = false;
      ChatMessage result;
      result.role = ChatRole::kTool;
      PIVOT_TRY(result.tool_call_id, item.required_string("call_id"));
      if (const Json* output = item.get("output")) {
        PIVOT_TRY(result.content, read_content(*output, item.path("output")));
      }
      out_.messages.push_back(std::move(result));
      return {};
    }
    return bad_field(item.path("type"),
                     fmt::format("`{}` is message, reasoning, function_call or function_call_output; "
                                 "found \"{}\"",
                                 item.path("type"), quotable(type)));
  }

 private:
  ChatMessage& assistant() {
    if (!open_) {
      out_.messages.push_back(ChatMessage::text(ChatRole::kAssistant, {}));
      open_ = true;
    }
    return out_.messages.back();
  }

  Conversation& out_;
  bool open_ = false;  // the last message is an assistant turn that may go on
};

ApiResult<> read_input(Fields& fields, Conversation& out) {
  const Json* input = fields.get("input");
  if (input == nullptr) return bad_field("input", "`input` is required: a text or a list of items");
  if (input->is(JsonKind::kString)) {
    out.messages.push_back(ChatMessage::text(ChatRole::kUser, input->text));
    return {};
  }
  if (!input->is(JsonKind::kArray) || input->items.empty()) {
    return bad_field("input",
                     fmt::format("`input` is a text or a list of items; found {}",
                                 input->is(JsonKind::kArray) ? "an empty list" : input->kind_name()));
  }
  ItemReader reader(out);
  for (std::size_t i = 0; i < input->items.size(); ++i) {
    PIVOT_TRY_VOID(reader.read(input->items[i], fmt::format("input[{}]", i)));
  }
  return {};
}

ApiResult<> read_tools(Fields& fields, GenerationRequest& request, ChatPrompt& prompt) {
  PIVOT_TRY(const Json* list, fields.list("tools"));
  for (std::size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    PIVOT_TRY(Fields item, Fields::of(list->items[i], path));
    PIVOT_TRY(const std::string type, item.required_string("type"));
    if (type != "function") {
      return bad_field(item.path("type"),
                       fmt::format("`{}` is function; found \"{}\", which this server does not run",
                                   item.path("type"), quotable(type)));
    }
    Json function = list->items[i];
    std::erase_if(function.members, [](const auto& member) { return member.key == "type"; });
    PIVOT_TRY_VOID(add_tool(function, path, prompt));
  }
  if (list != nullptr) request.tools_json = python_json::dumps(*list);
  if (const Json* choice = fields.get("tool_choice")) request.tool_choice_json = python_json::dumps(*choice);
  return {};
}

}  // namespace

ApiResult<GenerationRequest> read_responses_request(const Json& body) {
  GenerationRequest request;
  request.api = Api::kResponses;
  Fields fields(body, "");
  ChatPrompt prompt;
  PIVOT_TRY(request.model, read_model(fields));
  PIVOT_TRY(auto instructions, fields.string("instructions"));
  if (instructions && !instructions->empty()) {
    request.instructions = *instructions;
    prompt.conversation.messages.push_back(ChatMessage::text(ChatRole::kSystem, *std::move(instructions)));
  }
  PIVOT_TRY_VOID(read_input(fields, prompt.conversation));
  if (const Json* metadata = fields.get("metadata"); metadata != nullptr && metadata->is(JsonKind::kObject)) {
    request.metadata_json = python_json::dumps(*metadata);
  }
  PIVOT_TRY_VOID(read_sampling(fields, request.sampling));
  PIVOT_TRY(request.sampling.stop, read_stops(fields, "stop"));
  PIVOT_TRY_VOID(read_stream_options(fields, request));
  PIVOT_TRY(const auto limit, fields.integer("max_output_tokens", 1, std::int64_t{1} << 40));
  request.sampling.max_tokens = limit.value_or(0);
  PIVOT_TRY_VOID(read_tools(fields, request, prompt));
  PIVOT_TRY_VOID(read_thinking(fields, prompt));
  PIVOT_TRY(auto reasoning, fields.object("reasoning"));
  if (reasoning) {
    PIVOT_TRY(const auto effort, reasoning->string("effort"));
    if (effort) PIVOT_TRY_VOID(apply_effort(*effort, "reasoning.effort", prompt));
  }
  PIVOT_TRY(auto text, fields.object("text"));
  if (text) {
    if (const Json* format = text->get("format")) {
      PIVOT_TRY_VOID(read_format(*format, "text.format", /*schema_inside=*/false, request.grammar));
      request.text_format_json = python_json::dumps(*format);
    }
  }
  // read_chat_tools reads the choice; the tools themselves have this API's flat form and are read above.
  Json choice_only;
  choice_only.kind = JsonKind::kObject;
  if (const Json* choice = fields.get("tool_choice")) choice_only.members.push_back({"tool_choice", *choice});
  if (const Json* parallel = fields.get("parallel_tool_calls")) {
    choice_only.members.push_back({"parallel_tool_calls", *parallel});
  }
  Fields choice_fields(choice_only, "");
  PIVOT_TRY_VOID(read_chat_tools(choice_fields, prompt));
  PIVOT_TRY(const auto top, fields.integer("top_logprobs", 0, kMaxTopLogprobs));
  if (top && *top > 0)
    return bad_field("top_logprobs", "`top_logprobs` is not supported here; /v1/chat/completions has it");
  PIVOT_TRY_VOID(fields.refuse("previous_response_id",
                               "responses are not stored; send the whole conversation as `input`"));
  PIVOT_TRY_VOID(
      fields.refuse("conversation", "conversations are not stored; send the whole one as `input`"));
  PIVOT_TRY_VOID(fields.refuse("background", "a response is given to the client that asks for it"));
  PIVOT_TRY_VOID(fields.refuse("prompt", "prompt templates are not stored here"));
  PIVOT_TRY_VOID(read_grammar(fields, request.grammar));
  fields.ignore({"include", "truncation", "max_tool_calls"});
  request.ignored_fields = fields.unknown();
  request.prompt = std::move(prompt);
  return request;
}

}  // namespace pivot::api
