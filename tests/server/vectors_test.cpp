// The request bodies of ../shared/real: what a client library sends, and what must come back.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "server_fixture.h"
#include "support/test_data.h"

namespace pivot {
namespace {

using nlohmann::json;

json read(const std::filesystem::path& path) { return json::parse(std::ifstream(path)); }

// The embedded model's limits are smaller than the real one's, and its answers are no matter here.
json fitted(json body) {
  if (body.contains("max_tokens") && body["max_tokens"].is_number_integer() && body["max_tokens"] > 64)
    body["max_tokens"] = 64;
  if (body.contains("messages") && !body.contains("max_tokens") && !body.contains("max_completion_tokens"))
    body["max_tokens"] = 16;
  return body;
}

class Vectors : public ::testing::Test {
 protected:
  Vectors()
      : server_(
            [](server::InstanceOptions& options) { options.service.model_names = {"deepseek-v4-flash"}; }) {}

  test::HttpReply send(const json& vector, const std::string& body) {
    return server_.client().post(vector["path"].get<std::string>(), body);
  }
  test::TestServer server_;
};

TEST_F(Vectors, EveryRequestIsAnsweredAsItMust) {
  PIVOT_NEED_DATA(folder, "real/requests");
  int seen = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".json") continue;
    const json vector = read(file.path());
    const std::string name = vector["name"];
    if (name.starts_with("17_")) continue;  // a template for a text of 400,000 characters
    SCOPED_TRACE(name);
    ++seen;
    const json& expect = vector["expect"];
    if (vector["body"].is_array()) {  // cases
      for (const json& test_case : vector["body"]) {
        const std::string body = test_case.contains("raw_body") ? test_case["raw_body"].get<std::string>()
                                                                : fitted(test_case["body"]).dump();
        const auto reply = send(vector, body);
        if (test_case["status"].is_number()) {
          EXPECT_EQ(reply.status, test_case["status"].get<int>()) << body << "\n" << reply.body;
        } else {
          EXPECT_TRUE(reply.status == 200 || reply.status == 400) << body << "\n" << reply.body;
        }
        if (reply.status >= 400) {
          const json error = json::parse(reply.body)["error"];
          for (const char* key : {"message", "type", "param", "code"})
            EXPECT_TRUE(error.contains(key)) << key;
        }
      }
      continue;
    }
    const json body = fitted(vector["body"]);
    const auto reply = send(vector, body.dump());
    if (expect["status"].is_number()) {
      EXPECT_EQ(reply.status, expect["status"].get<int>()) << reply.body;
    } else {
      EXPECT_TRUE(reply.status == 200 || reply.status == 400) << reply.body;
    }
    if (reply.status != 200) {
      const json error = json::parse(reply.body)["error"];
      if (expect.contains("error_param")) {
        EXPECT_EQ(error["param"], expect["error_param"]);
      }
      if (expect.contains("error_type")) {
        EXPECT_EQ(error["type"], expect["error_type"]);
      }
      if (expect.contains("message_must_mention"))
        EXPECT_NE(error["message"].get<std::string>().find(expect["message_must_mention"].get<std::string>()),
                  std::string::npos);
      continue;
    }
    std::string text;
    if (body.value("stream", false)) {
      const auto events = test::sse_events(reply.body);
      ASSERT_FALSE(events.empty());
      if (expect.contains("last_data")) {
        EXPECT_EQ(events.back().data, expect["last_data"]);
      }
      for (const auto& event : events) {
        if (event.data == "[DONE]") continue;
        const json chunk = json::parse(event.data, nullptr, false);
        ASSERT_FALSE(chunk.is_discarded()) << event.data;
        if (!chunk.contains("choices") || chunk["choices"].empty()) continue;
        text += chunk["choices"][0]["delta"].value("content", "");
      }
      if (expect.contains("first_delta_has_role"))
        EXPECT_EQ(json::parse(events[0].data)["choices"][0]["delta"]["role"], expect["first_delta_has_role"]);
      if (expect.contains("usage_chunk"))
        EXPECT_TRUE(json::parse(events[events.size() - 2].data)["usage"].is_object());
      if (expect.contains("events")) {
        for (const json& wanted : expect["events"]) {
          EXPECT_TRUE(std::any_of(events.begin(), events.end(), [&](const auto& event) {
            return event.name == wanted;
          })) << wanted;
        }
      }
    } else {
      const json whole = json::parse(reply.body);
      if (expect.contains("object")) {
        EXPECT_EQ(whole["object"], expect["object"]);
      }
      if (expect.contains("fields")) {
        for (const json& field : expect["fields"]) EXPECT_TRUE(whole.contains(field)) << field;
      }
      if (whole["choices"][0].contains("message") && whole["choices"][0]["message"]["content"].is_string())
        text = whole["choices"][0]["message"]["content"];
      if (name.starts_with("08_")) {
        for (const json& token : whole["choices"][0]["logprobs"]["content"])
          EXPECT_EQ(token["top_logprobs"].size(), 20u);
      }
    }
    if (expect.contains("content_must_not_contain")) {
      for (const json& never : expect["content_must_not_contain"])
        EXPECT_EQ(text.find(never.get<std::string>()), std::string::npos);
    }
  }
  EXPECT_GE(seen, 17);
}

TEST_F(Vectors, PromptsEndAsTheReasoningModeSays) {
  PIVOT_NEED_DATA(folder, "real/requests");
  for (const char* name : {"05_openai_reasoning_effort.json", "05b_openai_thinking_off.json"}) {
    const json vector = read(folder / name);
    const auto tokens = json::parse(server_.client().post("/tokenize", vector["body"].dump()).body);
    const auto text =
        json::parse(server_.client().post("/detokenize", json{{"tokens", tokens["tokens"]}}.dump()).body);
    EXPECT_TRUE(
        text["prompt"].get<std::string>().ends_with(vector["expect"]["prompt_ends_with"].get<std::string>()))
        << name;
  }
}

}  // namespace
}  // namespace pivot
