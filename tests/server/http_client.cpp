#include "http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace pivot::test {

std::vector<SseEvent> sse_events(std::string_view body) {
  std::vector<SseEvent> events;
  SseEvent event;
  while (!body.empty()) {
    const std::size_t end = body.find('\n');
    const std::string_view line = body.substr(0, end);
    body.remove_prefix(end == std::string_view::npos ? body.size() : end + 1);
    if (line.starts_with("event: ")) event.name = line.substr(7);
    if (line.starts_with("data: ")) event.data = line.substr(6);
    if (line.empty() && !event.data.empty()) events.push_back(std::exchange(event, {}));
  }
  return events;
}

HttpClient HttpClient::tcp(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0)
      << std::strerror(errno);
  return HttpClient(descriptor);
}

HttpClient HttpClient::unix_socket(const std::string& path) {
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0)
      << std::strerror(errno);
  return HttpClient(descriptor);
}

HttpClient::HttpClient(HttpClient&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), buffer_(std::move(other.buffer_)) {}
HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void HttpClient::send_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the server has closed; what it said can still be read
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

bool HttpClient::fill(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  pollfd poll_for{descriptor_, POLLIN, 0};
  if (left.count() <= 0 || ::poll(&poll_for, 1, static_cast<int>(left.count())) <= 0) return false;
  char bytes[65536];
  const ssize_t count = ::recv(descriptor_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

std::string HttpClient::read_until(std::string_view marker, std::chrono::milliseconds wait) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  while (buffer_.find(marker) == std::string::npos && fill(deadline)) {
  }
  const std::size_t at = buffer_.find(marker);
  const std::size_t end = at == std::string::npos ? buffer_.size() : at + marker.size();
  std::string out = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return out;
}

std::optional<HttpReply> HttpClient::read_reply(std::chrono::milliseconds wait) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  const auto need = [&](std::size_t bytes) {
    while (buffer_.size() < bytes) {
      if (!fill(deadline)) return false;
    }
    return true;
  };
  const auto line = [&]() -> std::optional<std::string> {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!fill(deadline)) return std::nullopt;
    }
    std::string text = buffer_.substr(0, end);
    buffer_.erase(0, end + 2);
    return text;
  };
  HttpReply reply;
  const auto first = line();
  if (!first || first->size() < 12) return std::nullopt;
  reply.status = std::stoi(first->substr(9, 3));
  for (auto field = line();; field = line()) {
    if (!field) return std::nullopt;
    if (field->empty()) break;
    const std::size_t colon = field->find(": ");
    std::string name = field->substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    reply.headers[name] = colon == std::string::npos ? "" : field->substr(colon + 2);
  }
  if (reply.status == 100) return read_reply(wait);
  if (reply.headers.contains("content-length")) {
    const std::size_t length = std::stoul(reply.headers["content-length"]);
    if (!need(length)) return std::nullopt;
    reply.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
  } else if (reply.headers.contains("transfer-encoding")) {
    for (;;) {
      const auto size = line();
      if (!size) return std::nullopt;
      const std::size_t length = std::stoul(*size, nullptr, 16);
      if (!need(length + 2)) return std::nullopt;
      reply.body += buffer_.substr(0, length);
      buffer_.erase(0, length + 2);
      if (length == 0) break;
    }
  } else if (reply.status != 204) {
    while (fill(deadline)) {
    }
    reply.body = std::exchange(buffer_, {});
  }
  return reply;
}

bool HttpClient::is_closed_within(std::chrono::milliseconds wait) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  while (std::chrono::steady_clock::now() < deadline) {
    pollfd poll_for{descriptor_, POLLIN, 0};
    if (::poll(&poll_for, 1, 50) <= 0) continue;
    char bytes[4096];
    if (::recv(descriptor_, bytes, sizeof bytes, 0) <= 0) return true;
  }
  return false;
}

std::string post_text(std::string_view path, std::string_view body, std::string_view extra_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}\r\n{}",
      path, body.size(), extra_headers, body);
}

HttpReply HttpClient::get(std::string_view path) {
  send_raw(fmt::format("GET {} HTTP/1.1\r\nhost: test\r\n\r\n", path));
  return read_reply().value_or(HttpReply{});
}

HttpReply HttpClient::post(std::string_view path, std::string_view body, std::string_view extra_headers) {
  send_raw(post_text(path, body, extra_headers));
  return read_reply().value_or(HttpReply{});
}

}  // namespace pivot::test
