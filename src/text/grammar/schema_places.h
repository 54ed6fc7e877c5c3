// Where a JSON Schema holds further schemas, by keyword.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "text/chat/python_json.h"

namespace pivot {

enum class SchemaPlace : std::uint8_t { kNone, kOne, kList, kMap };

// What the value of a schema's member holds: no schema, one, a list of them, or one for each of its keys.
inline SchemaPlace schema_place(std::string_view keyword, const python_json::Value& value) {
  using Kind = python_json::Value::Kind;
  static constexpr std::array<std::string_view, 5> kMaps = {"properties", "patternProperties", "$defs",
                                                            "definitions", "dependentSchemas"};
  static constexpr std::array<std::string_view, 5> kLists = {"allOf", "anyOf", "oneOf", "prefixItems",
                                                             "items"};
  static constexpr std::array<std::string_view, 12> kSingle = {"items",
                                                               "additionalItems",
                                                               "additionalProperties",
                                                               "unevaluatedProperties",
                                                               "unevaluatedItems",
                                                               "propertyNames",
                                                               "contains",
                                                               "contentSchema",
                                                               "not",
                                                               "if",
                                                               "then",
                                                               "else"};
  const auto in = [keyword](const auto& list) {
    return std::find(list.begin(), list.end(), keyword) != list.end();
  };
  if (value.is(Kind::kObject) && in(kMaps)) return SchemaPlace::kMap;
  if (value.is(Kind::kArray) && in(kLists)) return SchemaPlace::kList;
  if (in(kSingle)) return SchemaPlace::kOne;
  return SchemaPlace::kNone;
}

}  // namespace pivot
