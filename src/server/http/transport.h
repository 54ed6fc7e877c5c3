// A byte stream, plain or TLS, over TCP or a Unix socket. Private to the HTTP layer: includes Asio.
//
// All members are called on the transport's strand; at most one read and one write at a time.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <cstddef>
#include <functional>
#include <memory>

namespace boost::asio::ssl {
class context;
}

namespace pivot::http {

namespace asio = boost::asio;
using Socket = asio::generic::stream_protocol::socket;
using IoHandler = std::function<void(boost::system::error_code, std::size_t)>;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual asio::any_io_executor executor() = 0;
  virtual void handshake(std::function<void(boost::system::error_code)> done) = 0;
  virtual void read_some(asio::mutable_buffer into, IoHandler done) = 0;
  virtual void write(asio::const_buffer from, IoHandler done) = 0;  // all of it
  virtual void shutdown_send() = 0;
  virtual void close() = 0;
};

std::unique_ptr<Transport> plain_transport(Socket socket);
std::unique_ptr<Transport> tls_transport(Socket socket, asio::ssl::context& context);

}  // namespace pivot::http
