// A server that answers every request with bytes that the test chose: right ones, wrong ones, or none.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace pivot::recall {

class FakeServer {
 public:
  // Sends bytes of the response; false when the client has gone.
  using Send = std::function<bool(const std::string&)>;
  // `head` and `body` of the request. Called for each connection, one request each, in turn; the connection
  // is closed afterwards. `stopping` says that the server ends: a handler that waits must look at it.
  using Handler = std::function<void(const std::string& head, const std::string& body, const Send& send,
                                     const std::atomic<bool>& stopping)>;

  explicit FakeServer(Handler handler);
  ~FakeServer();
  std::string url() const;  // "http://127.0.0.1:PORT"

 private:
  void run();
  void serve(int connection);
  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// A complete response with its length, or the head of a stream that ends with the connection.
std::string whole_response(int status, const std::string& type, const std::string& body);
std::string stream_head();
// "data: {...}\n\n" with a piece of text.
std::string text_event(const std::string& text);

}  // namespace pivot::recall
