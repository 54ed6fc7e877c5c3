#include "server/api/common_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace pivot::api {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 4096;
constexpr std::size_t kMaxBiases = 4096;
constexpr std::size_t kMaxGrammarBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxModelBytes = 512;

ApiResult<> read_logit_bias(Fields& fields, SamplingFields& out) {
  const Json* value = fields.get("logit_bias");
  if (value == nullptr) return {};
  const std::string path = fields.path("logit_bias");
  if (!value->is(JsonKind::kObject)) {
    return bad_field(
        path, fmt::format("`{}` is an object of token ids and numbers; found {}", path, value->kind_name()));
  }
  if (value->members.size() > kMaxBiases) {
    return bad_field(path, fmt::format("`{}` has {} tokens; at most {} are taken", path,
                                       value->members.size(), kMaxBiases));
  }
  for (const auto& [key, bias] : value->members) {
    std::int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size() || id < 0) {
      return bad_field(path,
                       fmt::format("the keys of `{}` are token ids; found \"{}\"", path, quotable(key)));
    }
    PIVOT_TRY(const double number, as_number(bias, fmt::format("{}.{}", path, id), -100, 100));
    out.logit_bias.emplace_back(id, number);
  }
  return {};
}

// Fields of other engines, accepted where they mean "none".
ApiResult<> refuse_unless(Fields& fields, std::string_view name, double neutral) {
  PIVOT_TRY(const auto value, fields.number(name, -1e9, 1e9));
  if (!value || *value == neutral) return {};
  ApiError error;
  error.param = fields.path(name);
  error.message =
      fmt::format("`{}` is not supported by this engine; leave it out or give {}", error.param, neutral);
  error.code = "unsupported";
  return tl::unexpected(std::move(error));
}

ApiResult<> set_grammar(Grammar& out, Grammar::Kind kind, std::string text, std::string param) {
  if (out.kind != Grammar::Kind::kNone) {
    return bad_field(param, fmt::format("`{}` and `{}` both say what the answer looks like; give one of them",
                                        out.param, param));
  }
  if (text.size() > kMaxGrammarBytes) {
    return bad_field(
        param, fmt::format("`{}` has {} bytes; at most {} are taken", param, text.size(), kMaxGrammarBytes));
  }
  out.kind = kind;
  out.text = std::move(text);
  out.param = std::move(param);
  return {};
}

// A schema is an object or a boolean, given as JSON or as its text.
ApiResult<std::string> schema_text(const Json& value, const std::string& path) {
  if (value.is(JsonKind::kString)) {
    const auto checked = check_json(value.text);
    if (!checked) return bad_field(path, fmt::format("`{}` is not JSON: {}", path, checked.error().message));
    const auto parsed = python_json::parse(value.text);
    if (!parsed || !parsed->is(JsonKind::kObject)) {
      return bad_field(path, fmt::format("`{}` is a JSON Schema: an object, or the text of one", path));
    }
    return python_json::dumps(*parsed);
  }
  if (!value.is(JsonKind::kObject)) {
    return bad_field(path,
                     fmt::format("`{}` is a JSON Schema: an object; found {}", path, value.kind_name()));
  }
  return python_json::dumps(value);
}

ApiResult<> read_guided(Fields& fields, std::string_view json, std::string_view regex, std::string_view ebnf,
                        std::string_view choice, Grammar& out) {
  if (const Json* value = fields.get(json)) {
    PIVOT_TRY(std::string text, schema_text(*value, fields.path(json)));
    PIVOT_TRY_VOID(set_grammar(out, Grammar::Kind::kJsonSchema, std::move(text), fields.path(json)));
  }
  PIVOT_TRY(auto pattern, fields.string(regex));
  if (pattern)
    PIVOT_TRY_VOID(set_grammar(out, Grammar::Kind::kRegex, *std::move(pattern), fields.path(regex)));
  PIVOT_TRY(auto rules, fields.string(ebnf));
  if (rules) PIVOT_TRY_VOID(set_grammar(out, Grammar::Kind::kEbnf, *std::move(rules), fields.path(ebnf)));
  PIVOT_TRY(const Json* list, fields.list(choice));
  if (list != nullptr) {
    const std::string path = fields.path(choice);
    if (list->items.empty() || list->items.size() > 1000) {
      return bad_field(path, fmt::format("`{}` lists 1 to 1000 strings; found {}", path, list->items.size()));
    }
    PIVOT_TRY_VOID(set_grammar(out, Grammar::Kind::kChoice, {}, path));
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      PIVOT_TRY(std::string text, as_string(list->items[i], fmt::format("{}[{}]", path, i)));
      out.choices.push_back(std::move(text));
    }
  }
  return {};
}

}  // namespace

std::string_view path_of(Api api) {
  switch (api) {
    case Api::kChat:
      return "/v1/chat/completions";
    case Api::kCompletions:
      return "/v1/completions";
    case Api::kResponses:
      return "/v1/responses";
    case Api::kMessages:
      return "/v1/messages";
  }
  return "";
}

