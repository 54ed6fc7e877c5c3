#include "server/http/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <random>

namespace pivot::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// RFC 9110 5.6.7: "Sun, 06 Nov 1994 08:49:37 GMT", whatever the locale says.
std::string http_date() {
  static constexpr std::array<std::string_view, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                               "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[static_cast<std::size_t>(parts.tm_wday)],
                     parts.tm_mday, kMonths[static_cast<std::size_t>(parts.tm_mon)], parts.tm_year + 1900,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view Headers::get(std::string_view name) const {
  for (const auto& [key, value] : fields_) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

bool Headers::has(std::string_view name) const {
  return std::any_of(fields_.begin(), fields_.end(),
                     [&](const auto& field) { return equal_ignoring_case(field.first, name); });
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    case 507:
      return "Insufficient Storage";
    default:
      return status < 400 ? "OK" : status < 500 ? "Client Error" : "Server Error";
  }
}

bool is_acceptable_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '\\';
  });
}

std::string make_request_id() {
  static thread_local std::mt19937_64 engine{std::random_device{}()};
  return fmt::format("req_{:016x}{:08x}", engine(), static_cast<std::uint32_t>(engine()));
}

std::string response_head(const Response& response, std::string_view request_id, Framing framing,
                          bool keep_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\ndate: {}\r\nserver: pivot\r\n", response.status,
                                 reason_phrase(response.status), http_date());
  if (!response.content_type.empty()) head += fmt::format("content-type: {}\r\n", response.content_type);
  if (framing == Framing::kLength && response.status != 204)
    head += fmt::format("content-length: {}\r\n", response.body.size());
  if (framing == Framing::kChunked) head += "transfer-encoding: chunked\r\n";
  head += keep_alive ? "connection: keep-alive\r\n" : "connection: close\r\n";
  head += fmt::format("x-request-id: {}\r\n", request_id);
  for (const auto& [name, value] : response.headers.fields()) head += fmt::format("{}: {}\r\n", name, value);
  return head + "\r\n";
}

std::string chunk(std::string_view piece) {
  if (piece.empty()) return {};  // an empty chunk would end the body
  return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

}  // namespace pivot::http
