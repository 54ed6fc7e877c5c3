#include "text/chat/python_json.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace pivot::python_json {
namespace {

constexpr std::size_t kMaxIntegerDigits = 4300;  // sys.int_info.default_max_str_digits

// repr(float): the shortest digits that read back as the same number; positional for exponents -4 to 15.
std::string spell_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char buffer[32];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  static_cast<void>(error);  // 32 bytes hold any double
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int point = exponent + 1;  // digits before the decimal point
  const int count = static_cast<int>(digits.size());
  if (point > 16 || point <= -4) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    const int magnitude = std::abs(exponent);
    out += exponent < 0 ? "e-" : "e+";
    if (magnitude < 10) out += '0';
    return out + std::to_string(magnitude);
  }
  if (point <= 0) return out + "0." + std::string(static_cast<std::size_t>(-point), '0') + digits;
  if (count <= point) return out + digits + std::string(static_cast<std::size_t>(point - count), '0') + ".0";
  return out + digits.substr(0, static_cast<std::size_t>(point)) + "." +
         digits.substr(static_cast<std::size_t>(point));
}

// The double of a JSON number; out of range becomes infinity or zero, as strtod gives.
double read_float(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  static_cast<void>(end);
  if (error != std::errc::result_out_of_range) return value;
  // from_chars does not say which way: the power of ten of the first digit that is not zero does.
  const bool negative = text.front() == '-';
  std::int64_t power = -1;  // before the first digit
  bool seen = false;
  bool fraction = false;
  std::size_t at = negative ? 1 : 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      fraction = true;
    } else if (!fraction) {
      seen = seen || text[at] != '0';
      if (seen) ++power;
    } else if (!seen) {
      --power;
      seen = text[at] != '0';
      if (seen) ++power;
    }
  }
  std::int64_t exponent = 0;
  if (at < text.size()) {
    std::string_view digits = text.substr(at + 1);
    if (digits.front() == '+') digits.remove_prefix(1);
    if (std::from_chars(digits.data(), digits.data() + digits.size(), exponent).ec ==
        std::errc::result_out_of_range) {
      exponent = digits.front() == '-' ? std::numeric_limits<std::int64_t>::min() / 2
                                       : std::numeric_limits<std::int64_t>::max() / 2;
    }
  }
  value = power + exponent > 0 ? std::numeric_limits<double>::infinity() : 0.0;
  return negative ? -value : value;
}

