#include "server/api/body.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace pivot::api {
namespace {

constexpr std::size_t kMaxFields = 1000;  // looking one up takes time linear in their number

tl::unexpected<ApiError> malformed(std::string message) {
  ApiError error;
  error.message = "the body is not the JSON object that is wanted: " + std::move(message);
  error.code = "invalid_json";
  return tl::unexpected(std::move(error));
}

// The offset of the first byte that is not UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  while (at < text.size()) {
    const unsigned lead = byte(at);
    if (lead < 0x80) {
      ++at;
      continue;
    }
    const std::size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                               : lead >= 0xE0 && lead < 0xF0 ? 3
                               : lead >= 0xF0 && lead < 0xF5 ? 4
                                                             : 0;
    if (length == 0 || at + length > text.size()) return at;
    for (std::size_t i = 1; i < length; ++i) {
      if ((byte(at + i) & 0xC0) != 0x80) return at;
    }
    const unsigned second = byte(at + 1);
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0) ||
        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second >= 0x90)) {
      return at;
    }
    at += length;
  }
  return std::string_view::npos;
}

// -1 where the four characters at `at` are no hexadecimal number.
int hex4(std::string_view text, std::size_t at) {
  if (at + 4 > text.size()) return -1;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 4, value, 16);
  return error == std::errc{} && end == text.data() + at + 4 && text[at] != '-' ? value : -1;
}

// What python_json takes and JSON (RFC 8259) or this server does not; the grammar itself is its business.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  ApiResult<> scan() {
    std::size_t values = 0;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        PIVOT_TRY_VOID(scan_string());
        continue;
      }
      if (c == '{' || c == '[') {
        if (++depth > kMaxBodyDepth) {
          return malformed(
              fmt::format("more than {} nested lists and objects at byte {}", kMaxBodyDepth, at_));
        }
        ++values;
      } else if (c == '}' || c == ']') {
        --depth;
      } else if (c == ',') {
        ++values;
      } else if (c == 'N' || c == 'I') {
        return malformed(fmt::format("NaN or Infinity at byte {}; a number is finite", at_));
      } else if (c == '-' || (c >= '0' && c <= '9')) {
        PIVOT_TRY_VOID(scan_number());
        continue;
      }
      if (values > kMaxBodyValues) return malformed(fmt::format("more than {} values", kMaxBodyValues));
      ++at_;
    }
    return {};
  }

 private:
  ApiResult<> scan_number() {
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view("+-.eE0123456789").find(text_[at_]) != std::string_view::npos)
      ++at_;
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + at_, value);
    static_cast<void>(end);  // the grammar is the parser's business
    // Too small is zero and does no harm; too large would become infinity.
    if (error == std::errc::result_out_of_range && is_huge(text_.substr(begin, at_ - begin))) {
      return malformed(fmt::format("the number at byte {} is beyond the range of a double", begin));
    }
    if (at_ == begin) ++at_;
    return {};
  }

  static bool is_huge(std::string_view number) {
    const std::size_t e = number.find_first_of("eE");
    return e == std::string_view::npos || e + 1 >= number.size() || number[e + 1] != '-';
  }

  ApiResult<> scan_string() {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        ++at_;
        continue;
      }
      if (at_ + 1 >= text_.size() || text_[at_ + 1] != 'u') {
        at_ += 2;
        continue;
      }
      const int code = hex4(text_, at_ + 2);
      const std::size_t begin = at_;
      at_ += 6;
      if (code < 0xD800 || code > 0xDFFF) continue;
      const bool paired = code < 0xDC00 && text_.substr(std::min(at_, text_.size()), 2) == "\\u" &&
                          hex4(text_, at_ + 2) >= 0xDC00 && hex4(text_, at_ + 2) <= 0xDFFF;
      if (!paired) {
        return malformed(
            fmt::format("a lone surrogate escape at byte {}; characters beyond U+FFFF are two "
                        "escapes, a high and a low one",
                        begin));
      }
      at_ += 6;
    }
    ++at_;
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

ApiResult<> check_json(std::string_view text) {
  if (const std::size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    return malformed(fmt::format("byte {} is not UTF-8", at));
  }
  return Scanner(text).scan();
}

ApiResult<Json> parse_body(std::string_view text) {
  if (text.empty()) return malformed("it is empty");
  PIVOT_TRY_VOID(check_json(text));
  auto value = python_json::parse(text);
  if (!value) return malformed(quotable(value.error().message, 200));
  if (!value->is(JsonKind::kObject)) return malformed(fmt::format("found {}", value->kind_name()));
  if (value->members.size() > kMaxFields) {
    return malformed(
        fmt::format("{} fields; no request has more than {}", value->members.size(), kMaxFields));
  }
  return *std::move(value);
}

}  // namespace pivot::api
