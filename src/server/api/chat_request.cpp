// /v1/chat/completions.
#include <fmt/format.h>

#include <algorithm>

#include "server/api/common_fields.h"

namespace pivot::api {
namespace {

constexpr std::size_t kMaxMessages = 100'000;
constexpr std::size_t kMaxTools = 1024;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxCallIdBytes = 256;

ApiResult<> check_call_id(const std::string& id, const std::string& path) {
  if (id.size() <= kMaxCallIdBytes) return {};
  return bad_field(
      path, fmt::format("`{}` has {} bytes; a call's id has at most {}", path, id.size(), kMaxCallIdBytes));
}

ApiResult<std::vector<ToolCall>> read_tool_calls(Fields& message) {
  std::vector<ToolCall> calls;
  PIVOT_TRY(const Json* list, message.list("tool_calls"));
  if (list == nullptr) return calls;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    PIVOT_TRY(Fields item, Fields::of(list->items[i], fmt::format("{}[{}]", message.path("tool_calls"), i)));
    PIVOT_TRY(auto type, item.string("type"));
    if (type && *type != "function") {
      return bad_field(item.path("type"),
                       fmt::format("`{}` is function; found \"{}\"", item.path("type"), quotable(*type)));
    }
    ToolCall call;
    PIVOT_TRY(auto id, item.string("id"));
    call.id = std::move(id).value_or("");
    PIVOT_TRY_VOID(check_call_id(call.id, item.path("id")));
    PIVOT_TRY(auto function, item.object("function"));
    if (!function)
      return bad_field(item.path("function"), fmt::format("`{}` is required", item.path("function")));
    PIVOT_TRY(call.name, function->required_string("name"));
    PIVOT_TRY_VOID(check_tool_name(call.name, function->path("name")));
    const Json* arguments = function->get("arguments");
    if (arguments == nullptr) {
      call.arguments = "{}";
    } else if (arguments->is(JsonKind::kString)) {
      call.arguments = arguments->text;
    } else if (arguments->is(JsonKind::kObject)) {
      call.arguments = python_json::dumps(*arguments);
    } else {
      return bad_field(function->path("arguments"),
                       fmt::format("`{}` is the JSON text of an object; found {}",
                                   function->path("arguments"), arguments->kind_name()));
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

ApiResult<ChatMessage> read_message(const Json& value, const std::string& path) {
  PIVOT_TRY(Fields fields, Fields::of(value, path));
  ChatMessage message;
  PIVOT_TRY(const std::string role, fields.required_string("role"));
  // The encoding's own role `developer` is internal; OpenAI's clients mean `system` by it.
  if (role == "developer" || role == "system") {
    message.role = ChatRole::kSystem;
  } else if (role == "user") {
    message.role = ChatRole::kUser;
  } else if (role == "assistant") {
    message.role = ChatRole::kAssistant;
  } else if (role == "tool") {
    message.role = ChatRole::kTool;
  } else if (role == "latest_reminder") {
    message.role = ChatRole::kLatestReminder;
  } else {
    return bad_field(
        fields.path("role"),
        fmt::format("`{}` is system, developer, user, assistant, tool or latest_reminder; found \"{}\"",
                    fields.path("role"), quotable(role)));
  }
  if (const Json* content = fields.get("content")) {
    PIVOT_TRY(message.content, read_content(*content, fields.path("content")));
  }
  if (message.role == ChatRole::kAssistant) {
    for (const std::string_view name : {"reasoning_content", "reasoning"}) {
      PIVOT_TRY(auto reasoning, fields.string(name));
      if (reasoning && message.reasoning.empty()) message.reasoning = *std::move(reasoning);
    }
    PIVOT_TRY(message.tool_calls, read_tool_calls(fields));
    PIVOT_TRY(const auto prefix, fields.boolean("prefix"));  // DeepSeek's "go on from here"
    message.without_eos = prefix.value_or(false);
    PIVOT_TRY_VOID(fields.refuse("audio", "this model reads text only"));
    PIVOT_TRY_VOID(fields.refuse("function_call", "use tool_calls"));
  } else if (message.role == ChatRole::kTool) {
    PIVOT_TRY(auto id, fields.string("tool_call_id"));
    message.tool_call_id = std::move(id).value_or("");
    PIVOT_TRY_VOID(check_call_id(message.tool_call_id, fields.path("tool_call_id")));
  } else if (message.role == ChatRole::kUser) {
    PIVOT_TRY(auto task, fields.string("task"));
    if (task) {
      message.task = chat_task(*task);
      if (!message.task) {
        return bad_field(fields.path("task"),
                         fmt::format("`{}` is action, query, authority, domain, title or read_url; "
                                     "found \"{}\"",
                                     fields.path("task"), quotable(*task)));
      }
    }
  }
  return message;
}

// One part of OpenAI's content, or a bare text.
ApiResult<std::string> read_part(const Json& value, const std::string& path) {
  if (value.is(JsonKind::kString)) return value.text;
  PIVOT_TRY(Fields part, Fields::of(value, path));
  PIVOT_TRY(const std::string type, part.required_string("type"));
  if (type == "text" || type == "input_text" || type == "output_text") return part.required_string("text");
  if (type == "refusal") return part.required_string("refusal");
  ApiError error;
  error.param = path;
  error.code = "unsupported";
  error.message = fmt::format(
      "`{}` is of type \"{}\"; this model reads text only: images, audio, video and files are not supported",
      path, quotable(type));
  return tl::unexpected(std::move(error));
}

// A result needs a call before it: without one it would be put into the prompt as an answer to nothing.
ApiResult<> check_results(const Conversation& conversation) {
  bool any_call = false;
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const ChatMessage& message = conversation.messages[i];
    if (!message.tool_calls.empty()) any_call = true;
    if (message.role == ChatRole::kTool && !any_call) {
      const std::string path = fmt::format("messages[{}]", i);
      return bad_field(
          path,
          fmt::format("`{}` is a tool's result, but no assistant message before it has tool_calls", path));
    }
  }
  return {};
}

}  // namespace

ApiResult<> check_tool_name(const std::string& name, const std::string& path) {
  const bool clean = std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '<' || c == '>' || c == 0x7f;
  });
  if (!name.empty() && name.size() <= kMaxNameBytes && clean) return {};
  return bad_field(
      path, fmt::format("`{}` is a function's name: 1 to {} characters without spaces, quotes and angle "
                        "brackets; found \"{}\"",
                        path, kMaxNameBytes, quotable(name)));
}