ApiResult<std::string> read_model(Fields& fields) {
  PIVOT_TRY(auto model, fields.string("model"));
  if (!model) return std::string();
  if (model->size() > kMaxModelBytes) {
    return bad_field("model", fmt::format("`model` has {} bytes; a model's name has at most {}",
                                          model->size(), kMaxModelBytes));
  }
  return *std::move(model);
}

ApiResult<std::vector<std::string>> read_stops(Fields& fields, std::string_view name) {
  std::vector<std::string> stops;
  const Json* value = fields.get(name);
  if (value == nullptr) return stops;
  const std::string path = fields.path(name);
  const auto add = [&](const Json& item, const std::string& at) -> ApiResult<> {
    PIVOT_TRY(std::string text, as_string(item, at));
    if (text.empty())
      return bad_field(at, fmt::format("`{}` is empty; a stop string has at least one character", at));
    if (text.size() > kMaxStopBytes) {
      return bad_field(
          at, fmt::format("`{}` has {} bytes; a stop string has at most {}", at, text.size(), kMaxStopBytes));
    }
    stops.push_back(std::move(text));
    return {};
  };
  if (value->is(JsonKind::kString)) {
    PIVOT_TRY_VOID(add(*value, path));
    return stops;
  }
  if (!value->is(JsonKind::kArray)) {
    return bad_field(
        path, fmt::format("`{}` is a string or a list of strings; found {}", path, value->kind_name()));
  }
  if (value->items.size() > kMaxStops) {
    return bad_field(path, fmt::format("`{}` lists {} strings; at most {} are taken", path,
                                       value->items.size(), kMaxStops));
  }
  for (std::size_t i = 0; i < value->items.size(); ++i) {
    PIVOT_TRY_VOID(add(value->items[i], fmt::format("{}[{}]", path, i)));
  }
  return stops;
}

ApiResult<> read_sampling(Fields& fields, SamplingFields& out) {
  PIVOT_TRY(out.temperature, fields.number("temperature", 0, 2));
  PIVOT_TRY(out.top_p, fields.number("top_p", 0, 1));
  if (out.top_p && *out.top_p == 0)
    out.top_p = std::numeric_limits<float>::min();  // the likeliest token only
  PIVOT_TRY(out.top_k, fields.integer("top_k", -1, std::numeric_limits<std::int32_t>::max()));
  if (out.top_k && *out.top_k == -1) out.top_k = 0;  // vLLM's spelling of "all"
  PIVOT_TRY(out.min_p, fields.number("min_p", 0, 1));
  PIVOT_TRY(const auto seed, fields.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                            std::numeric_limits<std::int64_t>::max()));
  if (seed) out.seed = static_cast<std::uint64_t>(*seed);
  PIVOT_TRY_VOID(read_logit_bias(fields, out));
  PIVOT_TRY(const auto ignore_eos, fields.boolean("ignore_eos"));
  out.ignore_eos = ignore_eos.value_or(false);
  PIVOT_TRY(const auto skip, fields.boolean("skip_special_tokens"));
  out.skip_special_tokens = skip.value_or(true);
  PIVOT_TRY(const auto min_tokens, fields.integer("min_tokens", 0, kMaxTokens));
  out.min_tokens = min_tokens.value_or(0);
  PIVOT_TRY(const Json* ids, fields.list("stop_token_ids"));
  if (ids != nullptr) {
    const std::string path = fields.path("stop_token_ids");
    if (ids->items.size() > 256) {
      return bad_field(path,
                       fmt::format("`{}` lists {} ids; at most 256 are taken", path, ids->items.size()));
    }
    for (std::size_t i = 0; i < ids->items.size(); ++i) {
      PIVOT_TRY(const std::int64_t id, as_integer(ids->items[i], fmt::format("{}[{}]", path, i), 0,
                                                  std::numeric_limits<std::int32_t>::max()));
      out.stop_token_ids.push_back(id);
    }
  }
  PIVOT_TRY(const auto priority, fields.integer("priority", -1000, 1000));
  out.priority = static_cast<std::int32_t>(priority.value_or(0));
  PIVOT_TRY(out.frequency_penalty, fields.number("frequency_penalty", -2, 2));
  PIVOT_TRY(out.presence_penalty, fields.number("presence_penalty", -2, 2));
  PIVOT_TRY(out.repetition_penalty, fields.number("repetition_penalty", 0.01, 10));
  PIVOT_TRY_VOID(refuse_unless(fields, "length_penalty", 1));
  PIVOT_TRY_VOID(fields.refuse("use_beam_search", "answers are sampled"));
  fields.ignore({"user", "metadata", "store", "service_tier", "spaces_between_special_tokens", "request_id",
                 "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "verbosity",
                 "return_token_ids"});
  return {};
}

ApiResult<> read_stream_options(Fields& fields, GenerationRequest& out) {
  PIVOT_TRY(const auto stream, fields.boolean("stream"));
  out.stream = stream.value_or(false);
  PIVOT_TRY(auto options, fields.object("stream_options"));
  if (!options) return {};
  PIVOT_TRY(const auto usage, options->boolean("include_usage"));
  out.include_usage = usage.value_or(false);
  PIVOT_TRY(const auto continuous, options->boolean("continuous_usage_stats"));
  out.continuous_usage = continuous.value_or(false);
  return {};
}

