// One request on its way through the server: the request, and the way back to its client.
//
// Every member may be called from any thread; none of them waits for the network. What the client does not
// read in time is queued up to a limit; beyond it the client counts as gone, so that a slow reader costs
// memory that is bounded and never holds up the engine.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/message.h"

namespace pivot::http {

enum class Gone {
  kDisconnected,  // the client closed or reset the connection
  kTooSlow,       // it did not read what was sent to it
  kShutdown,      // the server closes
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Request& request() = 0;

  // The whole response at once. At most one of respond and begin_stream, once.
  virtual void respond(Response response) = 0;
  // The head of a response whose body comes in pieces. False when the client is gone.
  virtual bool begin_stream(Response head) = 0;
  virtual bool send(std::string_view piece) = 0;
  virtual void end_stream() = 0;
  // Ends the connection in the middle of a stream, so that the client sees that it is incomplete.
  virtual void abort_stream() = 0;

  // Called once if the client goes before the response is complete; at once if it already has.
  virtual void on_gone(std::function<void(Gone)> callback) = 0;
  // Runs work on the connection's own strand of the I/O threads: pieces of work of one exchange never
  // overlap.
  virtual void post(std::function<void()> work) = 0;
};

// Takes a complete request. Called on an I/O thread; it may answer now or keep the exchange and answer later.
using Handler = std::function<void(std::shared_ptr<Exchange>)>;
// Looks at a request whose body has not been read yet; a response ends it there (wrong path, no key, ...).
using HeadCheck = std::function<bool(const Request& head, Response& refusal)>;
// The body of an error that the HTTP layer itself detects, in the shape that the path's API uses.
using ErrorBody = std::function<Response(const Request& head, int status, std::string_view message)>;

// Adds header fields to every response of a request (CORS).
using Decorate = std::function<void(const Request& request, Headers& headers)>;
// Told when a response is complete, or that its client was gone first (status 499).
using Observe = std::function<void(const Request& request, int status, double seconds)>;

}  // namespace pivot::http
