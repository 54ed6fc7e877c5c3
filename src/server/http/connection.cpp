#include "server/http/connection.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "server/http/stream_exchange.h"

namespace pivot::http {
namespace {

namespace beast = boost::beast;
using Error = beast::http::error;

// Bytes of a pipelined next request that are read while one is being answered.
constexpr std::size_t kMaxPipelinedBytes = 64 * 1024;
// Bytes of a refused body that are read and thrown away, so that the client gets to read the refusal.
constexpr std::size_t kMaxDiscardedBytes = std::size_t{4} << 20;
constexpr std::chrono::milliseconds kLinger{2000};

struct Refusal {
  int status;
  std::string_view message;
};

Refusal refusal_of(boost::system::error_code error) {
  if (error == Error::header_limit) return {431, "the request's head is larger than this server takes"};
  if (error == Error::body_limit) return {413, "the request's body is larger than this server takes"};
  if (error == Error::bad_version) return {505, "this server speaks HTTP/1.1 and HTTP/1.0"};
  if (error == Error::partial_message) return {400, "the request ends in the middle"};
  return {400, "the request is not HTTP/1.1: a field or the framing is malformed"};
}

}  // namespace

Connection::Connection(std::unique_ptr<Transport> transport, std::string peer,
                       std::shared_ptr<const ConnectionContext> context,
                       std::function<void(Connection*)> closed)
    : transport_(std::move(transport)),
      peer_(std::move(peer)),
      context_(std::move(context)),
      closed_(std::move(closed)),
      timer_(transport_->executor()) {}

Connection::~Connection() = default;

void Connection::start() {
  asio::post(transport_->executor(), [self = shared_from_this()] {
    self->set_deadline(self->context_->limits.header_timeout);
    self->transport_->handshake([self](boost::system::error_code error) {
      if (error) return self->close(Gone::kDisconnected);
      self->next_request();
    });
  });
}

void Connection::finish_soon() {
  asio::post(transport_->executor(), [self = shared_from_this()] {
    self->finish_soon_ = true;
    if (self->exchange_) self->exchange_->keep_alive(false);
    if (self->phase_ == Phase::kIdle) self->close(Gone::kShutdown);
  });
}

void Connection::close_now(Gone reason) {
  asio::post(transport_->executor(), [self = shared_from_this(), reason] { self->close(reason); });
}

void Connection::next_request() {
  exchange_.reset();
  request_ = {};
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(context_->limits.header_bytes));
  parser_->body_limit(context_->limits.body_bytes);
  parser_->eager(false);
  phase_ = Phase::kIdle;
  set_deadline(context_->limits.idle_timeout);
  if (finish_soon_) return close(Gone::kShutdown);
  if (!inbox_.empty()) parse();
  read();
}

void Connection::read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kHandling && inbox_.size() >= kMaxPipelinedBytes) return;
  reading_ = true;
  transport_->read_some(asio::buffer(input_),
                        [self = shared_from_this()](boost::system::error_code error, std::size_t count) {
                          self->on_read(error, count);
                        });
}

void Connection::on_read(boost::system::error_code error, std::size_t count) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return close(Gone::kDisconnected);
  if (phase_ == Phase::kClosing) {
    discarded_ += count;
    if (discarded_ > kMaxDiscardedBytes) return close(Gone::kDisconnected);
    return read();
  }
  inbox_.append(input_.data(), count);
  if (phase_ != Phase::kHandling) parse();
  read();
}

void Connection::parse() {
  if (phase_ == Phase::kIdle) {
    phase_ = Phase::kHeader;
    set_deadline(context_->limits.header_timeout);
  }
  while (!inbox_.empty() && (phase_ == Phase::kHeader || phase_ == Phase::kBody)) {
    boost::system::error_code error;
    const std::size_t used = parser_->put(asio::buffer(inbox_), error);
    inbox_.erase(0, used);
    const bool needs_more = error == Error::need_more;
    if (error && !needs_more) {
      const Refusal refusal = refusal_of(error);
      return refuse(refusal.status, refusal.message);
    }
    if (phase_ == Phase::kHeader && parser_->is_header_done()) {
      if (!head_is_acceptable()) return;
      phase_ = Phase::kBody;
      set_deadline(context_->limits.body_timeout);
    }
    if (phase_ == Phase::kBody && parser_->is_done()) return take_request();
    if (needs_more && used == 0) return;
  }
  if (phase_ == Phase::kBody && parser_->is_done()) take_request();
}

