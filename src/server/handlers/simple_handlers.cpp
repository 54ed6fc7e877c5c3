#include "server/handlers/simple_handlers.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api/json_text.h"
#include "server/api/request.h"
#include "server/handlers/translate.h"

namespace pivot::server {
namespace {

// A step of the largest model on the slowest machine takes seconds.
constexpr std::chrono::seconds kHungEngine{120};

using api::ApiResult;
using api::json_quoted;

std::string model_card(const Context& context, const std::string& name) {
  return fmt::format(
      R"({{"id":{},"object":"model","created":{},"owned_by":"pivot","root":{},"parent":null,"max_model_len":{}}})",
      json_quoted(name), context.options.created, json_quoted(context.options.model_root),
      context.engine.capacity().max_context);
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

http::Response json_response(std::string body) {
  http::Response response;
  response.body = std::move(body);
  return response;
}

http::Response get_models(const Context& context) {
  std::string cards;
  for (const std::string& name : context.options.model_names) {
    if (!cards.empty()) cards += ',';
    cards += model_card(context, name);
  }
  return json_response(fmt::format(R"({{"object":"list","data":[{}]}})", cards));
}

ApiResult<http::Response> get_model(const Context& context, std::string_view id) {
  const std::string name = percent_decoded(id);
  PIVOT_TRY_VOID(check_model(context, name));
  return json_response(model_card(context, name));
}

ApiResult<http::Response> post_tokenize(Context& context, const http::Request& request) {
  PIVOT_TRY(const api::Json body, api::parse_body(request.body));
  PIVOT_TRY(api::TokenizeRequest wanted, api::read_tokenize_request(body));
  PIVOT_TRY_VOID(check_model(context, wanted.model));
  std::vector<TokenId> ids;
  if (wanted.chat) {
    PIVOT_TRY(ids, chat_prompt_ids(context, client_of(context, request), *wanted.chat));
  } else {
    if (wanted.add_special_tokens && context.tokenizer.special().bos)
      ids.push_back(*context.tokenizer.special().bos);
    const auto text_ids = context.tokenizer.encode(wanted.text);
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  }
  std::string tokens, strings;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) tokens += ',';
    tokens += std::to_string(raw(ids[i]));
    if (!wanted.with_strings) continue;
    if (i > 0) strings += ',';
    strings += json_quoted(context.tokenizer.token_bytes(ids[i]));
  }
  return json_response(fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":{}}})",
                                   ids.size(), context.engine.capacity().max_context, tokens,
                                   wanted.with_strings ? "[" + strings + "]" : "null"));
}

ApiResult<http::Response> post_detokenize(Context& context, const http::Request& request) {
  PIVOT_TRY(const api::Json body, api::parse_body(request.body));
  PIVOT_TRY(const api::DetokenizeRequest wanted, api::read_detokenize_request(body));
  PIVOT_TRY_VOID(check_model(context, wanted.model));
  std::vector<TokenId> ids;
  for (const std::int64_t id : wanted.ids) {
    if (id >= context.tokenizer.vocab_size()) {
      return api::bad_field("tokens", fmt::format("`tokens` holds {}; this model's ids are 0 to {}", id,
                                                  context.tokenizer.vocab_size() - 1));
    }
    ids.push_back(TokenId{static_cast<std::int32_t>(id)});
  }
  return json_response(fmt::format(R"({{"prompt":{}}})", json_quoted(context.tokenizer.decode(ids))));
}

ApiResult<http::Response> post_count_tokens(Context& context, const http::Request& request) {
  PIVOT_TRY(const api::Json body, api::parse_body(request.body));
  PIVOT_TRY(api::GenerationRequest wanted, api::read_count_tokens_request(body));
  PIVOT_TRY_VOID(check_model(context, wanted.model));
  PIVOT_TRY(const auto ids, chat_prompt_ids(context, client_of(context, request), *wanted.chat()));
  return json_response(fmt::format(R"({{"input_tokens":{}}})", ids.size()));
}

http::Response get_health(Context& context) {
  http::Response response;
  response.content_type = "text/plain; charset=utf-8";
  const std::uint64_t beat = context.engine.heartbeat();
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(context.health_mutex);
  if (beat != context.last_beat) {
    context.last_beat = beat;
    context.beat_time = now;
  } else if (now - context.beat_time > kHungEngine) {
    response.status = 503;
    response.body = "the engine does not move\n";
  }
  return response;
}

http::Response get_loads(const Context& context) {
  const EngineStats stats = context.engine.stats();
  return json_response(fmt::format(
      R"({{"running":{},"waiting":{},"max_running":{},"slots":{{"total":{},"used":{},"free":{}}},"accepting":{}}})",
      stats.running, stats.waiting, context.engine.capacity().max_sequences, stats.slots.total,
      stats.slots.used, stats.slots.free, context.engine.accepting() && !context.draining));
}

http::Response get_model_info(const Context& context) {
  const ModelConfig& config = context.engine.config();
  return json_response(fmt::format(
      R"({{"model_path":{},"served_model_names":[{}],"fingerprint":{},"max_model_len":{},"vocab_size":{},"num_layers":{},"is_generation":true}})",
      json_quoted(context.options.model_root),
      json_quoted(fmt::format("{}", fmt::join(context.options.model_names, ","))),
      json_quoted(context.options.fingerprint), context.engine.capacity().max_context, config.vocab_size,
      config.num_hidden_layers));
}

http::Response post_flush_cache(Context& context) {
  context.engine.clear_prefix_cache();
  http::Response response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = "Cache flushed.\n";
  return response;
}

}  // namespace pivot::server
