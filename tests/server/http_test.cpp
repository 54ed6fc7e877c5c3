// The HTTP layer alone: limits, time-outs, slow and vanishing clients, keep-alive, sockets of all kinds.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "http_client.h"
#include "server/http/server.h"
#include "support/test_data.h"

namespace pivot {
namespace {

using namespace std::chrono_literals;
using test::HttpClient;

http::ServerOptions echo_options() {
  http::ServerOptions options;
  options.host = "127.0.0.1";
  options.port = 0;
  options.error_body = [](const http::Request&, int status, std::string_view message) {
    http::Response response;
    response.status = status;
    response.body = message;
    return response;
  };
  options.handle = [](std::shared_ptr<http::Exchange> exchange) {
    http::Response response;
    response.content_type = "text/plain";
    response.body =
        exchange->request().method + " " + exchange->request().path + " " + exchange->request().body;
    exchange->respond(std::move(response));
  };
  return options;
}

std::unique_ptr<http::Server> start(http::ServerOptions options) {
  auto server = http::Server::start(std::move(options));
  if (!server) ADD_FAILURE() << server.error().to_string();
  return server ? *std::move(server) : nullptr;
}

TEST(HttpServer, AnswersOnOneConnectionOneAfterTheOther) {
  const auto server = start(echo_options());
  HttpClient client = HttpClient::tcp(server->port());
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.post("/a?b=c", "hello");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /a hello");
    EXPECT_EQ(reply.headers.at("x-request-id").substr(0, 4), "req_");
  }
  // Two at once: the second waits in the connection.
  client.send_raw(test::post_text("/1", "x") + test::post_text("/2", "y"));
  EXPECT_EQ(client.read_reply()->body, "POST /1 x");
  EXPECT_EQ(client.read_reply()->body, "POST /2 y");
}

TEST(HttpServer, TellsThatItListensBeforeItTakesTheFirstRequest) {
  http::ServerOptions options = echo_options();
  std::optional<HttpClient> client;
  bool told = false;
  options.on_listening = [&](http::Server& server) {
    client.emplace(HttpClient::tcp(server.port()));
    client->send_raw(test::post_text("/", "early"));
    told = true;
  };
  options.handle = [&told](std::shared_ptr<http::Exchange> exchange) {
    http::Response response;
    response.body = told ? "told" : "too early";
    exchange->respond(std::move(response));
  };
  const auto server = start(std::move(options));
  EXPECT_EQ(client->read_reply()->body, "told");
}

TEST(HttpServer, TakesBodiesInChunksAndInSingleBytes) {
  const auto server = start(echo_options());
  HttpClient client = HttpClient::tcp(server->port());
  client.send_raw(
      "POST /c HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply()->body, "POST /c abcdefg");
  for (const char c : test::post_text("/s", "slowly")) client.send_raw(std::string_view(&c, 1));
  EXPECT_EQ(client.read_reply()->body, "POST /s slowly");
}

TEST(HttpServer, EchoesAcceptableRequestIds) {
  const auto server = start(echo_options());
  HttpClient client = HttpClient::tcp(server->port());
  EXPECT_EQ(client.post("/", "", "x-request-id: abc-1\r\n").headers.at("x-request-id"), "abc-1");
  EXPECT_EQ(client.post("/", "", "x-request-id: a\"b\r\n").headers.at("x-request-id").substr(0, 4), "req_");
  EXPECT_EQ(client.post("/", "", "x-request-id: " + std::string(200, 'x') + "\r\n")
                .headers.at("x-request-id")
                .substr(0, 4),
            "req_");
}

TEST(HttpServer, RefusesWhatIsMalformedOrTooLarge) {
  http::ServerOptions options = echo_options();
  options.limits.header_bytes = 4096;
  options.limits.body_bytes = 1000;
  const auto server = start(std::move(options));
  const auto status_of = [&](const std::string& bytes) {
    HttpClient client = HttpClient::tcp(server->port());
    client.send_raw(bytes);
    const auto reply = client.read_reply(5s);
    return reply ? reply->status : 0;
  };
  EXPECT_EQ(status_of("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/9.9\r\n\r\n"), 505);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nx: " + std::string(10000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_of(test::post_text("/", std::string(1001, 'a'))), 413);
  EXPECT_EQ(status_of(test::post_text("/", std::string(1000, 'a'))), 200);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + std::string("800\r\n") +
                      std::string(2048, 'a')),
            413);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\ncontent-length: 3\r\nexpect: 200-maybe\r\n\r\nabc"), 417);
  // The server is none the worse for it.
  HttpClient client = HttpClient::tcp(server->port());
  EXPECT_EQ(client.get("/ok").body, "GET /ok ");
}

TEST(HttpServer, SlowClientsAreToldAndDropped) {
  http::ServerOptions options = echo_options();
  options.limits.header_timeout = 200ms;
  options.limits.body_timeout = 200ms;
  options.limits.idle_timeout = 300ms;
  const auto server = start(std::move(options));
  HttpClient slow_head = HttpClient::tcp(server->port());
  slow_head.send_raw("POST / HTTP/1.1\r\nhost");
  EXPECT_EQ(slow_head.read_reply(5s)->status, 408);
  HttpClient slow_body = HttpClient::tcp(server->port());
  slow_body.send_raw("POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc");
  EXPECT_EQ(slow_body.read_reply(5s)->status, 408);
  HttpClient idle = HttpClient::tcp(server->port());
  EXPECT_TRUE(idle.is_closed_within(5s));
}