ApiResult<std::vector<ContentPart>> read_parts(const Json& value, const std::string& path,
                                               std::string_view items, PartReader read) {
  std::vector<ContentPart> parts;
  if (value.is(JsonKind::kString)) {
    if (!value.text.empty()) parts.push_back({"text", value.text});
    return parts;
  }
  if (!value.is(JsonKind::kArray)) {
    return bad_field(
        path, fmt::format("`{}` is a string or a list of {}; found {}", path, items, value.kind_name()));
  }
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    PIVOT_TRY(std::string text, read(value.items[i], fmt::format("{}[{}]", path, i)));
    parts.push_back({"text", std::move(text)});
  }
  return parts;
}

ApiResult<std::vector<ContentPart>> read_content(const Json& value, const std::string& path) {
  return read_parts(value, path, "parts", read_part);
}

ApiResult<> add_tool(const Json& function, const std::string& path, ChatPrompt& out) {
  if (out.tools.size() >= kMaxTools) return bad_field(path, fmt::format("more than {} tools", kMaxTools));
  PIVOT_TRY(Fields fields, Fields::of(function, path));
  Tool tool;
  PIVOT_TRY(tool.name, fields.required_string("name"));
  PIVOT_TRY_VOID(check_tool_name(tool.name, fields.path("name")));
  const auto same = [&](const Tool& other) { return other.name == tool.name; };
  if (std::any_of(out.tools.begin(), out.tools.end(), same)) {
    return bad_field(fields.path("name"), fmt::format("two tools are called \"{}\"", quotable(tool.name)));
  }
  PIVOT_TRY(const auto description, fields.string("description"));
  static_cast<void>(description);
  tool.parameters = "{}";
  if (const Json* parameters = fields.get("parameters")) {
    if (!parameters->is(JsonKind::kObject)) {
      return bad_field(fields.path("parameters"),
                       fmt::format("`{}` is a JSON Schema: an object; found {}", fields.path("parameters"),
                                   parameters->kind_name()));
    }
    tool.parameters = python_json::dumps(*parameters);
  }
  PIVOT_TRY(const auto strict, fields.boolean("strict"));
  tool.strict = strict.value_or(false);
  out.tools.push_back(std::move(tool));
  out.conversation.tools.push_back(python_json::dumps(function));
  return {};
}

