// Bodies into requests: what is read, what is refused and how it is named.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/api/error.h"
#include "server/api/request.h"

namespace pivot {
namespace {

using api::ApiResult;
using api::GenerationRequest;

ApiResult<GenerationRequest> chat(const std::string& body) {
  const auto json = api::parse_body(body);
  if (!json) return tl::unexpected(json.error());
  return api::read_chat_request(*json);
}
std::string with(const std::string& fields) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}],)" + fields + "}";
}
// The field that a body is refused for; "" where it is taken.
std::string refused_field(const std::string& body) {
  const auto request = chat(body);
  if (request) return "";
  EXPECT_EQ(request.error().status, 400) << body;
  return request.error().param.empty() ? "(body)" : request.error().param;
}

TEST(ParseBody, RefusesWhatOtherParsersTakeDifferently) {
  for (const char* body :
       {"", "null", "[]", "\"text\"", "{", "{\"a\":NaN}", "{\"a\":Infinity}", "{\"a\":-Infinity}",
        "{\"a\":1e999}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\\udc00\\ud800\"}", "{\"a\":\"\xff\"}",
        "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":01}", "{\"a\":1,}", "{'a':1}", "{\"a\":\"\n\"}", "{\"a\":1} x"}) {
    const auto json = api::parse_body(body);
    ASSERT_FALSE(json) << body;
    EXPECT_EQ(json.error().status, 400);
    EXPECT_EQ(json.error().code, "invalid_json");
  }
  EXPECT_TRUE(api::parse_body(R"({"a":"\ud83d\ude00","b":1e-999,"c":[1,2.5,-3e2]})"));
}

TEST(ParseBody, BoundsDepthAndSize) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']') + "}";
  };
  EXPECT_TRUE(api::parse_body(nested(100)));
  EXPECT_FALSE(api::parse_body(nested(200)));
  EXPECT_FALSE(api::parse_body(nested(200'000)));
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 5'000'000; ++i) many += ",0";
  EXPECT_FALSE(api::parse_body(many + "]}"));
  std::string keys = "{\"a\":1";
  for (int i = 0; i < 2000; ++i) keys += ",\"k" + std::to_string(i) + "\":1";
  EXPECT_FALSE(api::parse_body(keys + "}"));
}

TEST(ChatRequest, ReadsEveryFieldThatItKnows) {
  const auto request = chat(with(
      R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"seed":-7,"stop":["a","b"],"stop_token_ids":[3],)"
      R"("logit_bias":{"5":-100,"7":1.5},"n":3,"max_tokens":9,"max_completion_tokens":11,"min_tokens":2,"ignore_eos":true,)"
      R"("logprobs":true,"top_logprobs":4,"stream":true,"stream_options":{"include_usage":true},"user":"u",)"
      R"("presence_penalty":0.5,"frequency_penalty":-0.5,"repetition_penalty":1.1,"reasoning_effort":"high","novel":1)"));
  ASSERT_TRUE(request) << request.error().message;
  const api::SamplingFields& s = request->sampling;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.seed, static_cast<std::uint64_t>(-7));
  EXPECT_EQ(s.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.stop_token_ids, std::vector<std::int64_t>{3});
  ASSERT_EQ(s.logit_bias.size(), 2u);
  EXPECT_EQ(s.n, 3);
  EXPECT_EQ(s.max_tokens, 11);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.top_logprobs, 4);
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_TRUE(request->stream && request->include_usage);
  EXPECT_EQ(request->chat()->thinking, true);
  EXPECT_EQ(request->chat()->effort, ReasoningEffort::kHigh);
  EXPECT_EQ(request->ignored_fields, std::vector<std::string>{"novel"});
}

