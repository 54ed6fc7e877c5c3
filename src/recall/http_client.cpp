#include "recall/http_client.h"

#include <curl/curl.h>

#include <memory>

namespace pivot::recall {
namespace {

using Clock = std::chrono::steady_clock;

struct Exchange {
  const HttpRequest* request = nullptr;
  const HttpBodyFn* on_body = nullptr;
  Clock::time_point last_byte = Clock::now();
  bool any_byte = false;
  bool ended_early = false;
  bool stalled = false;
  bool cancelled = false;
};

std::size_t take_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  exchange.last_byte = Clock::now();
  exchange.any_byte = true;
  if (!(*exchange.on_body)({data, size * count})) {
    exchange.ended_early = true;
    return 0;  // libcurl ends the transfer
  }
  return size * count;
}

// libcurl calls this about once a second, and more often while data come.
int watch(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& exchange = *static_cast<Exchange*>(user);
  exchange.cancelled = exchange.request->cancel != nullptr && exchange.request->cancel->load();
  exchange.stalled = Clock::now() - exchange.last_byte > exchange.request->stall_timeout;
  return exchange.cancelled || exchange.stalled ? 1 : 0;
}

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

}  // namespace

Result<HttpResponse> http_exchange(const HttpRequest& request, const HttpBodyFn& on_body) {
  static const bool initialised = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(initialised ? curl_easy_init() : nullptr,
                                                                 &curl_easy_cleanup);
  if (!curl) return fail(ErrorCode::kInternal, "libcurl does not start");
  Exchange exchange;
  exchange.request = &request;
  exchange.on_body = &on_body;
  char message[CURL_ERROR_SIZE] = "";
  std::unique_ptr<curl_slist, FreeList> headers;
  for (const std::string& header : request.headers) {
    curl_slist* longer = curl_slist_append(headers.get(), header.c_str());
    if (longer == nullptr) return fail(ErrorCode::kInternal, "libcurl does not take a header");
    static_cast<void>(headers.release());
    headers.reset(longer);
  }
  CURL* const c = curl.get();
  curl_easy_setopt(c, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(c, CURLOPT_USERAGENT, "pivot-recall");
  if (!request.body.empty()) {
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout.count()));
  curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, static_cast<long>(request.total_timeout.count()));
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, &take_body);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, &watch);
  curl_easy_setopt(c, CURLOPT_XFERINFODATA, &exchange);

  const CURLcode code = curl_easy_perform(c);
  if (exchange.cancelled) return fail(ErrorCode::kCancelled, "stopped");
  if (exchange.stalled)
    return fail(ErrorCode::kUnavailable, "{} sent {} for {:.0f} s", request.url,
                exchange.any_byte ? "nothing more" : "nothing", seconds(request.stall_timeout));
  if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL)
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is no URL of a server; http://HOST:PORT/v1 was wanted",
                request.url);
  if (code == CURLE_OPERATION_TIMEDOUT && exchange.any_byte)
    return fail(ErrorCode::kUnavailable, "{} had not finished its answer after {:.0f} s", request.url,
                seconds(request.total_timeout));
  if (code != CURLE_OK && !exchange.ended_early)
    return fail(ErrorCode::kUnavailable, "{}: {}", request.url,
                message[0] != '\0' ? message : curl_easy_strerror(code));
  HttpResponse response;
  long status = 0;
  const char* type = nullptr;
  curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(c, CURLINFO_CONTENT_TYPE, &type);
  response.status = static_cast<int>(status);
  if (type != nullptr) response.content_type = type;
  return response;
}

}  // namespace pivot::recall
