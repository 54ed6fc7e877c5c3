// A blocking HTTP/1.1 client on plain sockets for tests: requests may be as malformed as a test wants.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/patience.h"

namespace pivot::test {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

struct SseEvent {
  std::string name;
  std::string data;
};
std::vector<SseEvent> sse_events(std::string_view body);

class HttpClient {
 public:
  static HttpClient tcp(int port);
  static HttpClient unix_socket(const std::string& path);
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;
  ~HttpClient();

  void send_raw(std::string_view bytes);
  // Reads one response; nullopt when the connection ends before it is complete or `wait` is over.
  std::optional<HttpReply> read_reply(std::chrono::milliseconds wait = kPatience);
  // Reads what comes until `marker` has been seen, or the end.
  std::string read_until(std::string_view marker, std::chrono::milliseconds wait = kPatience);
  // True when the other side closes within `wait`.
  bool is_closed_within(std::chrono::milliseconds wait);
  void close();

  HttpReply get(std::string_view path);
  HttpReply post(std::string_view path, std::string_view body, std::string_view extra_headers = {});

 private:
  explicit HttpClient(int descriptor) : descriptor_(descriptor) {}
  bool fill(std::chrono::steady_clock::time_point deadline);
  int descriptor_;
  std::string buffer_;
};

std::string post_text(std::string_view path, std::string_view body, std::string_view extra_headers = {});

}  // namespace pivot::test
