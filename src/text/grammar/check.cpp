// The limits of what a request may ask for, and what can be said of a grammar without the library.
#include <algorithm>
#include <charconv>
#include <set>

#include "text/chat/python_json.h"
#include "text/grammar/grammar.h"
#include "text/grammar/pattern_size.h"
#include "text/grammar/schema_places.h"
#include "text/tokenizer/utf8.h"

namespace pivot {
namespace {

using python_json::Member;
using python_json::Value;

// What the schemas of one request have in all.
struct Totals {
  std::int32_t nodes = 0;
  std::int32_t enum_values = 0;
  std::int64_t cost = 0;
};

// What compiling takes beyond a millisecond or so, in milliseconds of one core with DeepSeek-V4's 129,280
// tokens (grammar_bench; within a factor of two). A state of an expression inside a string costs 1.
constexpr std::int64_t kCostOfBound = 6;  // of a number: becomes an expression about its digits
constexpr std::int64_t kCostOfCount = 7;  // of items
constexpr std::int64_t kCostOfFormat = 40;
// A byte of a property's name where others are allowed beside it: each becomes a state that nearly every
// token can follow, so that no other property is written under this name.
constexpr std::int64_t kCostOfOpenName = 25;

bool any_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

class SchemaCheck {
 public:
  // `tags`: the schema of a tool's parameters, each of which is written in a tag of its own.
  SchemaCheck(const GrammarLimits& limits, Totals& totals, bool strict, bool tags = false)
      : limits_(limits), totals_(totals), strict_(strict), tags_(tags) {}

  Result<> run(const Value& schema, std::string_view where) {
    path_ = where;
    if (!schema.is(Value::Kind::kObject) && !schema.is(Value::Kind::kTrue) && !schema.is(Value::Kind::kFalse))
      return fail(ErrorCode::kInvalidArgument, "{} is {}; a JSON Schema is an object or a boolean", path_,
                  schema.kind_name());
    return check_schema(schema, 1);
  }

 private:
  Result<> count(const Value& value, int depth) {
    if (++totals_.nodes > limits_.max_nodes)
      return fail(ErrorCode::kInvalidArgument,
                  "the schemas of the request have more than {} values; at most {} are allowed",
                  limits_.max_nodes, limits_.max_nodes);
    if (depth > limits_.max_depth)
      return fail(ErrorCode::kInvalidArgument,
                  "{} is nested more than {} levels deep; flatten it, or use $ref", path_, limits_.max_depth);
    for (const Value& item : value.items) PIVOT_TRY_VOID(count(item, depth + 1));
    for (const Member& member : value.members) PIVOT_TRY_VOID(count(member.value, depth + 1));
    return {};
  }

  Result<> check_schema(const Value& schema, int depth) {
    if (!schema.is(Value::Kind::kObject)) return count(schema, depth);
    if (++totals_.nodes > limits_.max_nodes || depth > limits_.max_depth) return count(schema, depth);
    for (const Member& member : schema.members) {
      const std::size_t length = path_.size();
      path_ += "/" + member.key;
      PIVOT_TRY_VOID(check_member(member.key, member.value, depth + 1));
      path_.resize(length);
    }
    return is_open(schema, depth) ? add_cost(kCostOfOpenName * name_bytes(schema)) : Result<>();
  }

  // Whether an object may have properties beside those that it names.
  bool is_open(const Value& schema, int depth) const {
    if (tags_ && depth == 1) return false;  // a tool's parameters stand in tags, any name in any of them
    for (const std::string_view key : {"additionalProperties", "unevaluatedProperties"})
      if (const Value* more = schema.find(key)) return !more->is(Value::Kind::kFalse);
    return !strict_;
  }

  static std::int64_t name_bytes(const Value& schema) {
    const Value* properties = schema.find("properties");
    std::int64_t bytes = 0;
    if (properties != nullptr)
      for (const Member& member : properties->members) bytes += std::ssize(member.key);
    return bytes;
  }