ApiResult<> read_chat_tools(Fields& fields, ChatPrompt& out) {
  PIVOT_TRY(const Json* list, fields.list("tools"));
  for (std::size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
    PIVOT_TRY(Fields item, Fields::of(list->items[i], fmt::format("{}[{}]", fields.path("tools"), i)));
    PIVOT_TRY(const std::string type, item.required_string("type"));
    if (type != "function") {
      return bad_field(item.path("type"),
                       fmt::format("`{}` is function; found \"{}\", which this server does not run",
                                   item.path("type"), quotable(type)));
    }
    const Json* function = item.get("function");
    if (function == nullptr) {
      return bad_field(item.path("function"), fmt::format("`{}` is required", item.path("function")));
    }
    PIVOT_TRY_VOID(add_tool(*function, item.path("function"), out));
  }
  PIVOT_TRY(const auto parallel, fields.boolean("parallel_tool_calls"));
  out.parallel_tool_calls = parallel.value_or(true);
  if (const Json* choice = fields.get("tool_choice")) {
    const std::string path = fields.path("tool_choice");
    if (choice->is(JsonKind::kString)) {
      if (choice->text == "none") {
        out.tool_choice.kind = ToolChoice::Kind::kNone;
      } else if (choice->text == "required" || choice->text == "any") {
        out.tool_choice.kind = ToolChoice::Kind::kRequired;
      } else if (choice->text != "auto") {
        return bad_field(
            path, fmt::format("`{}` is auto, none, required or an object that names a function; found \"{}\"",
                              path, quotable(choice->text)));
      }
    } else {
      PIVOT_TRY(Fields object, Fields::of(*choice, path));
      PIVOT_TRY(const std::string type, object.required_string("type"));
      if (type != "function") {
        return bad_field(object.path("type"),
                         fmt::format("`{}` is function; found \"{}\"", object.path("type"), quotable(type)));
      }
      out.tool_choice.kind = ToolChoice::Kind::kNamed;
      PIVOT_TRY(auto function, object.object("function"));
      if (function) {
        PIVOT_TRY(out.tool_choice.name, function->required_string("name"));
      } else {
        PIVOT_TRY(out.tool_choice.name, object.required_string("name"));  // /v1/responses
      }
    }
  }
  PIVOT_TRY_VOID(fields.refuse("functions", "use tools"));
  PIVOT_TRY_VOID(fields.refuse("function_call", "use tool_choice"));
  return resolve_tool_choice(fields.path("tool_choice"), out);
}

ApiResult<> resolve_tool_choice(const std::string& path, ChatPrompt& out) {
  const ToolChoice& choice = out.tool_choice;
  if (choice.kind == ToolChoice::Kind::kNone) {
    // The model sees no tools: the only way to be sure that it calls none.
    out.tools.clear();
    out.conversation.tools.clear();
    return {};
  }
  if (out.tools.empty() && choice.kind != ToolChoice::Kind::kAuto) {
    return bad_field(path, fmt::format("`{}` asks for a call, but `tools` is empty", path));
  }
  if (choice.kind != ToolChoice::Kind::kNamed) return {};
  const auto named = [&](const Tool& tool) { return tool.name == choice.name; };
  if (std::none_of(out.tools.begin(), out.tools.end(), named)) {
    return bad_field(path,
                     fmt::format("`{}` names \"{}\", which is not in `tools`", path, quotable(choice.name)));
  }
  return {};
}

