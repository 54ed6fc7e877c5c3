#include "recall/fake_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace pivot::recall {

FakeServer::FakeServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener_, 8) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("the fake server cannot listen");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

FakeServer::~FakeServer() {
  stopping_ = true;
  thread_.join();
  ::close(listener_);
}

std::string FakeServer::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

void FakeServer::run() {
  while (!stopping_) {
    pollfd waiting{listener_, POLLIN, 0};
    if (::poll(&waiting, 1, 20) <= 0) continue;
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    serve(connection);
    ::close(connection);
  }
}

void FakeServer::serve(int connection) {
  std::string request;
  char buffer[65536];
  const auto more = [&] {
    const ssize_t n = ::recv(connection, buffer, sizeof(buffer), 0);
    if (n > 0) request.append(buffer, static_cast<std::size_t>(n));
    return n > 0;
  };
  std::size_t end = std::string::npos;
  while ((end = request.find("\r\n\r\n")) == std::string::npos)
    if (!more()) return;
  const std::string head = request.substr(0, end + 2);
  if (head.find("Expect: 100-continue") != std::string::npos)
    ::send(connection, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
  std::size_t length = 0;
  if (const std::size_t at = head.find("Content-Length: "); at != std::string::npos)
    length = std::stoul(head.substr(at + 16));
  while (request.size() < end + 4 + length)
    if (!more()) return;
  const Send send = [connection](const std::string& bytes) {
    return ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  };
  handler_(head, request.substr(end + 4), send, stopping_);
}

std::string whole_response(int status, const std::string& type, const std::string& body) {
  return fmt::format(
      "HTTP/1.1 {} Answer\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
      type, body.size(), body);
}

std::string stream_head() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
}

std::string text_event(const std::string& text) {
  return "data: " + nlohmann::json{{"choices", {{{"index", 0}, {"text", text}}}}}.dump() + "\n\n";
}

}  // namespace pivot::recall
