// The fields that several APIs share. Private to the readers.
#pragma once

#include "server/api/fields.h"
#include "server/api/request.h"

namespace pivot::api {

ApiResult<std::string> read_model(Fields& fields);
// temperature, top_p, top_k, min_p, penalties, seed, logit_bias, ignore_eos, ..., and the refusal of the ones
// that this engine has not.
ApiResult<> read_sampling(Fields& fields, SamplingFields& out);
ApiResult<> read_stream_options(Fields& fields, GenerationRequest& out);
// Strings and lists of strings.
ApiResult<std::vector<std::string>> read_stops(Fields& fields, std::string_view name);
// response_format, guided_json, guided_regex, guided_grammar, guided_choice, structured_outputs. At most one.
ApiResult<> read_grammar(Fields& fields, Grammar& out);
// {"type": "text" | "json_object" | "json_schema", ...}; `schema_inside`: the schema is one level down, under
// json_schema (chat), rather than beside `type` (responses).
ApiResult<> read_format(const Json& value, const std::string& path, bool schema_inside, Grammar& out);
// thinking, chat_template_kwargs, reasoning_effort, include_reasoning.
ApiResult<> read_thinking(Fields& fields, ChatPrompt& out);
ApiResult<> apply_effort(const std::string& effort, const std::string& path, ChatPrompt& out);
// [{"type": "function", "function": {...}}] into the conversation and `tools`.
ApiResult<> read_chat_tools(Fields& fields, ChatPrompt& out);
ApiResult<> add_tool(const Json& function, const std::string& path, ChatPrompt& out);
// After tools and tool choice are known: none leaves the tools out of the prompt, a name must exist.
ApiResult<> resolve_tool_choice(const std::string& path, ChatPrompt& out);
ApiResult<> read_chat_messages(Fields& fields, ChatPrompt& out);
// A string, or a list whose items `read` makes into texts; `items`: what the API calls them.
using PartReader = ApiResult<std::string> (*)(const Json& item, const std::string& path);
ApiResult<std::vector<ContentPart>> read_parts(const Json& value, const std::string& path,
                                               std::string_view items, PartReader read);
// A content of OpenAI's APIs: a string or a list of text parts. Images, audio and files are refused by name.
ApiResult<std::vector<ContentPart>> read_content(const Json& value, const std::string& path);
// [a-zA-Z0-9_-]{1,64}; more liberal: no control characters, quotes or angle brackets, at most 128 bytes.
ApiResult<> check_tool_name(const std::string& name, const std::string& path);

}  // namespace pivot::api