  Result<> check_member(std::string_view key, const Value& value, int depth) {
    // The library reads past these without a word.
    if (strict_ &&
        any_of(key, {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
                     "contains", "minContains", "maxContains", "uniqueItems"}) &&
        !value.is(Value::Kind::kFalse))
      return fail(ErrorCode::kUnsupported,
                  "{}: strict output cannot guarantee this keyword. Leave it out, or set strict to false",
                  path_);
    switch (schema_place(key, value)) {
      case SchemaPlace::kMap:
        for (const Member& member : value.members) {
          if (key == "patternProperties") PIVOT_TRY_VOID(check_pattern(member.key));
          const std::size_t length = path_.size();
          path_ += "/" + member.key;
          PIVOT_TRY_VOID(check_schema(member.value, depth + 1));
          path_.resize(length);
        }
        return {};
      case SchemaPlace::kList:
        for (const Value& item : value.items) PIVOT_TRY_VOID(check_schema(item, depth + 1));
        return {};
      case SchemaPlace::kOne:
        return check_schema(value, depth);
      case SchemaPlace::kNone:
        break;
    }
    if (key == "enum") {
      totals_.enum_values += static_cast<std::int32_t>(value.items.size());
      if (totals_.enum_values > limits_.max_enum_values)
        return fail(ErrorCode::kInvalidArgument,
                    "the request's enums have {} values up to {}; at most {} are allowed",
                    totals_.enum_values, path_, limits_.max_enum_values);
    }
    if (key == "pattern" && value.is(Value::Kind::kString)) PIVOT_TRY_VOID(check_pattern(value.text));
    if (any_of(key, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}))
      PIVOT_TRY_VOID(add_cost(kCostOfBound));
    if (any_of(key, {"minItems", "maxItems", "minProperties", "maxProperties"}))
      PIVOT_TRY_VOID(add_cost(kCostOfCount));
    if (key == "format") PIVOT_TRY_VOID(add_cost(kCostOfFormat));
    if (any_of(key, {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
                     "minContains", "maxContains"}))
      PIVOT_TRY_VOID(check_count(value));
    return count(value, depth);
  }

  Result<> check_pattern(std::string_view pattern) {
    const PatternSize size = measure_pattern(pattern, limits_);
    if (!size.problem.empty()) return fail(ErrorCode::kInvalidArgument, "{}: {}", path_, size.problem);
    return add_cost(size.states);
  }

  Result<> add_cost(std::int64_t cost) {
    totals_.cost += cost;
    if (totals_.cost <= limits_.max_cost) return {};
    return fail(
        ErrorCode::kInvalidArgument,
        "compiling the schemas of the request would cost {} up to {}; at most {} is allowed. What costs "
        "most: expressions with large repeats, formats, bounds and counts, and objects that name many "
        "properties and allow others",
        totals_.cost, path_, limits_.max_cost);
  }

  Result<> check_count(const Value& value) {
    std::int64_t count = 0;
    const char* end = value.text.data() + value.text.size();
    const std::from_chars_result read = std::from_chars(value.text.data(), end, count);
    const bool whole =
        value.is(Value::Kind::kInteger) && read.ec == std::errc() && read.ptr == end && value.text[0] != '-';
    if (!whole || count > limits_.max_count)
      return fail(ErrorCode::kInvalidArgument, "{} must be a whole number from 0 to {}", path_,
                  limits_.max_count);
    return {};
  }

  const GrammarLimits& limits_;
  Totals& totals_;
  bool strict_;
  bool tags_;
  std::string path_;  // of the value at hand, as a JSON pointer
};

Result<> check_bytes(std::size_t bytes, const GrammarLimits& limits) {
  if (bytes > limits.max_bytes)
    return fail(ErrorCode::kInvalidArgument,
                "what the answer must look like is described by {} bytes; at most {} are allowed", bytes,
                limits.max_bytes);
  return {};
}

Result<> check_text(std::string_view text, std::string_view where) {
  if (text.find('\0') != std::string_view::npos || !utf8::is_valid(text))
    return fail(ErrorCode::kInvalidArgument, "{} must be UTF-8 text without NUL", where);
  return {};
}

Result<> check_schema_text(std::string_view text, std::string_view where, const GrammarLimits& limits,
                           Totals& totals, bool strict) {
  PIVOT_TRY_VOID(check_bytes(text.size(), limits));
  Result<Value> schema = python_json::parse(text);
  if (!schema) return fail(std::move(schema).error().with(fmt::format("reading {}", where)));
  return SchemaCheck(limits, totals, strict).run(*schema, where);
}

struct Check {
  const GrammarLimits& limits;

  Result<> operator()(const JsonObjectGrammar&) const { return {}; }

  Result<> operator()(const JsonSchemaGrammar& grammar) const {
    Totals totals;
    return check_schema_text(grammar.schema, "the JSON Schema", limits, totals, grammar.strict);
  }