ApiResult<> read_format(const Json& value, const std::string& path, bool schema_inside, Grammar& out) {
  PIVOT_TRY(Fields format, Fields::of(value, path));
  PIVOT_TRY(const std::string type, format.required_string("type"));
  if (type == "text") return {};
  if (type == "json_object") return set_grammar(out, Grammar::Kind::kJsonObject, {}, path);
  if (type != "json_schema") {
    return bad_field(format.path("type"),
                     fmt::format("`{}` is text, json_object or json_schema; found \"{}\"",
                                 format.path("type"), quotable(type)));
  }
  std::optional<Fields> holder;
  if (schema_inside) {
    PIVOT_TRY(holder, format.object("json_schema"));
    if (!holder)
      return bad_field(format.path("json_schema"),
                       fmt::format("`{}` is required with type json_schema", format.path("json_schema")));
  } else {
    holder = format;
  }
  const Json* schema = holder->get("schema");
  const std::string schema_path = holder->path("schema");
  if (schema == nullptr) {
    return bad_field(schema_path,
                     fmt::format("`{}` is required: the JSON Schema of the answer", schema_path));
  }
  PIVOT_TRY(std::string text, schema_text(*schema, schema_path));
  return set_grammar(out, Grammar::Kind::kJsonSchema, std::move(text), path);
}

ApiResult<> read_grammar(Fields& fields, Grammar& out) {
  if (const Json* format = fields.get("response_format")) {
    PIVOT_TRY_VOID(read_format(*format, fields.path("response_format"), /*schema_inside=*/true, out));
  }
  PIVOT_TRY_VOID(read_guided(fields, "guided_json", "guided_regex", "guided_grammar", "guided_choice", out));
  PIVOT_TRY_VOID(read_guided(fields, "json_schema", "regex", "ebnf", "choice", out));  // sglang's spelling
  PIVOT_TRY(auto structured, fields.object("structured_outputs"));
  if (structured) PIVOT_TRY_VOID(read_guided(*structured, "json", "regex", "grammar", "choice", out));
  fields.ignore({"guided_decoding_backend", "guided_whitespace_pattern"});
  return {};
}

ApiResult<> apply_effort(const std::string& effort, const std::string& path, ChatPrompt& out) {
  if (effort == "none") {
    out.thinking = false;
    return {};
  }
  if (!out.thinking) out.thinking = true;
  if (effort == "minimal" || effort == "low") {
    out.effort = ReasoningEffort::kLow;
  } else if (effort == "medium") {
    out.effort = ReasoningEffort::kDefault;
  } else if (effort == "high") {
    out.effort = ReasoningEffort::kHigh;
  } else if (effort == "xhigh" || effort == "max") {
    out.effort = ReasoningEffort::kMax;
  } else {
    return bad_field(path, fmt::format("`{}` is none, minimal, low, medium, high, xhigh or max; found \"{}\"",
                                       path, quotable(effort)));
  }
  return {};
}

ApiResult<> read_thinking(Fields& fields, ChatPrompt& out) {
  PIVOT_TRY(auto kwargs, fields.object("chat_template_kwargs"));
  std::optional<std::string> effort;
  std::string effort_path = "reasoning_effort";
  if (kwargs) {
    for (const std::string_view name : {"thinking", "enable_thinking"}) {
      PIVOT_TRY(const auto on, kwargs->boolean(name));
      if (on) out.thinking = *on;
    }
    PIVOT_TRY(effort, kwargs->string("reasoning_effort"));
    effort_path = kwargs->path("reasoning_effort");
  }
  if (const Json* thinking = fields.get("thinking")) {
    if (thinking->is(JsonKind::kTrue) || thinking->is(JsonKind::kFalse)) {
      out.thinking = thinking->is(JsonKind::kTrue);
    } else {
      PIVOT_TRY(Fields object, Fields::of(*thinking, fields.path("thinking")));
      PIVOT_TRY(const std::string type, object.required_string("type"));
      if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "auto") {
        return bad_field(object.path("type"),
                         fmt::format("`{}` is enabled, adaptive or disabled; found \"{}\"",
                                     object.path("type"), quotable(type)));
      }
      PIVOT_TRY(const auto budget, object.integer("budget_tokens", 1, kMaxTokens));
      static_cast<void>(budget);  // the model has no such control; the answer's limit is max_tokens
      out.thinking = type != "disabled";
    }
  }
  PIVOT_TRY(const auto enable, fields.boolean("enable_thinking"));
  if (enable) out.thinking = *enable;
  PIVOT_TRY(auto top_effort, fields.string("reasoning_effort"));
  if (top_effort) {
    effort = std::move(top_effort);
    effort_path = fields.path("reasoning_effort");
  }
  if (effort) PIVOT_TRY_VOID(apply_effort(*effort, effort_path, out));
  return {};
}

}  // namespace pivot::api
