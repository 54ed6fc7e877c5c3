// /v1/completions, /tokenize and /detokenize.
#include <fmt/format.h>

#include <limits>

#include "server/api/common_fields.h"

namespace pivot::api {
namespace {

constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();

ApiResult<std::vector<std::int64_t>> read_ids(const Json& list, const std::string& path) {
  std::vector<std::int64_t> ids;
  ids.reserve(list.items.size());
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    PIVOT_TRY(const std::int64_t id, as_integer(list.items[i], fmt::format("{}[{}]", path, i), 0, kMaxId));
    ids.push_back(id);
  }
  return ids;
}

// A string, a list of strings, a list of ids, or a list of lists of ids.
ApiResult<std::vector<TextPrompt>> read_prompts(Fields& fields) {
  std::vector<TextPrompt> prompts;
  const Json* value = fields.get("prompt");
  if (value == nullptr)
    return bad_field("prompt", "`prompt` is required: a text, a list of texts, or token ids");
  const auto add_text = [&](const Json& text) { prompts.push_back({text.text, {}, false}); };
  if (value->is(JsonKind::kString)) {
    add_text(*value);
    return prompts;
  }
  if (!value->is(JsonKind::kArray) || value->items.empty()) {
    return bad_field("prompt",
                     fmt::format("`prompt` is a text, a list of texts, or token ids; found {}",
                                 value->is(JsonKind::kArray) ? "an empty list" : value->kind_name()));
  }
  if (value->items.front().is(JsonKind::kInteger)) {
    PIVOT_TRY(std::vector<std::int64_t> ids, read_ids(*value, "prompt"));
    prompts.push_back({{}, std::move(ids), true});
    return prompts;
  }
  if (value->items.size() > kMaxPrompts) {
    return bad_field("prompt", fmt::format("`prompt` lists {} prompts; at most {} are taken",
                                           value->items.size(), kMaxPrompts));
  }
  for (std::size_t i = 0; i < value->items.size(); ++i) {
    const Json& item = value->items[i];
    const std::string path = fmt::format("prompt[{}]", i);
    if (item.is(JsonKind::kArray)) {
      PIVOT_TRY(std::vector<std::int64_t> ids, read_ids(item, path));
      prompts.push_back({{}, std::move(ids), true});
    } else if (item.is(JsonKind::kString)) {
      add_text(item);
    } else {
      return bad_field(
          path, fmt::format("`{}` is a text or a list of token ids; found {}", path, item.kind_name()));
    }
  }
  return prompts;
}

}  // namespace

ApiResult<GenerationRequest> read_completions_request(const Json& body) {
  GenerationRequest request;
  request.api = Api::kCompletions;
  Fields fields(body, "");
  PIVOT_TRY(request.model, read_model(fields));
  PIVOT_TRY(auto prompts, read_prompts(fields));
  PIVOT_TRY_VOID(read_sampling(fields, request.sampling));
  PIVOT_TRY(request.sampling.stop, read_stops(fields, "stop"));
  PIVOT_TRY_VOID(read_stream_options(fields, request));
  PIVOT_TRY(const auto limit, fields.integer("max_tokens", 1, std::int64_t{1} << 40));
  request.sampling.max_tokens = limit.value_or(16);  // the API's own default
  PIVOT_TRY(const auto n, fields.integer("n", 1, kMaxChoices));
  request.sampling.n = static_cast<std::int32_t>(n.value_or(1));
  PIVOT_TRY(const auto best_of, fields.integer("best_of", 1, kMaxChoices));
  if (best_of && *best_of != request.sampling.n) {
    return bad_field("best_of", "`best_of` other than `n` is not supported");
  }
  PIVOT_TRY(const auto logprobs, fields.integer("logprobs", 0, kMaxTopLogprobs));
  if (logprobs) request.sampling.top_logprobs = static_cast<std::int32_t>(*logprobs);
  PIVOT_TRY(const auto echo, fields.boolean("echo"));
  request.echo = echo.value_or(false);
  if (request.echo && logprobs) request.prompt_logprobs = static_cast<std::int32_t>(*logprobs);
  PIVOT_TRY(const auto prompt_logprobs, fields.integer("prompt_logprobs", 0, kMaxTopLogprobs));
  if (prompt_logprobs)
    return bad_field("prompt_logprobs",
                     "`prompt_logprobs` is not supported; `echo` with `logprobs` gives the same");
  PIVOT_TRY(const auto suffix, fields.string("suffix"));
  if (suffix && !suffix->empty())
    return bad_field("suffix", "`suffix` is not supported: the model does not fill in");
  PIVOT_TRY_VOID(read_grammar(fields, request.grammar));
  fields.ignore({"add_special_tokens"});
  request.ignored_fields = fields.unknown();
  request.prompt = std::move(prompts);
  return request;
}

ApiResult<TokenizeRequest> read_tokenize_request(const Json& body) {
  TokenizeRequest request;
  Fields fields(body, "");
  PIVOT_TRY(request.model, read_model(fields));
  PIVOT_TRY(auto text, fields.string("prompt"));
  const bool has_messages = fields.has("messages");
  if (text.has_value() == has_messages) {
    return bad_field("prompt", "one of `prompt` (a text) and `messages` is wanted");
  }
  if (text) {
    request.text = *std::move(text);
  } else {
    ChatPrompt prompt;
    PIVOT_TRY_VOID(read_chat_messages(fields, prompt));
    PIVOT_TRY_VOID(read_thinking(fields, prompt));
    PIVOT_TRY_VOID(read_chat_tools(fields, prompt));
    request.chat = std::move(prompt);
  }
  PIVOT_TRY(const auto special, fields.boolean("add_special_tokens"));
  request.add_special_tokens = special.value_or(false);
  PIVOT_TRY(const auto strings, fields.boolean("return_token_strs"));
  request.with_strings = strings.value_or(false);
  return request;
}

ApiResult<DetokenizeRequest> read_detokenize_request(const Json& body) {
  DetokenizeRequest request;
  Fields fields(body, "");
  PIVOT_TRY(request.model, read_model(fields));
  PIVOT_TRY(const Json* list, fields.list("tokens"));
  if (list == nullptr) return bad_field("tokens", "`tokens` is required: a list of token ids");
  PIVOT_TRY(request.ids, read_ids(*list, "tokens"));
  return request;
}

}  // namespace pivot::api
