// One HTTP request at a time, its answer handed on as it comes: what measuring another server needs. http and
// https, through libcurl. Blocking; each call on its own connection.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/session.h"

namespace pivot::recall {

struct HttpRequest {
  std::string url;
  std::vector<std::string> headers;  // "Name: value"
  std::string body;                  // sent by POST; empty: GET
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds stall_timeout{120'000};    // without a byte, the wait for the first one included
  std::chrono::milliseconds total_timeout{1'800'000};  // of the whole exchange
  const CancelFlag* cancel = nullptr;
};

struct HttpResponse {
  int status = 0;
  std::string content_type;
};

// Sees the body in pieces; false ends the exchange early, which is no error.
using HttpBodyFn = std::function<bool(std::string_view piece)>;

// Errors: kInvalidArgument for a URL that is none; kUnavailable where nobody answers, the answer stalls or
// breaks off; kCancelled. A status of 400 and more is a response, not an error.
Result<HttpResponse> http_exchange(const HttpRequest& request, const HttpBodyFn& on_body);

}  // namespace pivot::recall
