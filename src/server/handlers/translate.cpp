#include "server/handlers/translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "text/grammar/grammar.h"

namespace pivot::server {
namespace {

using api::ApiError;
using api::ApiResult;
using api::bad_field;

ApiResult<std::vector<TokenId>> checked_ids(const Context& context, const std::vector<std::int64_t>& ids,
                                            std::string_view field) {
  const std::int64_t vocab_size = context.engine.config().vocab_size;
  std::vector<TokenId> out;
  out.reserve(ids.size());
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return bad_field(std::string(field), fmt::format("`{}` holds token id {}; this model's ids are 0 to {}",
                                                       field, id, vocab_size - 1));
    }
    out.push_back(TokenId{static_cast<std::int32_t>(id)});
  }
  return out;
}

AnswerGrammar answer_grammar(const api::Grammar& grammar) {
  switch (grammar.kind) {
    case api::Grammar::Kind::kJsonSchema:
      return JsonSchemaGrammar{grammar.text, true};
    case api::Grammar::Kind::kRegex:
      return RegexGrammar{grammar.text};
    case api::Grammar::Kind::kEbnf:
      return EbnfGrammar{grammar.text};
    case api::Grammar::Kind::kChoice:
      return ChoiceGrammar{grammar.choices};
    default:
      return JsonObjectGrammar{};
  }
}

// Calls are constrained where the request says that there must be one, or that arguments follow their schema.
std::optional<ToolCallGrammar> tool_grammar(const api::ChatPrompt& prompt) {
  ToolCallGrammar grammar;
  const bool any_strict =
      std::any_of(prompt.tools.begin(), prompt.tools.end(), [](const auto& tool) { return tool.strict; });
  switch (prompt.tool_choice.kind) {
    case api::ToolChoice::Kind::kNone:
      return std::nullopt;
    case api::ToolChoice::Kind::kAuto:
      if (!any_strict) return std::nullopt;
      grammar.use = ToolCallGrammar::Use::kOptional;
      break;
    case api::ToolChoice::Kind::kRequired:
    case api::ToolChoice::Kind::kNamed:
      grammar.use = ToolCallGrammar::Use::kRequired;
      break;
  }
  for (const api::Tool& tool : prompt.tools) {
    if (prompt.tool_choice.kind == api::ToolChoice::Kind::kNamed && tool.name != prompt.tool_choice.name)
      continue;
    grammar.tools.push_back(
        {tool.name, tool.parameters == "{}" ? std::string() : tool.parameters, tool.strict});
  }
  grammar.parallel = prompt.parallel_tool_calls;
  return grammar;
}

// What the answer must look like, and the field that says so; nothing where any answer will do.
ApiResult<std::optional<AnswerGrammar>> wanted_grammar(const api::GenerationRequest& request,
                                                       std::string& param) {
  param = request.grammar.param;
  const bool has_format = request.grammar.kind != api::Grammar::Kind::kNone;
  const api::ChatPrompt* chat = request.chat();
  auto tools = chat == nullptr ? std::nullopt : tool_grammar(*chat);
  if (tools && has_format && tools->use == ToolCallGrammar::Use::kRequired) {
    return bad_field(param, fmt::format("`{}` says what the text looks like, but tool_choice asks for a call "
                                        "instead of text; give one of them",
                                        param));
  }
  if (has_format) return std::optional<AnswerGrammar>(answer_grammar(request.grammar));
  if (!tools) return std::optional<AnswerGrammar>();
  param = "tools";
  return std::optional<AnswerGrammar>(*std::move(tools));
}

}  // namespace

std::string client_of(const Context& context, const http::Request& request) {
  if (!context.options.api_keys.empty()) {
    std::string_view key = request.headers.get("x-api-key");
    const std::string_view authorization = request.headers.get("authorization");
    if (authorization.size() > 7) key = authorization.substr(7);
    const auto& keys = context.options.api_keys;
    return fmt::format("key:{}", std::find(keys.begin(), keys.end(), key) - keys.begin());
  }
  return request.peer.substr(0, request.peer.rfind(':'));
}

ApiResult<> check_model(const Context& context, const std::string& model) {
  const auto& names = context.options.model_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return {};
  ApiError error = api::not_found(fmt::format("the model \"{}\" is not served here; this server has \"{}\"",
                                              api::quotable(model), names.front()),
                                  "model_not_found");
  error.param = "model";
  return tl::unexpected(std::move(error));
}

ThinkingMode thinking_of(const Context& context, const api::ChatPrompt& prompt) {
  return prompt.thinking.value_or(context.options.default_thinking) ? ThinkingMode::kThinking
                                                                    : ThinkingMode::kChat;
}

