// What systemd is told (sd_notify(3)): a datagram to the socket that NOTIFY_SOCKET names.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace pivot::server {

class ServiceManager {
 public:
  // From NOTIFY_SOCKET and WATCHDOG_USEC; without them every call does nothing.
  static ServiceManager from_environment();

  bool is_present() const { return !socket_.empty(); }
  // How often the watchdog wants to be fed; 0: not at all.
  std::chrono::microseconds watchdog_interval() const { return watchdog_; }

  void ready() const { send("READY=1"); }
  void stopping() const { send("STOPPING=1"); }
  void status(std::string_view text) const;
  void watchdog() const { send("WATCHDOG=1"); }
  // The start or stop takes this much longer from now on.
  void extend_timeout(std::chrono::microseconds by) const;

 private:
  void send(std::string_view message) const;
  std::string socket_;
  std::chrono::microseconds watchdog_{0};
};

}  // namespace pivot::server
