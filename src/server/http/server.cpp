#include "server/http/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "server/http/connection.h"

namespace pivot::http {
namespace {

using asio::ip::tcp;
using local = asio::local::stream_protocol;
constexpr std::chrono::milliseconds kCloseWait{5000};
constexpr std::chrono::milliseconds kAcceptPause{100};  // after "too many open files"

tl::unexpected<Error> cannot_listen(const std::string& where, boost::system::error_code error) {
  const ErrorCode code = error == asio::error::access_denied    ? ErrorCode::kPermission
                         : error == asio::error::address_in_use ? ErrorCode::kUnavailable
                                                                : ErrorCode::kInvalidArgument;
  return fail(code, "cannot listen on {}: {}", where, error.message());
}

}  // namespace

struct Server::State {
  ServerOptions options;
  std::shared_ptr<const ConnectionContext> context;
  asio::io_context io;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;
  std::optional<asio::ssl::context> tls;
  std::optional<tcp::acceptor> tcp_acceptor;
  std::optional<local::acceptor> unix_acceptor;
  std::vector<std::string> addresses;
  int port = 0;
  std::atomic<bool> accepting{true};
  std::atomic<bool> closed{false};

  std::mutex mutex;
  std::condition_variable none_left;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;

  Result<> load_tls();
  Result<> listen_tcp();
  Result<> listen_unix();
  template <class Acceptor>
  void accept(Acceptor& acceptor);
  void adopt(Socket socket, std::string peer, bool with_tls);
  template <class Fn>
  void for_connections(Fn&& fn);
};

Result<> Server::State::load_tls() {
  if (options.tls_certificate.empty() && options.tls_key.empty()) return {};
  if (options.tls_certificate.empty() || options.tls_key.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "TLS wants a certificate and its key; found only the {}. Give both files",
                options.tls_key.empty() ? "certificate" : "key");
  }
  tls.emplace(asio::ssl::context::tls_server);
  boost::system::error_code error;
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                       asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1,
                   error);
  tls->use_certificate_chain_file(options.tls_certificate, error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                "the TLS certificate {} does not load: {}; a PEM chain is wanted", options.tls_certificate,
                error.message());
  }
  tls->use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                "the TLS key {} does not load: {}; the certificate's PEM key without a pass phrase is wanted",
                options.tls_key, error.message());
  }
  return {};
}

Result<> Server::State::listen_tcp() {
  if (options.host.empty()) return {};
  boost::system::error_code error;
  const std::string where = fmt::format("{}:{}", options.host, options.port);
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) return cannot_listen(where, error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp_acceptor.emplace(asio::make_strand(io));
  tcp_acceptor->open(endpoint.protocol(), error);
  if (!error) tcp_acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) tcp_acceptor->bind(endpoint, error);
  if (!error) tcp_acceptor->listen(1024, error);
  if (error) return cannot_listen(where, error);
  const tcp::endpoint bound = tcp_acceptor->local_endpoint(error);
  port = bound.port();
  const std::string host = bound.address().is_v6() ? fmt::format("[{}]", bound.address().to_string())
                                                   : bound.address().to_string();
  addresses.push_back(fmt::format("{}://{}:{}", tls ? "https" : "http", host, port));
  return {};
}

// A socket file that nobody serves any more is replaced; anything else at that path is left alone.
Result<> Server::State::listen_unix() {
  if (options.unix_socket.empty()) return {};
  const std::string where = "unix:" + options.unix_socket;
  constexpr std::size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
  if (options.unix_socket.size() > kMaxPath) {
    return fail(ErrorCode::kInvalidArgument,
                "the socket path {} has {} bytes; a Unix socket's has at most {}", options.unix_socket,
                options.unix_socket.size(), kMaxPath);
  }
  boost::system::error_code error;
  const local::endpoint endpoint(options.unix_socket);
  struct stat info {};
  if (stat(options.unix_socket.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
    local::socket probe(io);
    probe.connect(endpoint, error);
    if (!error) return cannot_listen(where, asio::error::address_in_use);
    ::unlink(options.unix_socket.c_str());
    error.clear();
  }
  unix_acceptor.emplace(asio::make_strand(io));
  unix_acceptor->open(endpoint.protocol(), error);
  if (!error) unix_acceptor->bind(endpoint, error);
  if (!error) unix_acceptor->listen(1024, error);
  if (error) return cannot_listen(where, error);
  addresses.push_back(where);
  return {};
}

template <class Acceptor>
void Server::State::accept(Acceptor& acceptor) {
  using Protocol = typename Acceptor::protocol_type;
  acceptor.async_accept(asio::make_strand(io), [this, &acceptor](boost::system::error_code error,
                                                                 typename Protocol::socket socket) {
    if (!accepting || error == asio::error::operation_aborted) return;
    if (error) {
      // Out of descriptors, most likely: waiting lets others finish instead of spinning.
      spdlog::warn("cannot accept a connection: {}; trying again in {} ms", error.message(),
                   kAcceptPause.count());
      auto timer = std::make_shared<asio::steady_timer>(acceptor.get_executor(), kAcceptPause);
      timer->async_wait([this, &acceptor, timer](boost::system::error_code) {
        if (accepting) accept(acceptor);
      });
      return;
    }
    std::string peer = "unix";
    if constexpr (std::is_same_v<Protocol, tcp>) {
      boost::system::error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      const auto endpoint = socket.remote_endpoint(ignored);
      peer = fmt::format("{}:{}", endpoint.address().to_string(ignored), endpoint.port());
    }
    adopt(Socket(std::move(socket)), std::move(peer), std::is_same_v<Protocol, tcp> && tls.has_value());
    accept(acceptor);
  });
}

void Server::State::adopt(Socket socket, std::string peer, bool with_tls) {
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex);
    if (std::ssize(connections) >= options.limits.connections || closed) {
      if (options.on_connection_refused) options.on_connection_refused();
      return;  // closes the socket
    }
    auto transport = with_tls ? tls_transport(std::move(socket), *tls) : plain_transport(std::move(socket));
    connection = std::make_shared<Connection>(std::move(transport), std::move(peer), context,
                                              [this](Connection* gone) {
                                                const std::lock_guard closed_lock(mutex);
                                                connections.erase(gone);
                                                if (connections.empty()) none_left.notify_all();
                                              });
    connections.emplace(connection.get(), connection);
  }
  connection->start();
}