ApiResult<std::vector<TokenId>> chat_prompt_ids(Context& context, const std::string& client,
                                                api::ChatPrompt& prompt) {
  ChatOptions options;
  options.thinking = thinking_of(context, prompt);
  options.encoding = context.options.encoding;
  options.max_effort_text = context.options.max_effort_text;
  options.effort = prompt.effort.value_or(ReasoningEffort::kDefault);
  // The preview's encoding has no low effort; its default is the least that it knows.
  if (options.effort == ReasoningEffort::kLow && options.encoding == ChatEncoding::kPreview) {
    options.effort = ReasoningEffort::kDefault;
  }
  auto ids = context.prompts.encode(client, prompt.conversation, options);
  if (ids) return *std::move(ids);
  ApiError error = api::from_error(ids.error());
  error.param = ids.error().code == ErrorCode::kUnsupported ? "reasoning_effort" : "messages";
  return tl::unexpected(std::move(error));
}

ApiResult<std::vector<PreparedPrompt>> prepare_prompts(Context& context, const std::string& client,
                                                       api::GenerationRequest& request) {
  std::vector<PreparedPrompt> prepared;
  if (api::ChatPrompt* chat = request.chat()) {
    PIVOT_TRY(std::vector<TokenId> ids, chat_prompt_ids(context, client, *chat));
    prepared.push_back({std::move(ids), {}});
    return prepared;
  }
  for (api::TextPrompt& prompt : std::get<std::vector<api::TextPrompt>>(request.prompt)) {
    PreparedPrompt one;
    if (prompt.is_ids) {
      PIVOT_TRY(one.ids, checked_ids(context, prompt.ids, "prompt"));
      if (request.echo) one.echo = context.tokenizer.decode(one.ids);
    } else {
      one.ids = context.tokenizer.encode(prompt.text);
      if (request.echo) one.echo = std::move(prompt.text);
    }
    if (one.ids.empty()) return bad_field("prompt", "`prompt` is empty; it has at least one token");
    prepared.push_back(std::move(one));
  }
  return prepared;
}

ApiResult<SamplingParams> prepare_sampling(const Context& context, const api::GenerationRequest& request) {
  const api::SamplingFields& fields = request.sampling;
  SamplingParams params = context.options.default_sampling;
  const auto set = [](float& to, const std::optional<double>& from) {
    if (from) to = static_cast<float>(*from);
  };
  set(params.temperature, fields.temperature);
  set(params.top_p, fields.top_p);
  set(params.min_p, fields.min_p);
  set(params.frequency_penalty, fields.frequency_penalty);
  set(params.presence_penalty, fields.presence_penalty);
  set(params.repetition_penalty, fields.repetition_penalty);
  if (fields.top_k) params.top_k = static_cast<std::int32_t>(*fields.top_k);
  if (fields.seed) {
    params.seed = *fields.seed;
  } else {
    static thread_local std::mt19937_64 seeds{std::random_device{}()};
    params.seed = seeds();
  }
  params.top_logprobs = fields.top_logprobs;
  for (const auto& [id, bias] : fields.logit_bias) {
    PIVOT_TRY(const auto checked, checked_ids(context, {id}, "logit_bias"));
    params.logit_bias.push_back({checked[0], static_cast<float>(bias)});
  }
  // Without tools nobody could take a call: the markup's own token cannot be chosen.
  const api::ChatPrompt* chat = request.chat();
  if (chat != nullptr && chat->tools.empty() && context.tokenizer.special().dsml) {
    params.logit_bias.push_back({*context.tokenizer.special().dsml, -std::numeric_limits<float>::infinity()});
  }
  if (auto valid = validate(params, context.engine.config().vocab_size); !valid) {
    return tl::unexpected(api::from_error(valid.error()));
  }
  return params;
}

std::vector<TokenId> stop_tokens_of(const Context& context, const api::SamplingFields& fields) {
  std::vector<TokenId> tokens;
  if (!fields.ignore_eos) tokens = context.options.stop_tokens;
  for (const std::int64_t id : fields.stop_token_ids)
    tokens.push_back(TokenId{static_cast<std::int32_t>(id)});
  return tokens;
}

void prepare_constraint(Context& context, const api::GenerationRequest& request, ConstraintDone done) {
  std::string param;
  auto grammar = wanted_grammar(request, param);
  if (!grammar) return done(tl::unexpected(std::move(grammar).error()));
  if (!*grammar) return done(std::unique_ptr<TokenConstraint>());
  if (context.grammars == nullptr) {
    ApiError error;
    error.param = param;
    error.code = "unsupported";
    error.message = fmt::format("`{}` needs constrained decoding, which this build does not contain", param);
    return done(tl::unexpected(std::move(error)));
  }
  const api::ChatPrompt* chat = request.chat();
  ConstrainOptions options;
  options.after_reasoning = chat != nullptr && thinking_of(context, *chat) == ThinkingMode::kThinking;
  context.grammars->constrain_later(
      **grammar, options,
      [param, done = std::move(done)](Result<std::unique_ptr<TokenConstraint>> constraint) {
        if (constraint) return done(*std::move(constraint));
        ApiError error = api::from_error(constraint.error());
        error.param = param;
        done(tl::unexpected(std::move(error)));
      });
}

}  // namespace pivot::server