void append_utf8(std::string& out, std::uint32_t code_point) {
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | code_point >> 6);
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | code_point >> 12);
    out += static_cast<char>(0x80 | (code_point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code_point >> 18);
    out += static_cast<char>(0x80 | (code_point >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code_point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Value> parse_document() {
    Value value;
    PIVOT_TRY_VOID(parse_value(value, 0));
    skip_space();
    if (at_ < text_.size()) return wrong("the end of the text");
    return value;
  }

 private:
  tl::unexpected<Error> wrong(std::string_view wanted) const {
    if (at_ >= text_.size()) {
      return fail(ErrorCode::kInvalidArgument, "JSON: wanted {} at byte {}, found the end of the text",
                  wanted, at_);
    }
    return fail(ErrorCode::kInvalidArgument, "JSON: wanted {} at byte {}, found byte 0x{:02x}", wanted, at_,
                static_cast<unsigned char>(text_[at_]));
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }

  bool accept(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Result<> parse_value(Value& value, int depth) {
    skip_space();
    if (at_ >= text_.size()) return wrong("a value");
    switch (text_[at_]) {
      case '{':
        return parse_object(value, depth);
      case '[':
        return parse_array(value, depth);
      case '"':
        value.kind = Value::Kind::kString;
        return parse_string(value.text);
      default:
        break;
    }
    if (accept("null")) return {};
    if (accept("true")) return set(value, Value::Kind::kTrue, "");
    if (accept("false")) return set(value, Value::Kind::kFalse, "");
    if (accept("NaN")) return set(value, Value::Kind::kFloat, "NaN");
    if (accept("Infinity")) return set(value, Value::Kind::kFloat, "Infinity");
    if (accept("-Infinity")) return set(value, Value::Kind::kFloat, "-Infinity");
    return parse_number(value);
  }

  static Result<> set(Value& value, Value::Kind kind, std::string_view text) {
    value.kind = kind;
    value.text = text;
    return {};
  }

  Result<> parse_number(Value& value) {
    std::size_t end = at_;
    const auto digit_at = [&](std::size_t i) { return i < text_.size() && is_digit(text_[i]); };
    if (end < text_.size() && text_[end] == '-') ++end;
    if (!digit_at(end)) return wrong("a value");
    const std::size_t first_digit = end;
    if (text_[end] == '0') {
      ++end;
    } else {
      while (digit_at(end)) ++end;
    }
    const std::size_t integer_end = end;
    if (end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      ++end;
      while (digit_at(end)) ++end;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t e = end + 1;
      if (e < text_.size() && (text_[e] == '+' || text_[e] == '-')) ++e;
      if (digit_at(e)) {
        end = e;
        while (digit_at(end)) ++end;
      }
    }
    const std::string_view number = text_.substr(at_, end - at_);
    if (end == integer_end) {
      if (integer_end - first_digit > kMaxIntegerDigits) {
        return fail(ErrorCode::kInvalidArgument, "JSON: the integer at byte {} has more than {} digits", at_,
                    kMaxIntegerDigits);
      }
      value.kind = Value::Kind::kInteger;
      value.text = number == "-0" ? std::string_view("0") : number;
    } else {
      value.kind = Value::Kind::kFloat;
      value.text = spell_float(read_float(number));
    }
    at_ = end;
    return {};
  }

  Result<std::uint32_t> parse_hex4() {
    std::uint32_t code = 0;
    if (at_ + 4 > text_.size()) return wrong("four hexadecimal digits");
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
    if (error != std::errc{} || end != text_.data() + at_ + 4) return wrong("four hexadecimal digits");
    at_ += 4;
    return code;
  }

  Result<> parse_escape(std::string& out) {
    if (at_ >= text_.size()) return wrong("an escape");
    const char c = text_[at_];
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kCharacters = "\"\\/\b\f\n\r\t";
    if (const std::size_t i = kNames.find(c); i != std::string_view::npos) {
      out += kCharacters[i];
      ++at_;
      return {};
    }
    if (c != 'u') return wrong("an escape");
    ++at_;
    PIVOT_TRY(std::uint32_t code, parse_hex4());
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      const std::size_t second = at_;
      at_ += 2;
      PIVOT_TRY(const std::uint32_t low, parse_hex4());
      if (low >= 0xDC00 && low < 0xE000) {
        append_utf8(out, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
        return {};
      }
      at_ = second;  // not a pair: the second escape stands for itself
    }
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
    append_utf8(out, code);
    return {};
  }

  Result<> parse_string(std::string& out) {
    ++at_;
    for (;;) {
      const std::size_t start = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out += text_.substr(start, at_ - start);
      if (at_ >= text_.size()) return wrong("the end of the string");
      if (text_[at_] == '"') {
        ++at_;
        return {};
      }
      if (text_[at_] != '\\') return wrong("an escape instead of a raw control character");
      ++at_;
      PIVOT_TRY_VOID(parse_escape(out));
    }
  }

  Result<> enter(int depth) {
    if (depth >= kMaxDepth) {
      return fail(ErrorCode::kInvalidArgument, "JSON: more than {} nested lists and objects at byte {}",
                  kMaxDepth, at_);
    }
    ++at_;
    skip_space();
    return {};
  }

  Result<> parse_array(Value& value, int depth) {
    value.kind = Value::Kind::kArray;
    PIVOT_TRY_VOID(enter(depth));
    if (accept("]")) return {};
    for (;;) {
      PIVOT_TRY_VOID(parse_value(value.items.emplace_back(), depth + 1));
      skip_space();
      if (accept("]")) return {};
      if (!accept(",")) return wrong("',' or ']'");
    }
  }

  Result<> parse_object(Value& value, int depth) {
    value.kind = Value::Kind::kObject;
    PIVOT_TRY_VOID(enter(depth));
    if (accept("}")) return {};
    std::unordered_map<std::string, std::size_t> places;
    for (;;) {
      skip_space();
      if (at_ >= text_.size() || text_[at_] != '"') return wrong("a key");
      std::string key;
      PIVOT_TRY_VOID(parse_string(key));
      skip_space();
      if (!accept(":")) return wrong("':'");
      Value member;
      PIVOT_TRY_VOID(parse_value(member, depth + 1));
      const auto [place, is_new] = places.try_emplace(key, value.members.size());
      if (is_new) {
        value.members.push_back({std::move(key), std::move(member)});
      } else {
        value.members[place->second].value = std::move(member);
      }
      skip_space();
      if (accept("}")) return {};
      if (!accept(",")) return wrong("',' or '}'");
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

const Value* Value::find(std::string_view key) const {
  const auto it =
      std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.key == key; });
  return it == members.end() ? nullptr : &it->value;
}

bool Value::truthy() const {
  switch (kind) {
    case Kind::kNull:
    case Kind::kFalse:
      return false;
    case Kind::kTrue:
      return true;
    case Kind::kInteger:
      return text != "0";
    case Kind::kFloat:
      return text != "0.0" && text != "-0.0";
    case Kind::kString:
      return !text.empty();
    case Kind::kArray:
      return !items.empty();
    case Kind::kObject:
      return !members.empty();
  }
  return false;
}

std::string_view Value::kind_name() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kFalse:
    case Kind::kTrue:
      return "a boolean";
    case Kind::kInteger:
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "a list";
    case Kind::kObject:
      return "an object";
  }
  return "";
}

Result<Value> parse(std::string_view json) {
  if (!simdjson::validate_utf8(json.data(), json.size())) {
    return fail(ErrorCode::kInvalidArgument, "JSON: wanted UTF-8 text, found bytes that are not");
  }
  return Parser(json).parse_document();
}

void append_escaped(std::string& out, std::string_view utf8) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : utf8) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
}

std::string quoted(std::string_view utf8) {
  std::string out = "\"";
  append_escaped(out, utf8);
  return out + "\"";
}

void append(std::string& out, const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      out += "null";
      break;
    case Value::Kind::kFalse:
      out += "false";
      break;
    case Value::Kind::kTrue:
      out += "true";
      break;
    case Value::Kind::kInteger:
    case Value::Kind::kFloat:
      out += value.text;
      break;
    case Value::Kind::kString:
      out += '"';
      append_escaped(out, value.text);
      out += '"';
      break;
    case Value::Kind::kArray:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ", ";
        append(out, value.items[i]);
      }
      out += ']';
      break;
    case Value::Kind::kObject:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ", ";
        out += '"';
        append_escaped(out, value.members[i].key);
        out += "\": ";
        append(out, value.members[i].value);
      }
      out += '}';
      break;
  }
}

std::string dumps(const Value& value) {
  std::string out;
  append(out, value);
  return out;
}

}  // namespace pivot::python_json
