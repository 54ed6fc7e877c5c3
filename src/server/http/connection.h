// One client connection: reads requests, hands them to the handler one after the other, writes what comes
// back. Private to the HTTP layer: includes Asio and Beast.
//
// Everything but Exchange's own members runs on the connection's strand. One read is always outstanding, also
// while a request is being answered: that is how a client that went away is noticed at once. A client that
// closes its sending side counts as gone.
#pragma once

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "server/http/server.h"
#include "server/http/transport.h"

namespace pivot::http {

class StreamExchange;

// What the connections of one server share.
struct ConnectionContext {
  Limits limits;
  HeadCheck check_head;
  ErrorBody error_body;
  Handler handle;
  Decorate decorate;
  Observe observe;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::unique_ptr<Transport> transport, std::string peer,
             std::shared_ptr<const ConnectionContext> context, std::function<void(Connection*)> closed);
  ~Connection();

  void start();
  // Of the server's shutdown: on any thread.
  void finish_soon();           // closes when idle, else after the response
  void close_now(Gone reason);  // closes at once

 private:
  friend class StreamExchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Phase { kHandshake, kIdle, kHeader, kBody, kHandling, kClosing, kClosed };

  void read();
  void on_read(boost::system::error_code error, std::size_t count);
  void parse();
  // Checks on the head; false where the request ended here.
  bool head_is_acceptable();
  void take_request();
  void refuse(int status, std::string_view message);
  void refuse(Response response);
  void next_request();
  void fill_request_head();

  void set_deadline(std::chrono::milliseconds from_now);
  void watch_deadline();
  void on_deadline();

  // For the exchange: sends these bytes, then calls StreamExchange::written.
  void write(std::string bytes, std::shared_ptr<StreamExchange> exchange);
  void response_complete(bool keep_alive);
  void linger();  // lets the client read the last response before the connection goes
  void close(Gone reason);

  std::unique_ptr<Transport> transport_;
  std::string peer_;
  std::shared_ptr<const ConnectionContext> context_;
  std::function<void(Connection*)> closed_;
  Phase phase_ = Phase::kHandshake;
  bool reading_ = false;
  bool finish_soon_ = false;
  std::array<char, 16384> input_{};
  std::string inbox_;   // read, not parsed yet
  std::string outbox_;  // being written
  std::optional<Parser> parser_;
  Request request_;
  std::size_t discarded_ = 0;  // while lingering
  std::shared_ptr<StreamExchange> exchange_;
  boost::asio::steady_timer timer_;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::time_point::max();
  bool timer_armed_ = false;
};

}  // namespace pivot::http
