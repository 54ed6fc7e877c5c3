// What goes wrong with a request, as an HTTP client is told: a status and the error object of its API.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "base/error.h"

namespace pivot::api {

struct ApiError {
  int status = 400;
  std::string message;  // one sentence
  std::string type = "invalid_request_error";
  std::string code;   // empty: null
  std::string param;  // the offending field's path, such as "messages[2].content"; empty: null
  std::optional<int> retry_after_seconds;
};

template <class T = void>
using ApiResult = tl::expected<T, ApiError>;

// 400 about one field of the body.
tl::unexpected<ApiError> bad_field(std::string param, std::string message);
// A failure of a lower layer, by the table of base/error.h.
ApiError from_error(const Error& error);
ApiError not_found(std::string message, std::string code);
ApiError unavailable(std::string message, int retry_after_seconds);

// {"error": {"message", "type", "param", "code"}}. Shorter than 4 KiB: a longer message is cut.
std::string openai_error(const ApiError& error);
// {"type": "error", "error": {"type", "message"}, "request_id"}. Shorter than 4 KiB.
std::string anthropic_error(const ApiError& error, std::string_view request_id);

// A piece of a client's text that may stand in a message: valid UTF-8, at most `max_bytes`, without control
// characters.
std::string quotable(std::string_view text, std::size_t max_bytes = 64);

}  // namespace pivot::api