template <class Fn>
void Server::State::for_connections(Fn&& fn) {
  std::vector<std::shared_ptr<Connection>> alive;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [pointer, weak] : connections) {
      if (auto connection = weak.lock()) alive.push_back(std::move(connection));
    }
  }
  for (const auto& connection : alive) fn(*connection);
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() { close(); }

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  auto context = std::make_shared<ConnectionContext>();
  context->limits = state->options.limits;
  context->check_head = state->options.check_head;
  context->error_body = state->options.error_body;
  context->handle = state->options.handle;
  context->decorate = state->options.decorate;
  context->observe = state->options.observe;
  state->context = std::move(context);
  PIVOT_TRY_VOID(state->load_tls());
  PIVOT_TRY_VOID(state->listen_tcp());
  PIVOT_TRY_VOID(state->listen_unix());
  if (state->addresses.empty()) {
    return fail(ErrorCode::kInvalidArgument, "nothing to listen on: give a host or a Unix socket");
  }
  std::unique_ptr<Server> server(new Server(std::move(state)));
  State& running = *server->state_;
  if (running.options.on_listening) running.options.on_listening(*server);
  running.work.emplace(running.io.get_executor());
  if (running.tcp_acceptor) running.accept(*running.tcp_acceptor);
  if (running.unix_acceptor) running.accept(*running.unix_acceptor);
  for (int i = 0; i < std::max(1, running.options.threads); ++i) {
    running.threads.emplace_back([&io = running.io] { io.run(); });
  }
  return server;
}

int Server::port() const { return state_->port; }
std::vector<std::string> Server::addresses() const { return state_->addresses; }

int Server::open_connections() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->connections.size());
}

void Server::stop_accepting() {
  if (!state_->accepting.exchange(false)) return;
  // On the acceptor's strand, where the completion that would accept the next one runs too.
  const auto close_acceptor = [](auto& acceptor) {
    if (!acceptor) return;
    asio::post(acceptor->get_executor(), [&acceptor] {
      boost::system::error_code ignored;
      acceptor->close(ignored);
    });
  };
  close_acceptor(state_->tcp_acceptor);
  close_acceptor(state_->unix_acceptor);
  if (!state_->options.unix_socket.empty()) ::unlink(state_->options.unix_socket.c_str());
  state_->for_connections([](Connection& connection) { connection.finish_soon(); });
}

void Server::close() {
  if (state_->closed.exchange(true)) return;
  stop_accepting();
  state_->for_connections([](Connection& connection) { connection.close_now(Gone::kShutdown); });
  {
    std::unique_lock lock(state_->mutex);
    state_->none_left.wait_for(lock, kCloseWait, [this] { return state_->connections.empty(); });
  }
  state_->work.reset();
  state_->io.stop();  // timers of post_after may be far in the future
  for (std::thread& thread : state_->threads) thread.join();
}

void Server::post(std::function<void()> work) { asio::post(state_->io, std::move(work)); }

void Server::post_after(std::chrono::milliseconds delay, std::function<void()> work) {
  auto timer = std::make_shared<asio::steady_timer>(state_->io, delay);
  timer->async_wait([timer, work = std::move(work), state = state_.get()](boost::system::error_code error) {
    if (!error && !state->closed) work();
  });
}

}  // namespace pivot::http
