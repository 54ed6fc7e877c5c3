// Measuring a server that behaves, and servers that do not.
#include "recall/remote.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "recall/fake_server.h"
#include "support/embedded_model.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {
namespace {

using namespace std::chrono_literals;

Case needle_case() {
  Case test;
  test.spec = {Task::kSingle, 8, 0.5, 0, 4, 0, 1};
  for (int id = 300; id < 308; ++id) test.prompt.push_back(TokenId{id});
  test.expected = {"482913"};
  test.answer_tokens = 16;
  return test;
}

const Tokenizer& tokenizer() {
  static const Tokenizer instance = Tokenizer::load(test::embedded_model_dir()).value();
  return instance;
}

RemoteModel remote(const FakeServer& server, PromptForm form = PromptForm::kIds,
                   std::chrono::milliseconds stall = 60s) {
  RemoteOptions options;
  options.url = server.url();
  options.model = "fake";
  options.form = form;
  options.stall_timeout = stall;
  return RemoteModel::connect(std::move(options)).value();
}

// What a server that sends `stream` after the head makes of the case.
CaseResult answered_with(const std::string& stream) {
  FakeServer server([&](const std::string&, const std::string&, const FakeServer::Send& send,
                        const std::atomic<bool>&) { send(stream_head() + stream); });
  return remote(server).run(needle_case(), tokenizer()).value();
}

const std::string kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":3}}\n\n";
const std::string kEnd =
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n" + kUsage + "data: [DONE]\n\n";

TEST(Remote, ReadsAStreamAndSendsTheVeryTokens) {
  std::string head, body;
  FakeServer server([&](const std::string& h, const std::string& b, const FakeServer::Send& send,
                        const std::atomic<bool>&) {
    head = h, body = b;
    send(stream_head() + ": a comment\r\n\r\n" + text_event("The code is ") + text_event("482913.") + kEnd);
  });
  const CaseResult result = remote(server).run(needle_case(), tokenizer()).value();
  EXPECT_TRUE(result.score.exact);
  EXPECT_EQ(result.answer, "The code is 482913.");
  EXPECT_EQ(result.finish_reason, "stop");
  EXPECT_EQ(result.generated_tokens, 3);
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.remarks, "");
  EXPECT_EQ(head.substr(0, head.find("\r\n")), "POST /v1/completions HTTP/1.1");
  const auto sent = nlohmann::json::parse(body);
  EXPECT_EQ(sent["prompt"], nlohmann::json({300, 301, 302, 303, 304, 305, 306, 307}));
  EXPECT_EQ(sent["temperature"], 0);
  EXPECT_EQ(sent["max_tokens"], 16);
}

TEST(Remote, SendsTextWhereAsked) {
  std::string body;
  FakeServer server(
      [&](const std::string&, const std::string& b, const FakeServer::Send& send, const std::atomic<bool>&) {
        body = b;
        send(whole_response(200, "application/json",
                            "{\"choices\":\n [{\"text\": \"482913\", \"finish_reason\": \"stop\"}]}"));
      });
  const Case test = needle_case();
  const CaseResult result = remote(server, PromptForm::kText).run(test, tokenizer()).value();
  EXPECT_TRUE(result.score.exact) << result.failure;  // an answer in one piece is one too
  EXPECT_EQ(nlohmann::json::parse(body)["prompt"], tokenizer().decode(test.prompt));
}

TEST(Remote, AsksForTheModelsName) {
  FakeServer server([](const std::string& head, const std::string&, const FakeServer::Send& send,
                       const std::atomic<bool>&) {
    EXPECT_EQ(head.rfind("GET /v1/models", 0), 0u);
    send(whole_response(200, "application/json", R"({"data":[{"id":"flash"}]})"));
  });
  RemoteOptions options;
  options.url = server.url() + "/v1/";
  EXPECT_EQ(RemoteModel::connect(options).value().model(), "flash");
}

TEST(Remote, AStallIsACaseWithoutAnAnswer) {
  FakeServer server([](const std::string&, const std::string&, const FakeServer::Send& send,
                       const std::atomic<bool>& stopping) {
    send(stream_head() + text_event("The code is "));
    while (!stopping) std::this_thread::sleep_for(5ms);
  });
  const CaseResult result = remote(server, PromptForm::kIds, 200ms).run(needle_case(), tokenizer()).value();
  EXPECT_NE(result.failure.find("sent nothing more"), std::string::npos) << result.failure;
  EXPECT_FALSE(result.score.exact);
}

