// The Exchange of a connection. Private to the HTTP layer.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "server/http/connection.h"

namespace pivot::http {

class StreamExchange final : public Exchange, public std::enable_shared_from_this<StreamExchange> {
 public:
  StreamExchange(std::shared_ptr<Connection> connection, Request request, bool keep_alive,
                 std::shared_ptr<const ConnectionContext> context);

  Request& request() override { return request_; }
  void respond(Response response) override;
  bool begin_stream(Response head) override;
  bool send(std::string_view piece) override;
  void end_stream() override;
  void abort_stream() override;
  void on_gone(std::function<void(Gone)> callback) override;
  void post(std::function<void()> work) override;

  // Of the connection, on its strand.
  void written();          // the bytes given to Connection::write are sent
  void gone(Gone reason);  // the client will read nothing more
  void keep_alive(bool value);

 private:
  bool enqueue(std::string bytes, bool last);
  void observe(int status) const;
  void flush();  // on the strand

  std::shared_ptr<Connection> connection_;
  Request request_;
  const bool http_1_0_;
  std::shared_ptr<const ConnectionContext> context_;
  const std::chrono::steady_clock::time_point arrived_ = std::chrono::steady_clock::now();

  std::mutex mutex_;
  int status_ = 0;
  bool keep_alive_;
  bool chunked_ = false;
  bool started_ = false;
  bool ended_ = false;     // nothing more will be queued
  bool abort_ = false;     // close in the middle, once what is queued is sent
  bool complete_ = false;  // everything is sent
  bool flushing_ = false;  // a flush is on its way or a write in flight
  std::size_t in_flight_ = 0;
  std::string queue_;
  bool is_gone_ = false;
  Gone gone_reason_ = Gone::kDisconnected;
  std::function<void(Gone)> on_gone_;
};

}  // namespace pivot::http
