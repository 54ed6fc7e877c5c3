#include "server/service_manager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace pivot::server {

ServiceManager ServiceManager::from_environment() {
  ServiceManager manager;
  const char* socket = std::getenv("NOTIFY_SOCKET");
  if (socket != nullptr && (socket[0] == '/' || socket[0] == '@')) manager.socket_ = socket;
  const char* interval = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  if (interval != nullptr && (pid == nullptr || std::to_string(getpid()) == pid)) {
    std::int64_t microseconds = 0;
    std::from_chars(interval, interval + std::strlen(interval), microseconds);
    if (microseconds > 0) manager.watchdog_ = std::chrono::microseconds(microseconds);
  }
  return manager;
}

void ServiceManager::status(std::string_view text) const { send(fmt::format("STATUS={}", text)); }

void ServiceManager::extend_timeout(std::chrono::microseconds by) const {
  send(fmt::format("EXTEND_TIMEOUT_USEC={}", by.count()));
}

// A manager that does not listen is no reason to fail: nothing is reported.
void ServiceManager::send(std::string_view message) const {
  sockaddr_un address{};
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';  // abstract
  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  ::sendto(descriptor, message.data(), message.size(), MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&address), length);
  ::close(descriptor);
}

}  // namespace pivot::server