TEST(Remote, GarbageIsACaseWithoutAnAnswer) {
  EXPECT_NE(answered_with("data: {nonsense\n\n").failure.find("no JSON object"), std::string::npos);
  EXPECT_NE(answered_with("data: 5\n\n").failure.find("no JSON object"), std::string::npos);
  EXPECT_NE(answered_with("data: {\"id\":1}\n\n").failure.find("no choices"), std::string::npos);
  EXPECT_NE(answered_with(text_event("a") + "\x01\x02\xff\n\n").failure.find("no event"), std::string::npos);
  EXPECT_NE(answered_with("<html>502</html>").failure, "");
  EXPECT_NE(answered_with("").failure.find("empty"), std::string::npos);
  EXPECT_NE(answered_with(text_event("The code is 48")).failure.find("broke off"), std::string::npos);
  EXPECT_NE(
      answered_with("data: {\"error\":{\"message\":\"out of pages\"}}\n\n").failure.find("out of pages"),
      std::string::npos);
}

TEST(Remote, FiguresThatCannotBeAreNoted) {
  const auto with_usage = [](int prompt, int generated) {
    return answered_with(text_event("482913") +
                         fmt::format("data: {{\"choices\":[{{\"finish_reason\":\"stop\"}}],"
                                     "\"usage\":{{\"prompt_tokens\":{},"
                                     "\"completion_tokens\":{}}}}}\n\ndata: [DONE]\n\n",
                                     prompt, generated));
  };
  EXPECT_EQ(with_usage(8, 2).remarks, "");
  EXPECT_NE(with_usage(9, 2).remarks.find("9 prompt tokens, 8 were sent"), std::string::npos);
  EXPECT_NE(with_usage(8, 17).remarks.find("at most 16"), std::string::npos);
  EXPECT_NE(with_usage(8, 0).remarks.find("nothing was generated"), std::string::npos);
  EXPECT_TRUE(with_usage(9, 17).score.exact);  // the answer counts all the same
}

TEST(Remote, RefusalsOfEveryCaseEndTheRun) {
  const auto refused = [](int status) {
    FakeServer server([status](const std::string&, const std::string&, const FakeServer::Send& send,
                               const std::atomic<bool>&) {
      send(whole_response(status, "application/json", R"({"error":{"message":"who are you"}})"));
    });
    return remote(server).run(needle_case(), tokenizer());
  };
  EXPECT_EQ(refused(401).error().code, ErrorCode::kPermission);
  EXPECT_NE(refused(401).error().message.find("who are you"), std::string::npos);
  EXPECT_EQ(refused(404).error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused(503).value().failure.find("who are you"), std::string::npos);  // this case alone
}

TEST(Remote, SaysThatNobodyListens) {
  RemoteOptions options;
  {
    FakeServer gone([](const auto&, const auto&, const auto&, const auto&) {});
    options.url = gone.url();
  }
  EXPECT_EQ(RemoteModel::connect(options).error().code, ErrorCode::kUnavailable);
  options.url = "gopher:nowhere";
  EXPECT_EQ(RemoteModel::connect(options).error().code, ErrorCode::kInvalidArgument);
}

TEST(Remote, StopsWhenTheUserDoes) {
  CancelFlag cancel = false;
  FakeServer server([&](const std::string&, const std::string&, const FakeServer::Send& send,
                        const std::atomic<bool>& stopping) {
    send(stream_head());
    cancel = true;
    while (!stopping) std::this_thread::sleep_for(5ms);
  });
  RemoteOptions options;
  options.url = server.url();
  options.model = "fake";
  options.cancel = &cancel;
  const auto result = RemoteModel::connect(options).value().run(needle_case(), tokenizer());
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
}

TEST(CompletionReader, DoesNotCareHowBytesArrive) {
  const std::string stream = text_event("The code is ") + "event: x\r\n" + text_event("482\u00e0913") + kEnd;
  for (const std::size_t step : {1u, 2u, 7u, 1000u}) {
    CompletionReader reader;
    for (std::size_t at = 0; at < stream.size(); at += step)
      ASSERT_TRUE(reader.feed(stream.substr(at, step), 0.5));
    EXPECT_TRUE(reader.done());
    const Completion completion = reader.finish(1).value();
    EXPECT_EQ(completion.text, "The code is 482\u00e0913");
    EXPECT_EQ(completion.pieces, 2);
    EXPECT_EQ(completion.prompt_tokens, 8);
    EXPECT_EQ(completion.first_seconds, 0.5);
  }
}

}  // namespace
}  // namespace pivot::recall