TEST(ChatRequest, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(refused_field(R"({"model":"m"})"), "messages");
  EXPECT_EQ(refused_field(R"({"model":"m","messages":[]})"), "messages");
  EXPECT_EQ(refused_field(R"({"model":1,"messages":[]})"), "model");
  EXPECT_EQ(refused_field(R"({"messages":[{"role":"wizard","content":"x"}]})"), "messages[0].role");
  EXPECT_EQ(refused_field(R"({"messages":[{"role":"user","content":7}]})"), "messages[0].content");
  EXPECT_EQ(refused_field(R"({"messages":["x"]})"), "messages[0]");
  EXPECT_EQ(refused_field(R"({"messages":[{"role":"tool","tool_call_id":"nope","content":"x"}]})"),
            "messages[0]");
  EXPECT_EQ(refused_field(with(R"("temperature":-1)")), "temperature");
  EXPECT_EQ(refused_field(with(R"("temperature":"hot")")), "temperature");
  EXPECT_EQ(refused_field(with(R"("top_p":1.5)")), "top_p");
  EXPECT_EQ(refused_field(with(R"("max_tokens":0)")), "max_tokens");
  EXPECT_EQ(refused_field(with(R"("max_tokens":1.5)")), "max_tokens");
  EXPECT_EQ(refused_field(with(R"("max_tokens":99999999999999999999999)")), "max_tokens");
  EXPECT_EQ(refused_field(with(R"("n":0)")), "n");
  EXPECT_EQ(refused_field(with(R"("n":1000000)")), "n");
  EXPECT_EQ(refused_field(with(R"("stop":"")")), "stop");
  EXPECT_EQ(refused_field(with(R"("stop":["ok",""])")), "stop[1]");
  EXPECT_EQ(refused_field(with(R"("stop":[1])")), "stop[0]");
  EXPECT_EQ(refused_field(with(R"("logprobs":true,"top_logprobs":50)")), "top_logprobs");
  EXPECT_EQ(refused_field(with(R"("top_logprobs":5)")), "top_logprobs");
  EXPECT_EQ(refused_field(with(R"("logit_bias":{"x":1})")), "logit_bias");
  EXPECT_EQ(refused_field(with(R"("logit_bias":{"1":1000})")), "logit_bias.1");
  EXPECT_EQ(refused_field(with(R"("stream":"yes")")), "stream");
  EXPECT_EQ(refused_field(with(R"("reasoning_effort":"extreme")")), "reasoning_effort");
  EXPECT_EQ(refused_field(with(R"("response_format":{"type":"xml"})")), "response_format.type");
  EXPECT_EQ(refused_field(with(R"("response_format":{"type":"json_schema"})")),
            "response_format.json_schema");
  EXPECT_EQ(refused_field(with(R"("guided_json":{},"guided_regex":"a")")), "guided_regex");
  EXPECT_EQ(refused_field(with(R"("tools":[{"type":"web_search"}])")), "tools[0].type");
  EXPECT_EQ(refused_field(with(R"("tools":[{"type":"function","function":{"name":"a b"}}])")),
            "tools[0].function.name");
  EXPECT_EQ(refused_field(with(R"("tool_choice":"required")")), "tool_choice");
  EXPECT_EQ(
      refused_field(with(
          R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})")),
      "tool_choice");
}

TEST(ChatRequest, RefusesPicturesByName) {
  const auto request = chat(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"?"},{"type":"image_url","image_url":{"url":"data:"}}]}]})");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "messages[0].content[1]");
  EXPECT_NE(request.error().message.find("image"), std::string::npos);
}

TEST(ChatRequest, ReadsToolsAndTheirChoice) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","b":1.0,"a":[]}}}])";
  auto request = chat(with(tools));
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->chat()->conversation.tools.size(), 1u);
  EXPECT_EQ(request->chat()->conversation.tools[0],
            R"({"name": "f", "description": "d", "parameters": {"type": "object", "b": 1.0, "a": []}})");
  EXPECT_TRUE(request->chat()->parallel_tool_calls);
  request = chat(with(tools + R"(,"tool_choice":"none")"));
  ASSERT_TRUE(request);
  EXPECT_TRUE(request->chat()->conversation.tools.empty());
  request = chat(with(
      tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false)"));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->chat()->tool_choice.kind, api::ToolChoice::Kind::kNamed);
  EXPECT_FALSE(request->chat()->parallel_tool_calls);
}

TEST(ChatRequest, ReadsEverySpellingOfThinking) {
  const auto thinking = [](const std::string& fields) { return chat(with(fields))->chat()->thinking; };
  EXPECT_EQ(thinking(R"("x":1)"), std::nullopt);
  EXPECT_EQ(thinking(R"("thinking":{"type":"enabled"})"), true);
  EXPECT_EQ(thinking(R"("thinking":{"type":"disabled"})"), false);
  EXPECT_EQ(thinking(R"("chat_template_kwargs":{"thinking":true})"), true);
  EXPECT_EQ(thinking(R"("chat_template_kwargs":{"enable_thinking":false})"), false);
  EXPECT_EQ(thinking(R"("reasoning_effort":"none")"), false);
  EXPECT_EQ(thinking(R"("reasoning_effort":"low")"), true);
}

