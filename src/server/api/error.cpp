#include "server/api/error.h"

#include <nlohmann/json.hpp>

namespace pivot::api {
namespace {

constexpr std::size_t kMaxMessageBytes = 1500;
constexpr std::size_t kMaxNameBytes = 200;

std::string_view cut(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::ordered_json string_or_null(std::string_view text) {
  if (text.empty()) return nullptr;
  return std::string(cut(text, kMaxNameBytes));
}

std::string_view anthropic_type(const ApiError& error) {
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return error.status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

tl::unexpected<ApiError> bad_field(std::string param, std::string message) {
  ApiError error;
  error.param = std::move(param);
  error.message = std::move(message);
  return tl::unexpected(std::move(error));
}

ApiError from_error(const Error& error) {
  const ErrorMapping& map = mapping(error.code);
  ApiError out;
  out.status = map.http_status;
  out.message = error.to_string();
  out.type = map.openai_type;
  out.code = map.openai_code;
  if (out.status == 503) out.retry_after_seconds = 1;
  return out;
}

ApiError not_found(std::string message, std::string code) {
  return {404, std::move(message), "not_found_error", std::move(code), {}, {}};
}

ApiError unavailable(std::string message, int retry_after_seconds) {
  return {503, std::move(message), "service_unavailable", "unavailable", {}, retry_after_seconds};
}

std::string openai_error(const ApiError& error) {
  nlohmann::ordered_json body;
  body["message"] = std::string(cut(error.message, kMaxMessageBytes));
  body["type"] = error.type;
  body["param"] = string_or_null(error.param);
  body["code"] = string_or_null(error.code);
  return dump({{"error", std::move(body)}});
}

std::string anthropic_error(const ApiError& error, std::string_view request_id) {
  std::string message;
  if (!error.param.empty()) message = std::string(cut(error.param, kMaxNameBytes)) + ": ";
  message += cut(error.message, kMaxMessageBytes);
  nlohmann::ordered_json json;
  json["type"] = "error";
  json["error"] = {{"type", anthropic_type(error)}, {"message", std::move(message)}};
  json["request_id"] = std::string(request_id);
  return dump(json);
}

std::string quotable(std::string_view text, std::size_t max_bytes) {
  std::string out(cut(text, max_bytes));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (out.size() < text.size()) out += "...";
  return out;
}

}  // namespace pivot::api