ApiResult<> read_chat_messages(Fields& fields, ChatPrompt& out) {
  PIVOT_TRY(const Json* list, fields.list("messages"));
  const std::string path = fields.path("messages");
  if (list == nullptr || list->items.empty()) {
    return bad_field(path, fmt::format("`{}` is required: a list of at least one message", path));
  }
  if (list->items.size() > kMaxMessages) {
    return bad_field(path, fmt::format("`{}` has {} entries; at most {} are taken", path, list->items.size(),
                                       kMaxMessages));
  }
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    PIVOT_TRY(ChatMessage message, read_message(list->items[i], fmt::format("{}[{}]", path, i)));
    out.conversation.messages.push_back(std::move(message));
  }
  return check_results(out.conversation);
}

ApiResult<GenerationRequest> read_chat_request(const Json& body) {
  GenerationRequest request;
  request.api = Api::kChat;
  Fields fields(body, "");
  ChatPrompt prompt;
  PIVOT_TRY(request.model, read_model(fields));
  PIVOT_TRY_VOID(read_chat_messages(fields, prompt));
  PIVOT_TRY_VOID(read_sampling(fields, request.sampling));
  PIVOT_TRY(request.sampling.stop, read_stops(fields, "stop"));
  PIVOT_TRY_VOID(read_stream_options(fields, request));
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  PIVOT_TRY(const auto old_limit, fields.integer("max_tokens", 1, kMost));
  PIVOT_TRY(const auto limit, fields.integer("max_completion_tokens", 1, kMost));
  request.sampling.max_tokens = limit.value_or(old_limit.value_or(0));
  PIVOT_TRY(const auto n, fields.integer("n", 1, kMaxChoices));
  request.sampling.n = static_cast<std::int32_t>(n.value_or(1));
  PIVOT_TRY(const auto logprobs, fields.boolean("logprobs"));
  PIVOT_TRY(const auto top, fields.integer("top_logprobs", 0, kMaxTopLogprobs));
  if (top && *top > 0 && !logprobs.value_or(false)) {
    return bad_field("top_logprobs", "`top_logprobs` goes with `logprobs`: true");
  }
  if (logprobs.value_or(false)) request.sampling.top_logprobs = static_cast<std::int32_t>(top.value_or(0));
  PIVOT_TRY_VOID(read_thinking(fields, prompt));
  PIVOT_TRY(const auto include, fields.boolean("include_reasoning"));
  request.include_reasoning = include.value_or(true);
  PIVOT_TRY_VOID(read_chat_tools(fields, prompt));
  PIVOT_TRY_VOID(read_grammar(fields, request.grammar));
  PIVOT_TRY_VOID(fields.refuse("audio", "this model writes text only"));
  PIVOT_TRY_VOID(fields.refuse("web_search_options", "this server does not search"));
  PIVOT_TRY_VOID(fields.refuse("prediction", "there is no speculation from a given text"));
  PIVOT_TRY_VOID(fields.refuse("echo", "a chat's prompt is not text of the client; use /v1/completions"));
  PIVOT_TRY(const Json* modalities, fields.list("modalities"));
  for (std::size_t i = 0; modalities != nullptr && i < modalities->items.size(); ++i) {
    if (modalities->items[i].text != "text") {
      return bad_field("modalities",
                       fmt::format("`modalities` may list text only; found \"{}\"; images and audio are "
                                   "not supported",
                                   quotable(modalities->items[i].text)));
    }
  }
  fields.ignore({"add_generation_prompt", "separate_reasoning", "stream_reasoning", "chat_template"});
  request.ignored_fields = fields.unknown();
  request.prompt = std::move(prompt);
  return request;
}

ApiResult<GenerationRequest> read_generation_request(Api api, const Json& body) {
  switch (api) {
    case Api::kChat:
      return read_chat_request(body);
    case Api::kCompletions:
      return read_completions_request(body);
    case Api::kResponses:
      return read_responses_request(body);
    case Api::kMessages:
      return read_messages_request(body);
  }
  return bad_field("", "no such API");
}

}  // namespace pivot::api