TEST(CompletionsRequest, ReadsAllFormsOfPrompts) {
  const auto prompts = [](const std::string& prompt) {
    const auto json = api::parse_body(R"({"prompt":)" + prompt + "}");
    auto request = api::read_completions_request(*json);
    return request ? std::get<std::vector<api::TextPrompt>>(request->prompt) : std::vector<api::TextPrompt>();
  };
  EXPECT_EQ(prompts(R"("one")").at(0).text, "one");
  EXPECT_EQ(prompts(R"(["one","two"])").at(1).text, "two");
  EXPECT_EQ(prompts("[1,2,3]").at(0).ids, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(prompts("[[1],[2,3]]").at(1).ids, (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(prompts("[]").empty());
  EXPECT_TRUE(prompts("[1,\"x\"]").empty());
  EXPECT_TRUE(prompts("[-1]").empty());
  EXPECT_TRUE(prompts("7").empty());
}

TEST(MessagesRequest, TurnsBlocksIntoAConversation) {
  const auto json = api::parse_body(
      R"({"max_tokens":9,"system":[{"type":"text","text":"terse"}],"messages":[{"role":"user","content":"Weather?"},)"
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"call","signature":"s"},{"type":"tool_use","id":"t1","name":"w","input":{"city":"Oslo"}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"-3"}]},{"type":"text","text":"So?"}]}],)"
      R"("tools":[{"name":"w","input_schema":{"type":"object"}}],"stop_sequences":["END"],"thinking":{"type":"enabled","budget_tokens":99}})");
  ASSERT_TRUE(json);
  const auto request = api::read_messages_request(*json);
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = request->chat()->conversation.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(messages[2].reasoning, "call");
  EXPECT_EQ(messages[2].tool_calls.at(0).arguments, R"({"city": "Oslo"})");
  EXPECT_EQ(messages[3].role, ChatRole::kTool);
  EXPECT_EQ(messages[3].tool_call_id, "t1");
  EXPECT_EQ(messages[4].content.at(0).text, "So?");
  EXPECT_EQ(request->chat()->conversation.tools.at(0), R"({"name": "w", "parameters": {"type": "object"}})");
  EXPECT_EQ(request->chat()->thinking, true);
  EXPECT_EQ(request->sampling.stop, std::vector<std::string>{"END"});
}

TEST(ResponsesRequest, JoinsTheItemsOfATurn) {
  const auto json = api::parse_body(
      R"({"instructions":"terse","input":[{"role":"user","content":[{"type":"input_text","text":"q"}]},)"
      R"({"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},)"
      R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"42"}],)"
      R"("tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}],"max_output_tokens":5})");
  ASSERT_TRUE(json);
  const auto request = api::read_responses_request(*json);
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = request->chat()->conversation.messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[2].reasoning, "r");
  EXPECT_EQ(messages[2].tool_calls.at(0).id, "c1");
  EXPECT_EQ(messages[3].tool_call_id, "c1");
  EXPECT_TRUE(request->chat()->tools.at(0).strict);
  const auto stored = api::parse_body(R"({"input":"x","previous_response_id":"resp_1"})");
  EXPECT_EQ(api::read_responses_request(*stored).error().param, "previous_response_id");
}

TEST(ErrorBodies, AreSmallAndHaveTheShapeOfTheirApi) {
  api::ApiError error;
  error.message = std::string(100'000, 'x');
  error.param = std::string(100'000, 'p');
  const auto openai = nlohmann::json::parse(api::openai_error(error));
  EXPECT_LT(api::openai_error(error).size(), 4096u);
  EXPECT_TRUE(openai["error"]["code"].is_null());
  EXPECT_EQ(openai["error"]["type"], "invalid_request_error");
  const auto anthropic = nlohmann::json::parse(api::anthropic_error(error, "req_1"));
  EXPECT_LT(api::anthropic_error(error, "req_1").size(), 4096u);
  EXPECT_EQ(anthropic["type"], "error");
  EXPECT_EQ(anthropic["error"]["type"], "invalid_request_error");
  EXPECT_EQ(anthropic["request_id"], "req_1");
}

}  // namespace
}  // namespace pivot
