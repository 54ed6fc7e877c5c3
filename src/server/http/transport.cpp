#include "server/http/transport.h"

#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>

namespace pivot::http {
namespace {

void close_socket(Socket& socket) {
  boost::system::error_code ignored;
  socket.close(ignored);
}

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}
  asio::any_io_executor executor() override { return socket_.get_executor(); }
  void handshake(std::function<void(boost::system::error_code)> done) override { done({}); }
  void read_some(asio::mutable_buffer into, IoHandler done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void write(asio::const_buffer from, IoHandler done) override {
    asio::async_write(socket_, from, std::move(done));
  }
  void shutdown_send() override {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void close() override { close_socket(socket_); }

 private:
  Socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(Socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}
  asio::any_io_executor executor() override { return stream_.get_executor(); }
  void handshake(std::function<void(boost::system::error_code)> done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }
  void read_some(asio::mutable_buffer into, IoHandler done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void write(asio::const_buffer from, IoHandler done) override {
    asio::async_write(stream_, from, std::move(done));
  }
  // close_notify is not waited for: the HTTP framing says where a response ends.
  void shutdown_send() override {
    boost::system::error_code ignored;
    stream_.next_layer().shutdown(Socket::shutdown_send, ignored);
  }
  void close() override { close_socket(stream_.next_layer()); }

 private:
  asio::ssl::stream<Socket> stream_;
};

}  // namespace

std::unique_ptr<Transport> plain_transport(Socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> tls_transport(Socket socket, asio::ssl::context& context) {
  return std::make_unique<TlsTransport>(std::move(socket), context);
}

}  // namespace pivot::http