void Connection::fill_request_head() {
  const auto& message = parser_->get();
  request_.method = std::string(message.method_string());
  const auto target = message.target();
  const std::size_t question = target.find('?');
  request_.path = std::string(target.substr(0, question));
  if (question != decltype(target)::npos) request_.query = std::string(target.substr(question + 1));
  for (const auto& field : message)
    request_.headers.add(std::string(field.name_string()), std::string(field.value()));
  request_.peer = peer_;
  request_.http_1_0 = message.version() == 10;
  const std::string_view id = request_.headers.get("x-request-id");
  request_.id = is_acceptable_request_id(id) ? std::string(id) : make_request_id();
}

bool Connection::head_is_acceptable() {
  fill_request_head();
  Response refusal;
  if (context_->check_head && !context_->check_head(request_, refusal)) {
    refuse(std::move(refusal));
    return false;
  }
  const std::string_view expect = request_.headers.get("expect");
  if (expect.empty()) return true;
  if (!equal_ignoring_case(expect, "100-continue")) {
    refuse(417, "only `Expect: 100-continue` is known");
    return false;
  }
  if (!parser_->is_done() && inbox_.empty()) write("HTTP/1.1 100 Continue\r\n\r\n", nullptr);
  return true;
}

void Connection::take_request() {
  const bool keep_alive = parser_->keep_alive() && !finish_soon_;
  request_.body = std::move(parser_->get().body());
  phase_ = Phase::kHandling;
  deadline_ = std::chrono::steady_clock::time_point::max();
  exchange_ = std::make_shared<StreamExchange>(shared_from_this(), std::move(request_), keep_alive, context_);
  context_->handle(exchange_);
}

void Connection::refuse(int status, std::string_view message) {
  if (request_.id.empty()) fill_request_head();  // as far as it arrived: its path chooses the error's shape
  refuse(context_->error_body(request_, status, message));
}

void Connection::refuse(Response response) {
  phase_ = Phase::kHandling;
  deadline_ = std::chrono::steady_clock::time_point::max();
  // A request without a body that was understood leaves the connection usable.
  const bool keep_alive = parser_->is_done() && parser_->keep_alive() && !finish_soon_;
  exchange_ = std::make_shared<StreamExchange>(shared_from_this(), std::move(request_), keep_alive, context_);
  exchange_->respond(std::move(response));
}

void Connection::set_deadline(std::chrono::milliseconds from_now) {
  deadline_ = std::chrono::steady_clock::now() + from_now;
  watch_deadline();
}

// One timer for all deadlines: it is armed again only when it fires, or when a nearer deadline is set.
void Connection::watch_deadline() {
  if (phase_ == Phase::kClosed || (timer_armed_ && timer_.expiry() <= deadline_)) return;
  timer_armed_ = true;
  timer_.expires_at(deadline_);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error) return;  // armed anew, or closed
    self->timer_armed_ = false;
    if (self->phase_ == Phase::kClosed) return;
    if (std::chrono::steady_clock::now() >= self->deadline_) return self->on_deadline();
    if (self->deadline_ != std::chrono::steady_clock::time_point::max()) self->watch_deadline();
  });
}

void Connection::on_deadline() {
  deadline_ = std::chrono::steady_clock::time_point::max();
  switch (phase_) {
    case Phase::kHeader:
      return refuse(408, "the request's head did not arrive in time");
    case Phase::kBody:
      return refuse(408, "the request's body did not arrive in time");
    case Phase::kHandling:
      return close(Gone::kTooSlow);
    default:
      return close(Gone::kDisconnected);
  }
}

void Connection::write(std::string bytes, std::shared_ptr<StreamExchange> exchange) {
  if (phase_ == Phase::kClosed) return;
  outbox_ = std::move(bytes);
  set_deadline(context_->limits.write_timeout);
  transport_->write(asio::buffer(outbox_), [self = shared_from_this(), exchange = std::move(exchange)](
                                               boost::system::error_code error, std::size_t) {
    if (self->phase_ == Phase::kClosed) return;
    if (error) return self->close(Gone::kDisconnected);
    if (!exchange) return;  // 100 Continue; the body's deadline goes on
    self->deadline_ = std::chrono::steady_clock::time_point::max();
    exchange->written();
  });
}

void Connection::response_complete(bool keep_alive) {
  if (phase_ == Phase::kClosed) return;
  if (!keep_alive) return linger();
  next_request();
}

void Connection::linger() {
  exchange_.reset();
  phase_ = Phase::kClosing;
  transport_->shutdown_send();
  set_deadline(kLinger);
  inbox_.clear();
  read();
}

void Connection::close(Gone reason) {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  timer_.cancel();
  transport_->close();
  if (const auto exchange = std::move(exchange_)) exchange->gone(reason);
  if (const auto closed = std::move(closed_)) closed(this);
}

}  // namespace pivot::http