  Result<> operator()(const RegexGrammar& grammar) const {
    PIVOT_TRY_VOID(check_text(grammar.pattern, "the regular expression"));
    if (const PatternSize size = measure_pattern(grammar.pattern, limits); !size.problem.empty())
      return fail(ErrorCode::kInvalidArgument, "the regular expression: {}", size.problem);
    return {};
  }

  Result<> operator()(const EbnfGrammar& grammar) const {
    PIVOT_TRY_VOID(check_text(grammar.text, "the grammar"));
    if (grammar.text.size() > limits.max_ebnf_bytes)
      return fail(ErrorCode::kInvalidArgument, "the grammar has {} bytes; at most {} are allowed",
                  grammar.text.size(), limits.max_ebnf_bytes);
    if (const std::string problem = ebnf_problem(grammar.text, limits); !problem.empty())
      return fail(ErrorCode::kInvalidArgument, "the grammar: {}", problem);
    return {};
  }

  Result<> operator()(const ChoiceGrammar& grammar) const {
    if (grammar.choices.empty()) return fail(ErrorCode::kInvalidArgument, "the list of choices is empty");
    if (grammar.choices.size() > static_cast<std::size_t>(limits.max_enum_values))
      return fail(ErrorCode::kInvalidArgument, "there are {} choices; at most {} are allowed",
                  grammar.choices.size(), limits.max_enum_values);
    std::size_t bytes = 0;
    for (const std::string& choice : grammar.choices) {
      PIVOT_TRY_VOID(check_text(choice, "each choice"));
      if (choice.empty()) return fail(ErrorCode::kInvalidArgument, "a choice is empty");
      bytes += choice.size();
    }
    return check_bytes(bytes, limits);
  }

  Result<> operator()(const ToolCallGrammar& grammar) const {
    if (grammar.tools.empty()) return fail(ErrorCode::kInvalidArgument, "there is no tool to call");
    if (grammar.tools.size() > static_cast<std::size_t>(limits.max_tools))
      return fail(ErrorCode::kInvalidArgument, "there are {} tools; at most {} are allowed",
                  grammar.tools.size(), limits.max_tools);
    std::size_t bytes = 0;
    Totals totals;
    std::set<std::string_view> names;
    for (const GrammarTool& tool : grammar.tools) {
      if (!names.insert(tool.name).second)
        return fail(ErrorCode::kInvalidArgument, "two tools are called '{}'", tool.name);
      PIVOT_TRY_VOID(check_tool(tool, totals));
      bytes += tool.name.size() + tool.parameters.size();
    }
    return check_bytes(bytes, limits);
  }

  // Names stand between double quotes in the markup, which knows no escape (specification 7.5).
  static Result<> check_name(std::string_view name, std::string_view what) {
    if (name.empty() || name.size() > 256 || !utf8::is_valid(name) ||
        std::any_of(name.begin(), name.end(), [](char c) {
          return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '<' || c == '>';
        })) {
      return fail(
          ErrorCode::kInvalidArgument,
          "{} must have 1 to 256 bytes of UTF-8 without quotes, angle brackets and control characters", what);
    }
    return {};
  }

  Result<> check_tool(const GrammarTool& tool, Totals& totals) const {
    PIVOT_TRY_VOID(check_name(tool.name, "a tool's name"));
    if (tool.parameters.empty()) return {};
    const std::string where = fmt::format("the parameters of tool '{}'", tool.name);
    PIVOT_TRY_VOID(check_bytes(tool.parameters.size(), limits));
    Result<Value> schema = python_json::parse(tool.parameters);
    if (!schema) return fail(std::move(schema).error().with("reading " + where));
    PIVOT_TRY_VOID(SchemaCheck(limits, totals, tool.strict, /*tags=*/true).run(*schema, where));
    if (!schema->is(Value::Kind::kObject))
      return fail(ErrorCode::kInvalidArgument, "{} must be the schema of an object", where);
    if (const Value* properties = schema->find("properties"))
      for (const Member& member : properties->members)
        PIVOT_TRY_VOID(check_name(member.key, fmt::format("each parameter's name of tool '{}'", tool.name)));
    return {};
  }
};

}  // namespace

Result<> check_grammar(const AnswerGrammar& grammar, const GrammarLimits& limits) {
  return std::visit(Check{limits}, grammar);
}

}  // namespace pivot
