// HTTP messages as plain values: what the parser hands in and the handlers hand back. No sockets.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pivot::http {

// Header fields in their order; names compare without case.
class Headers {
 public:
  void add(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }
  // The first field of that name; empty where there is none.
  std::string_view get(std::string_view name) const;
  bool has(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct Request {
  std::string method;
  std::string path;   // percent-encoded as it came, without the query
  std::string query;  // after '?', not decoded
  Headers headers;
  std::string body;
  std::string id;    // x-request-id: the client's where it is acceptable, else generated
  std::string peer;  // "127.0.0.1:51234", "unix"
  bool http_1_0 = false;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;  // beside content-type, content-length, date, connection and x-request-id
  std::string body;
  bool close = false;  // end the connection after this response
};

std::string_view reason_phrase(int status);
bool equal_ignoring_case(std::string_view a, std::string_view b);

// A client's x-request-id is taken where it has 1 to 128 visible ASCII characters without quotes and
// backslash; so it can stand in logs and headers as it is.
bool is_acceptable_request_id(std::string_view id);
// "req_" and 24 random hexadecimal digits.
std::string make_request_id();

// The head of a response, up to and including the empty line. `chunked` instead of a length for streams of
// HTTP/1.1; a stream to HTTP/1.0 has neither and ends with the connection.
enum class Framing { kLength, kChunked, kUntilClose };
std::string response_head(const Response& response, std::string_view request_id, Framing framing,
                          bool keep_alive);
// One chunk of a chunked body around `piece`, and the end of such a body.
std::string chunk(std::string_view piece);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace pivot::http