TEST(HttpServer, ExpectContinueIsAnswered) {
  const auto server = start(echo_options());
  HttpClient client = HttpClient::tcp(server->port());
  client.send_raw("POST /e HTTP/1.1\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n");
  EXPECT_NE(client.read_until("\r\n\r\n", 5s).find("100 Continue"), std::string::npos);
  client.send_raw("abc");
  EXPECT_EQ(client.read_reply()->body, "POST /e abc");
}

TEST(HttpServer, StreamsInChunksAndUntilCloseForOldClients) {
  http::ServerOptions options = echo_options();
  options.handle = [](std::shared_ptr<http::Exchange> exchange) {
    http::Response head;
    head.content_type = "text/event-stream";
    exchange->begin_stream(head);
    for (int i = 0; i < 100; ++i) exchange->send(std::to_string(i) + ";");
    exchange->end_stream();
  };
  const auto server = start(std::move(options));
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += std::to_string(i) + ";";
  HttpClient client = HttpClient::tcp(server->port());
  EXPECT_EQ(client.get("/").body, expected);
  EXPECT_EQ(client.get("/").body, expected) << "keep-alive after a stream";
  HttpClient old = HttpClient::tcp(server->port());
  old.send_raw("GET / HTTP/1.0\r\n\r\n");
  const auto reply = old.read_reply();
  EXPECT_EQ(reply->body, expected);
  EXPECT_FALSE(reply->headers.contains("transfer-encoding"));
}

// A client that is gone, and one that does not read: the handler hears of it, and never waits.
TEST(HttpServer, TellsTheHandlerThatAClientIsGone) {
  std::atomic<int> gone_reason{-1};
  std::shared_ptr<http::Exchange> kept;
  std::mutex mutex;
  http::ServerOptions options = echo_options();
  options.limits.unread_bytes = 64 * 1024;
  options.handle = [&](std::shared_ptr<http::Exchange> exchange) {
    exchange->on_gone([&](http::Gone reason) { gone_reason = static_cast<int>(reason); });
    exchange->begin_stream({});
    const std::lock_guard lock(mutex);
    kept = std::move(exchange);
  };
  const auto server = start(std::move(options));
  const auto exchange = [&] {
    for (int i = 0; i < 500; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (kept) return kept;
      }
      std::this_thread::sleep_for(10ms);
    }
    return std::shared_ptr<http::Exchange>();
  };
  const auto wait_for = [&](http::Gone reason) {
    for (int i = 0; i < 500 && gone_reason != static_cast<int>(reason); ++i)
      std::this_thread::sleep_for(10ms);
    return gone_reason == static_cast<int>(reason);
  };
  {
    HttpClient client = HttpClient::tcp(server->port());
    client.send_raw("GET / HTTP/1.1\r\n\r\n");
    ASSERT_TRUE(exchange());
  }
  EXPECT_TRUE(wait_for(http::Gone::kDisconnected));
  EXPECT_FALSE(kept->send("too late"));
  kept.reset();

  HttpClient lazy = HttpClient::tcp(server->port());
  lazy.send_raw("GET / HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(exchange());
  const std::string piece(16 * 1024, 'x');
  int sent = 0;
  while (sent < 10'000 && kept->send(piece)) ++sent;
  EXPECT_LT(sent, 10'000) << "160 MB were queued for a client that reads nothing";
  EXPECT_TRUE(wait_for(http::Gone::kTooSlow));
  kept.reset();
}

TEST(HttpServer, ListensOnUnixSocketsAndReplacesStaleOnes) {
  const std::string path = (test::scratch_dir() / "s.sock").string();
  for (int round = 0; round < 2; ++round) {
    http::ServerOptions options = echo_options();
    options.host.clear();
    options.unix_socket = path;
    const auto server = start(std::move(options));
    ASSERT_TRUE(server);
    EXPECT_EQ(HttpClient::unix_socket(path).get("/u").body, "GET /u ");
    http::ServerOptions second = echo_options();
    second.unix_socket = path;
    const auto refused = http::Server::start(std::move(second));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  }
}

TEST(HttpServer, SaysWhyItCannotListen) {
  const auto server = start(echo_options());
  http::ServerOptions taken = echo_options();
  taken.port = server->port();
  EXPECT_EQ(http::Server::start(std::move(taken)).error().code, ErrorCode::kUnavailable);
  http::ServerOptions tls = echo_options();
  tls.tls_certificate = "/nonexistent.pem";
  tls.tls_key = "/nonexistent.key";
  EXPECT_NE(http::Server::start(std::move(tls)).error().message.find("/nonexistent.pem"), std::string::npos);
  http::ServerOptions nothing = echo_options();
  nothing.host.clear();
  EXPECT_FALSE(http::Server::start(std::move(nothing)));
}

TEST(HttpServer, ClosesOpenConnectionsWhenItStops) {
  auto server = start(echo_options());
  HttpClient idle = HttpClient::tcp(server->port());
  EXPECT_EQ(idle.get("/").status, 200);
  server->stop_accepting();
  EXPECT_TRUE(idle.is_closed_within(5s));
  server->close();
  EXPECT_EQ(server->open_connections(), 0);
}

}  // namespace
}  // namespace pivot
