// What a client asks for, in one form for all four APIs; and the readers that turn bodies into it.
//
// Pure functions: no sockets, no engine, no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "server/api/body.h"
#include "server/api/error.h"
#include "text/chat/conversation.h"
#include "text/chat/encode.h"

namespace pivot::api {

// ---- what the answer must look like ----

struct Grammar {
  enum class Kind : std::uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kEbnf, kChoice };
  Kind kind = Kind::kNone;
  std::string text;                  // schema (JSON text), regular expression or EBNF
  std::vector<std::string> choices;  // kChoice
  std::string param;                 // the field it came from, for errors about it
};

struct Tool {
  std::string name;
  std::string parameters;  // JSON Schema, JSON text; "{}" where none was given
  bool strict = false;
};

struct ToolChoice {
  enum class Kind : std::uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // kNamed
};

// ---- sampling, where absent: the server's defaults ----

struct SamplingFields {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;  // 0: no limit
  std::optional<double> min_p;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> repetition_penalty;
  std::optional<std::uint64_t> seed;
  std::vector<std::pair<std::int64_t, double>> logit_bias;  // token id, bias
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::int64_t min_tokens = 0;
  std::int64_t max_tokens = 0;     // 0: what is left of the context
  std::int32_t top_logprobs = -1;  // -1: no logprobs
  std::int32_t n = 1;
  std::int32_t priority = 0;
};

// ---- prompts ----

struct ChatPrompt {
  Conversation conversation;
  // What the request says about reasoning; nothing: the server's default.
  std::optional<bool> thinking;
  std::optional<ReasoningEffort> effort;
  std::vector<Tool> tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
};

struct TextPrompt {  // text, or ids where given
  std::string text;
  std::vector<std::int64_t> ids;
  bool is_ids = false;
};

enum class Api : std::uint8_t { kChat, kCompletions, kResponses, kMessages };
std::string_view path_of(Api api);

struct GenerationRequest {
  Api api = Api::kChat;
  std::string model;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // with every chunk
  bool include_reasoning = true;  // false: the reasoning is left out of the answer
  SamplingFields sampling;
  Grammar grammar;
  std::variant<ChatPrompt, std::vector<TextPrompt>> prompt;
  // /v1/completions
  bool echo = false;
  std::int32_t prompt_logprobs = -1;
  // /v1/responses: echoed in the response object, as JSON texts.
  std::string instructions;
  std::string tools_json = "[]";
  std::string tool_choice_json = "\"auto\"";
  std::string text_format_json = R"({"type":"text"})";
  std::string metadata_json = "{}";

  std::vector<std::string> ignored_fields;  // unknown to this server: worth a warning in the log

  ChatPrompt* chat() { return std::get_if<ChatPrompt>(&prompt); }
  const ChatPrompt* chat() const { return std::get_if<ChatPrompt>(&prompt); }
};

// ---- readers ----
// Errors: 400 naming the field. Limits: names and stop strings of sizes that no client needs are refused.

inline constexpr std::int32_t kMaxChoices = 128;
inline constexpr std::int32_t kMaxTopLogprobs = 20;
inline constexpr std::size_t kMaxPrompts = 256;

ApiResult<GenerationRequest> read_chat_request(const Json& body);
ApiResult<GenerationRequest> read_completions_request(const Json& body);
ApiResult<GenerationRequest> read_responses_request(const Json& body);
ApiResult<GenerationRequest> read_messages_request(const Json& body);
// /v1/messages/count_tokens: the same without max_tokens.
ApiResult<GenerationRequest> read_count_tokens_request(const Json& body);
ApiResult<GenerationRequest> read_generation_request(Api api, const Json& body);

struct TokenizeRequest {
  std::string model;  // may be empty
  std::string text;
  bool add_special_tokens = false;  // a begin-of-sentence token before the text
  bool with_strings = false;
  std::optional<ChatPrompt> chat;  // instead of text
};
ApiResult<TokenizeRequest> read_tokenize_request(const Json& body);
struct DetokenizeRequest {
  std::string model;
  std::vector<std::int64_t> ids;
};
ApiResult<DetokenizeRequest> read_detokenize_request(const Json& body);

}  // namespace pivot::api
