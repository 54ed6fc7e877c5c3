// The HTTP/1.1 server: listeners on TCP and Unix sockets, TLS from files, connections with limits and
// time-outs on a few I/O threads. What a request means is the handler's business.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/http/exchange.h"

namespace pivot::http {

struct Limits {
  std::size_t header_bytes = 32 * 1024;
  std::size_t body_bytes = std::size_t{32} << 20;
  std::size_t unread_bytes = std::size_t{1} << 20;  // queued for one client that does not read
  int connections = 4096;
  std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte to its head's last
  std::chrono::milliseconds body_timeout{60'000};    // for the body
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of one connection
  std::chrono::milliseconds write_timeout{30'000};   // without progress in sending
};

class Server;

struct ServerOptions {
  std::string host;  // empty: no TCP listener
  int port = 8000;   // 0: any free one, see Server::port
  std::string unix_socket;
  std::string tls_certificate;  // PEM chain; with tls_key: TLS on the TCP listener
  std::string tls_key;
  int threads = 2;
  Limits limits;
  HeadCheck check_head;                         // optional
  ErrorBody error_body;                         // required
  Handler handle;                               // required
  Decorate decorate;                            // optional
  Observe observe;                              // optional
  std::function<void()> on_connection_refused;  // optional: too many are open
  // Optional; called once by start(), when the server listens and before it takes a connection: what handlers
  // need of the running server is told here, and no handler runs earlier. The server goes before what it is
  // told to.
  std::function<void(Server&)> on_listening;
};

class Server {
 public:
  // Listens and serves from then on. Errors: kUnavailable (address in use), kPermission, kInvalidArgument
  // (an address that is none, a certificate that does not load), each naming it.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();  // close()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;  // of the TCP listener
  // What it listens on, as URLs: "http://127.0.0.1:8000", "unix:/run/pivot/pivot.sock".
  std::vector<std::string> addresses() const;
  int open_connections() const;

  // No new connections; connections between two requests are closed, others after their response.
  void stop_accepting();
  // Ends every connection and the threads. Handlers that wait get Gone::kShutdown.
  void close();
  // Runs work on an I/O thread.
  void post(std::function<void()> work);
  void post_after(std::chrono::milliseconds delay, std::function<void()> work);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pivot::http
