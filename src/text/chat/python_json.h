// JSON with the semantics of Python's json.loads and json.dumps(ensure_ascii=False), which the reference
// encoder uses to write tool schemas and arguments into the prompt. A byte that differs is a different
// prompt, and the general-purpose JSON libraries lose what matters here: integers of any length, 1.0 and
// 1e20 as Python spells them, NaN, key order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pivot::python_json {

struct Member;

struct Value {
  enum class Kind : std::uint8_t { kNull, kFalse, kTrue, kInteger, kFloat, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  std::string text;          // kString: UTF-8; numbers: as json.dumps writes them
  std::vector<Value> items;  // kArray
  // kObject: each key once, at its first place, with its last value.
  std::vector<Member> members;

  bool is(Kind k) const { return kind == k; }
  // The member of an object; nullptr where there is none or this is no object.
  const Value* find(std::string_view key) const;
  // False for what Python calls false: null, false, 0, 0.0, "", [], {}.
  bool truthy() const;
  // "an object", "a string", ...: for error sentences.
  std::string_view kind_name() const;
};

struct Member {
  std::string key;
  Value value;
};

// Reads one JSON text. As json.loads: NaN, Infinity and -Infinity are numbers, a duplicate key keeps its
// last value, raw control characters in strings are errors. Unlike it, lone surrogate escapes become
// U+FFFD (Python keeps them and fails later, when the prompt is turned into UTF-8). Errors:
// kInvalidArgument with the byte offset; also for text that is not UTF-8, integers of more than 4300
// digits (Python's limit) and more than kMaxDepth nested lists and objects.
inline constexpr int kMaxDepth = 900;
Result<Value> parse(std::string_view json);

// One line, separators ", " and ": ".
std::string dumps(const Value& value);
void append(std::string& out, const Value& value);

// The characters of a JSON string without its quotes. Works on pieces of a text cut anywhere: only ASCII
// is escaped.
void append_escaped(std::string& out, std::string_view utf8);
std::string quoted(std::string_view utf8);

}  // namespace pivot::python_json
