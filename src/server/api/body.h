// Strict JSON of a request body. Stricter than text/chat/python_json, which reads it: what other parsers
// would take differently is refused here, before anything is allocated for it.
#pragma once

#include <string_view>

#include "server/api/error.h"
#include "text/chat/python_json.h"

namespace pivot::api {

using Json = python_json::Value;
using JsonKind = Json::Kind;

inline constexpr int kMaxBodyDepth = 128;
inline constexpr std::size_t kMaxBodyValues = 4'000'000;

// The object that a body holds. 400 with the byte offset for: text that is not UTF-8 or not JSON, NaN and
// Infinity, numbers beyond the range of a double, lone surrogate escapes, more than kMaxBodyDepth nested
// lists and objects, more than kMaxBodyValues values, anything but an object.
ApiResult<Json> parse_body(std::string_view text);

// For any JSON text, without the last condition.
ApiResult<> check_json(std::string_view text);

}  // namespace pivot::api
