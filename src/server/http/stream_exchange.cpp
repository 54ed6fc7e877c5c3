#include "server/http/stream_exchange.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace pivot::http {

StreamExchange::StreamExchange(std::shared_ptr<Connection> connection, Request request, bool keep_alive,
                               std::shared_ptr<const ConnectionContext> context)
    : connection_(std::move(connection)),
      request_(std::move(request)),
      http_1_0_(request_.http_1_0),
      context_(std::move(context)),
      keep_alive_(keep_alive) {}

void StreamExchange::respond(Response response) {
  bool keep = false;
  if (context_->decorate) context_->decorate(request_, response.headers);
  {
    const std::lock_guard lock(mutex_);
    if (started_ || is_gone_) return;
    started_ = true;
    status_ = response.status;
    if (response.close) keep_alive_ = false;
    keep = keep_alive_;
  }
  std::string bytes = response_head(response, request_.id, Framing::kLength, keep);
  if (request_.method != "HEAD") bytes += response.body;
  enqueue(std::move(bytes), /*last=*/true);
}

bool StreamExchange::begin_stream(Response head) {
  bool keep = false;
  if (context_->decorate) context_->decorate(request_, head.headers);
  {
    const std::lock_guard lock(mutex_);
    if (is_gone_) return false;
    started_ = true;
    status_ = head.status;
    chunked_ = !http_1_0_;
    if (!chunked_ || head.close) keep_alive_ = false;
    keep = keep_alive_;
  }
  return enqueue(response_head(head, request_.id, http_1_0_ ? Framing::kUntilClose : Framing::kChunked, keep),
                 /*last=*/false);
}

bool StreamExchange::send(std::string_view piece) {
  return enqueue(http_1_0_ ? std::string(piece) : chunk(piece), /*last=*/false);
}

void StreamExchange::end_stream() {
  enqueue(http_1_0_ ? std::string() : std::string(kLastChunk), /*last=*/true);
}

void StreamExchange::abort_stream() {
  {
    const std::lock_guard lock(mutex_);
    abort_ = true;
    keep_alive_ = false;
  }
  enqueue({}, /*last=*/true);
}

void StreamExchange::on_gone(std::function<void(Gone)> callback) {
  Gone reason{};
  {
    const std::lock_guard lock(mutex_);
    if (!is_gone_) {
      on_gone_ = std::move(callback);
      return;
    }
    reason = gone_reason_;
  }
  callback(reason);
}

void StreamExchange::post(std::function<void()> work) {
  asio::post(connection_->transport_->executor(), std::move(work));
}

bool StreamExchange::enqueue(std::string bytes, bool last) {
  bool too_slow = false;
  {
    const std::lock_guard lock(mutex_);
    if (is_gone_ || ended_) return false;
    ended_ = last;
    queue_ += bytes;
    // A complete response may be larger than the limit: nothing follows it.
    too_slow = !last && queue_.size() + in_flight_ > context_->limits.unread_bytes;
    if (!too_slow) {
      if (flushing_) return true;
      flushing_ = true;
    }
  }
  const auto self = shared_from_this();
  if (too_slow) {
    post([self] { self->connection_->close(Gone::kTooSlow); });
    return false;
  }
  post([self] { self->flush(); });
  return true;
}

void StreamExchange::flush() {
  std::string bytes;
  bool done = false;
  bool keep = false;
  {
    const std::lock_guard lock(mutex_);
    if (is_gone_) return;
    bytes.swap(queue_);
    in_flight_ = bytes.size();
    if (bytes.empty()) {
      flushing_ = false;
      done = ended_;
      complete_ = done;
      keep = keep_alive_;
    }
  }
  if (!bytes.empty()) {
    connection_->write(std::move(bytes), shared_from_this());
  } else if (done) {
    bool aborted = false;
    int status = 0;
    {
      const std::lock_guard lock(mutex_);
      aborted = abort_;
      status = status_;
      on_gone_ = nullptr;
    }
    observe(status);
    if (aborted)
      connection_->close(Gone::kDisconnected);
    else
      connection_->response_complete(keep);
  }
}

void StreamExchange::written() {
  {
    const std::lock_guard lock(mutex_);
    in_flight_ = 0;
  }
  flush();
}

void StreamExchange::gone(Gone reason) {
  std::function<void(Gone)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (is_gone_ || complete_) return;
    is_gone_ = true;
    gone_reason_ = reason;
    queue_.clear();
    callback.swap(on_gone_);
  }
  observe(499);
  if (callback) callback(reason);
}

void StreamExchange::observe(int status) const {
  if (!context_->observe) return;
  context_->observe(request_, status,
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - arrived_).count());
}

void StreamExchange::keep_alive(bool value) {
  const std::lock_guard lock(mutex_);
  keep_alive_ = keep_alive_ && value;
}

}  // namespace pivot::http
