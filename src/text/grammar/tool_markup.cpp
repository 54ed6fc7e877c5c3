#include "text/grammar/tool_markup.h"

#include <fmt/format.h>

#include <string_view>

#include "base/check.h"
#include "text/chat/dsml.h"
#include "text/chat/python_json.h"
#include "text/grammar/schema_places.h"

namespace pivot {
namespace {

using python_json::Member;
using python_json::quoted;
using python_json::Value;

constexpr std::string_view kAnyArguments = R"({"type": "object", "additionalProperties": true})";

Value boolean(bool value) {
  Value result;
  result.kind = value ? Value::Kind::kTrue : Value::Kind::kFalse;
  return result;
}

// The library reads every schema of a structural tag strictly; what JSON Schema leaves open is spelt out for
// it.
void open_objects(Value& schema) {
  if (!schema.is(Value::Kind::kObject)) return;
  for (Member& member : schema.members) {
    switch (schema_place(member.key, member.value)) {
      case SchemaPlace::kOne:
        open_objects(member.value);
        break;
      case SchemaPlace::kList:
        for (Value& item : member.value.items) open_objects(item);
        break;
      case SchemaPlace::kMap:
        for (Member& one : member.value.members) open_objects(one.value);
        break;
      case SchemaPlace::kNone:
        break;
    }
  }
  const Value* type = schema.find("type");
  const bool is_object = schema.find("properties") != nullptr ||
                         (type != nullptr && type->is(Value::Kind::kString) && type->text == "object");
  if (is_object && schema.find("additionalProperties") == nullptr &&
      schema.find("unevaluatedProperties") == nullptr)
    schema.members.push_back({"additionalProperties", boolean(true)});
}

std::string schema_of(const GrammarTool& tool) {
  if (tool.parameters.empty()) return std::string(kAnyArguments);
  Result<Value> schema = python_json::parse(tool.parameters);
  PIVOT_CHECK(schema.has_value(), "the parameters of '{}' were not checked", tool.name);
  if (schema->members.empty()) return std::string(kAnyArguments);
  // Parameters stand in a row of tags, so what holds them is an object whether the schema says so or not.
  if (schema->find("type") == nullptr && schema->find("properties") != nullptr) {
    Value type;
    type.kind = Value::Kind::kString;
    type.text = "object";
    schema->members.insert(schema->members.begin(), {"type", std::move(type)});
  }
  if (!tool.strict) open_objects(*schema);
  return python_json::dumps(*schema);
}

std::string invoke_tag(const GrammarTool& tool, int max_whitespace) {
  return fmt::format(
      R"({{"type": "tag", "begin": {}, "content": {{"type": "json_schema", "style": "deepseek_xml", )"
      R"("max_whitespace_cnt": {}, "json_schema": {}}}, "end": {}}})",
      quoted(fmt::format("{} name=\"{}\">\n", dsml::kInvokeOpen, tool.name)), max_whitespace, schema_of(tool),
      quoted(fmt::format("{}>\n", dsml::kInvokeClose)));
}

}  // namespace

std::string tool_structural_tag(const ToolCallGrammar& grammar, int max_whitespace) {
  std::string tags;
  for (const GrammarTool& tool : grammar.tools) {
    if (!tags.empty()) tags += ", ";
    tags += invoke_tag(tool, max_whitespace);
  }
  // Each call ends with its own newline, so calls need no separator.
  const std::string calls =
      fmt::format(R"({{"type": "tags_with_separator", "tags": [{}], "separator": "", "at_least_one": true, )"
                  R"("stop_after_first": {}}})",
                  tags, !grammar.parallel);
  const std::string opener = fmt::format("{}>", dsml::kBlockOpen);
  const std::string block = fmt::format(R"({{"type": "tag", "begin": {}, "content": {}, "end": {}}})",
                                        quoted(opener + "\n"), calls, quoted(dsml::kBlockClose));
  std::string format;
  if (grammar.use == ToolCallGrammar::Use::kRequired) {
    format = fmt::format(
        R"({{"type": "sequence", "elements": [{{"type": "const_string", "value": "\n\n"}}, {}]}})", block);
  } else {
    format = fmt::format(
        R"({{"type": "triggered_tags", "triggers": [{}], "tags": [{}], "stop_after_first": true}})",
        quoted(opener), block);
  }
  return fmt::format(R"({{"type": "structural_tag", "format": {}}})", format);
}

std::string choice_structural_tag(const ChoiceGrammar& grammar) {
  std::string elements;
  for (const std::string& choice : grammar.choices) {
    if (!elements.empty()) elements += ", ";
    elements += fmt::format(R"({{"type": "const_string", "value": {}}})", quoted(choice));
  }
  return fmt::format(R"({{"type": "structural_tag", "format": {{"type": "or", "elements": [{}]}}}})",
                     elements);
}

}  // namespace pivot
