// The whole server on the embedded model: APIs, errors, streams, cancellation, counters.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/devices.h"
#include "engine/faulty_backend.h"
#include "server_fixture.h"

namespace pivot {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::HttpClient;
using test::TestServer;

json chat_body(const std::string& text, int max_tokens = 12) {
  return {
      {"model", "needle"}, {"max_tokens", max_tokens}, {"messages", {{{"role", "user"}, {"content", text}}}}};
}

json ok(const test::HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return json::parse(reply.body, nullptr, false);
}

std::string streamed_text(const std::string& body) {
  std::string text;
  for (const auto& event : test::sse_events(body)) {
    if (event.data == "[DONE]") break;
    const json chunk = json::parse(event.data);
    for (const json& choice : chunk["choices"]) {
      const json& delta = choice.contains("delta") ? choice["delta"] : choice;
      text += delta.value("content", delta.value("text", ""));
    }
  }
  return text;
}

TEST(Server, ChatCompletionsAnswerTheSameStreamedAndNot) {
  TestServer server;
  HttpClient client = server.client();
  json body = chat_body("The secret code for Bethel is 4711. What is the secret code for Bethel?");
  const json whole = ok(client.post("/v1/chat/completions", body.dump()));
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["model"], "needle");
  const std::string text = whole["choices"][0]["message"]["content"];
  EXPECT_GT(whole["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(whole["usage"]["total_tokens"],
            whole["usage"]["prompt_tokens"].get<int>() + whole["usage"]["completion_tokens"].get<int>());
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto reply = client.post("/v1/chat/completions", body.dump());
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(streamed_text(reply.body), text);
  const auto events = test::sse_events(reply.body);
  EXPECT_EQ(events.back().data, "[DONE]");
  EXPECT_EQ(json::parse(events[events.size() - 2].data)["usage"]["completion_tokens"],
            whole["usage"]["completion_tokens"]);
}

TEST(Server, EveryApiGivesTheSameText) {
  TestServer server;
  HttpClient client = server.client();
  const std::string question = "What is the secret code for Bethel?";
  const json chat = ok(client.post("/v1/chat/completions", chat_body(question).dump()));
  const std::string text = chat["choices"][0]["message"]["content"];
  const json messages = ok(client.post(
      "/v1/messages",
      json{{"model", "needle"}, {"max_tokens", 12}, {"messages", {{{"role", "user"}, {"content", question}}}}}
          .dump()));
  ASSERT_EQ(messages["content"].size(), text.empty() ? 0u : 1u) << messages;
  if (!text.empty()) {
    EXPECT_EQ(messages["content"][0]["text"], text);
  }
  const json responses = ok(client.post(
      "/v1/responses", json{{"model", "needle"}, {"max_output_tokens", 12}, {"input", question}}.dump()));
  if (!text.empty()) {
    EXPECT_EQ(responses["output"][0]["content"][0]["text"], text);
  }
  const json prompt =
      ok(client.post("/tokenize", json{{"messages", {{{"role", "user"}, {"content", question}}}}}.dump()));
  const json completion = ok(client.post(
      "/v1/completions", json{{"model", "needle"}, {"max_tokens", 12}, {"prompt", prompt["tokens"]}}.dump()));
  EXPECT_EQ(completion["choices"][0]["text"], text);
  EXPECT_EQ(completion["usage"]["prompt_tokens"], prompt["count"]);
  const json count = ok(client.post(
      "/v1/messages/count_tokens",
      json{{"model", "needle"}, {"messages", {{{"role", "user"}, {"content", question}}}}}.dump()));
  EXPECT_EQ(count["input_tokens"], prompt["count"]);
  EXPECT_EQ(ok(client.post("/detokenize", json{{"tokens", prompt["tokens"]}}.dump()))["prompt"]
                    .get<std::string>()
                    .find(question) != std::string::npos,
            true);
}

TEST(Server, ChoicesAndSeedsAreReproducible) {
  TestServer server;
  HttpClient client = server.client();
  json body = chat_body("Tell me a story.", 8);
  body["temperature"] = 1.5;
  body["seed"] = 11;
  body["n"] = 3;
  const json first = ok(client.post("/v1/chat/completions", body.dump()));
  const json second = ok(client.post("/v1/chat/completions", body.dump()));
  ASSERT_EQ(first["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first["choices"][i]["index"], i);
    EXPECT_EQ(first["choices"][i]["message"]["content"], second["choices"][i]["message"]["content"]);
  }
  // Choice 1 of seed 11 draws as choice 0 of seed 12.
  body["n"] = 1;
  body["seed"] = 12;
  const json alone = ok(client.post("/v1/chat/completions", body.dump()));
  EXPECT_EQ(alone["choices"][0]["message"]["content"], first["choices"][1]["message"]["content"]);
}

TEST(Server, LogprobsSumUpAndCarryBytes) {
  TestServer server;
  HttpClient client = server.client();
  json body = chat_body("Say something.", 5);
  body["logprobs"] = true;
  body["top_logprobs"] = 3;
  const json reply = ok(client.post("/v1/chat/completions", body.dump()));
  const json& tokens = reply["choices"][0]["logprobs"]["content"];
  ASSERT_FALSE(tokens.empty());
  std::string text;
  for (const json& token : tokens) {
    EXPECT_EQ(token["top_logprobs"].size(), 3u);
    EXPECT_LE(token["logprob"].get<double>(), 0);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]) << "greedy";
    for (const int byte : token["bytes"]) text += static_cast<char>(byte);
  }
  EXPECT_EQ(text, reply["choices"][0]["message"]["content"]);
  const json echo = ok(client.post(
      "/v1/completions",
      json{{"prompt", "In the beginning"}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 2}}.dump()));
  const json& lists = echo["choices"][0]["logprobs"];
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  EXPECT_EQ(lists["tokens"].size(), lists["text_offset"].size());
  EXPECT_EQ(echo["choices"][0]["text"].get<std::string>().substr(0, 16), "In the beginning");
  // More prompts than run at a time, streamed: each choice's echo comes before its answer.
  json many = {
      {"prompt", json::array()}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 0}, {"stream", true}};
  for (int i = 0; i < 12; ++i) many["prompt"].push_back("Prompt number " + std::to_string(i));
  std::map<int, std::string> texts;
  for (const auto& event : test::sse_events(client.post("/v1/completions", many.dump()).body)) {
    if (event.data == "[DONE]") break;
    const json choice = json::parse(event.data)["choices"][0];
    texts[choice["index"]] += choice["text"].get<std::string>();
  }
  ASSERT_EQ(texts.size(), 12u);
  for (const auto& [index, text_of_choice] : texts) {
    EXPECT_TRUE(text_of_choice.starts_with("Prompt number " + std::to_string(index))) << text_of_choice;
  }
}

TEST(Server, MalformedRequestsAreRefusedAndCostNothing) {
  TestServer server;
  const auto steps = server.instance().engine().stats().steps;
  const std::vector<std::pair<std::string, int>> cases = {
      {"", 400},
      {"{", 400},
      {R"({"messages":[{"role":"user","content":"x"}],"temperature":NaN})", 400},
      {R"({"messages":[{"role":"user","content":"\ud800"}]})", 400},
      {R"({"messages":[{"role":"user","content":"x"}],"temperature":-1})", 400},
      {R"({"model":"other","max_tokens":5,"messages":[{"role":"user","content":"x"}]})", 404},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})", 400},
      {R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1000000})", 400},
      {"{\"messages\":" + std::string(100'000, '['), 400},
      {R"({"messages":[{"role":"user","content":"x"}],"logit_bias":{"99999999":1}})", 400},
  };
  HttpClient client = server.client();
  for (const auto& [body, status] : cases) {
    for (const char* path : {"/v1/chat/completions", "/v1/messages"}) {
      if (path == std::string("/v1/messages") && body.find("logit_bias") != std::string::npos) continue;
      const auto reply = client.post(path, body);
      EXPECT_EQ(reply.status, status) << body.substr(0, 200) << "\n" << reply.body;
      EXPECT_LT(reply.body.size(), 4096u);
      const json error = json::parse(reply.body, nullptr, false);
      ASSERT_TRUE(error.contains("error")) << reply.body;
      EXPECT_TRUE(error["error"].contains("message") && error["error"].contains("type"));
      EXPECT_EQ(error.contains("request_id"), path == std::string("/v1/messages"));
    }
  }
  EXPECT_EQ(server.instance().engine().stats().steps, steps);
  ok(client.post("/v1/chat/completions", chat_body("hi", 2).dump()));
}

TEST(Server, ContextOverflowNamesBothNumbers) {
  TestServer server;
  HttpClient client = server.client();
  std::vector<int> ids(9000, 100);
  const auto reply = client.post("/v1/completions", json{{"prompt", ids}, {"max_tokens", 4}}.dump());
  EXPECT_EQ(reply.status, 400);
  const json error = json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_NE(error["message"].get<std::string>().find("9000"), std::string::npos);
  EXPECT_NE(error["message"].get<std::string>().find("8192"), std::string::npos);
}

TEST(Server, KeysPathsAndMethods) {
  TestServer server([](server::InstanceOptions& options) { options.service.api_keys = {"k1", "k2"}; });
  const std::string body = chat_body("hi", 1).dump();
  // A request that is refused before its body was read ends its connection.
  const auto status = [&](const std::string& headers) {
    return server.client().post("/v1/chat/completions", body, headers).status;
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("authorization: Bearer k3\r\n"), 401);
  EXPECT_EQ(status("authorization: Bearer k2\r\n"), 200);
  EXPECT_EQ(status("x-api-key: k1\r\n"), 200);
  HttpClient client = server.client();
  EXPECT_EQ(client.get("/v1/models").status, 401);
  for (const char* path : {"/health", "/ready", "/ping", "/version", "/metrics"})
    EXPECT_EQ(client.get(path).status, 200) << path;
  EXPECT_EQ(client.get("/nowhere").status, 404);
  const auto wrong_method = client.get("/v1/chat/completions");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_TRUE(wrong_method.headers.contains("allow"));
}

TEST(Server, ModelsAreListed) {
  TestServer server([](server::InstanceOptions& options) {
    options.service.model_names = {"a/b", "second"};
  });
  HttpClient client = server.client();
  const json list = ok(client.get("/v1/models"));
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["max_model_len"], 8192);
  EXPECT_EQ(ok(client.get("/v1/models/a%2Fb"))["id"], "a/b");
  EXPECT_EQ(ok(client.get("/v1/models/a/b"))["id"], "a/b");
  EXPECT_EQ(client.get("/v1/models/none").status, 404);
}

TEST(Server, CorsIsForTheOriginsThatAreAllowed) {
  TestServer server(
      [](server::InstanceOptions& options) { options.service.cors_origins = {"https://ui.example"}; });
  HttpClient client = server.client();
  client.send_raw("OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: t\r\norigin: https://ui.example\r\n\r\n");
  const auto preflight = client.read_reply();
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->headers.at("access-control-allow-origin"), "https://ui.example");
  client.send_raw("GET /health HTTP/1.1\r\nhost: t\r\norigin: https://evil.example\r\n\r\n");
  EXPECT_FALSE(client.read_reply()->headers.contains("access-control-allow-origin"));
}

TEST(Server, ARepeatedPromptIsCached) {
  TestServer server;
  HttpClient client = server.client();
  std::string text;
  for (int i = 0; i < 120; ++i) text += "The house of number " + std::to_string(i) + " stands on the hill. ";
  const std::string body = chat_body(text + "What stands on the hill?", 6).dump();
  const json cold = ok(client.post("/v1/chat/completions", body));
  const json warm = ok(client.post("/v1/chat/completions", body));
  EXPECT_EQ(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_GT(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 256);
  EXPECT_EQ(cold["choices"][0]["message"]["content"], warm["choices"][0]["message"]["content"]);
}

// M1: however a prompt is cut into steps, the answer and its probabilities are the same.
TEST(Server, StepSizesDoNotChangeAnswers) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The house of number " + std::to_string(i) + " stands on the hill. ";
  json body = chat_body(text + "What stands on the hill?", 6);
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  json expected;
  for (const int step_tokens : {512, 256, 127, 64}) {
    TestServer server([&](server::InstanceOptions& options) { options.engine.step_tokens = step_tokens; });
    const json reply = ok(server.client().post("/v1/chat/completions", body.dump()));
    if (expected.is_null()) expected = reply["choices"];
    EXPECT_EQ(reply["choices"], expected) << step_tokens;
  }
}

TEST(Server, AClientThatLeavesEndsItsRequest) {
  TestServer server;
  for (int i = 0; i < 4; ++i) {
    HttpClient client = server.client();
    json body = chat_body("Go on for ever.", 4000);
    body["stream"] = i % 2 == 0;
    body["ignore_eos"] = true;
    client.send_raw(test::post_text("/v1/chat/completions", body.dump()));
    if (i % 2 == 0) {
      client.read_until("data: ");
    } else {
      while (server.instance().engine().stats().running == 0) std::this_thread::sleep_for(5ms);
    }
  }
  EXPECT_TRUE(server.is_idle());
  EXPECT_EQ(server.instance().engine().stats().cancelled, 4u);
  EXPECT_EQ(server.metric("pivot_requests_total", "client_gone"), 4);
}

// B35: received = finished + aborted + failed + refused.
TEST(Server, CountersAddUp) {
  TestServer server;
  for (int i = 0; i < 5; ++i) {
    HttpClient client = server.client();
    json body = chat_body(std::string(2000, 'x'), 2000);
    body["stream"] = true;
    body["ignore_eos"] = true;
    client.send_raw(test::post_text("/v1/chat/completions", body.dump()));
    client.read_until("data: ");
  }
  HttpClient client = server.client();
  for (int i = 0; i < 3; ++i) ok(client.post("/v1/chat/completions", chat_body("hello", 8).dump()));
  json two = chat_body("hello", 8);
  two["n"] = 2;
  ok(client.post("/v1/chat/completions", two.dump()));
  EXPECT_EQ(client.post("/v1/chat/completions", "{}").status, 400);
  ASSERT_TRUE(server.is_idle());
  for (int i = 0; i < 200 && server.metric("pivot_requests_in_flight") > 0; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(server.metric("pivot_requests_received_total"), 10);
  EXPECT_EQ(server.metric("pivot_requests_total"), 10);
  EXPECT_EQ(server.metric("pivot_requests_total", "aborted"), 5);
  EXPECT_EQ(server.metric("pivot_requests_total", "finished"), 4);
  EXPECT_EQ(server.metric("pivot_requests_total", "refused"), 1);
  EXPECT_EQ(server.metric("pivot_request_duration_seconds_count"), 10);
}

TEST(Server, LongPromptsGetHeartbeats) {
  TestServer server([](server::InstanceOptions& options) { options.service.heartbeat = 50ms; });
  HttpClient client = server.client();
  std::vector<int> ids;
  for (int i = 0; i < 8000; ++i) ids.push_back(100 + i * 7 % 3000);
  const auto reply =
      client.post("/v1/completions", json{{"prompt", ids}, {"max_tokens", 2}, {"stream", true}}.dump());
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(reply.body.find(": ping\n\n"), std::string::npos);
  const auto events = test::sse_events(reply.body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().data, "[DONE]");
}

TEST(Server, DrainingRefusesNewRequestsAndFinishesOldOnes) {
  TestServer server;
  HttpClient running = server.client();
  json body = chat_body("Count.", 60);
  body["ignore_eos"] = true;
  body["stream"] = true;
  running.send_raw(test::post_text("/v1/chat/completions", body.dump()));
  const std::string begun = running.read_until("data: ");
  server.instance().begin_drain();
  HttpClient client = server.client();
  EXPECT_EQ(client.get("/ready").status, 503);
  EXPECT_EQ(client.get("/health").status, 200);
  const auto refused = client.post("/v1/chat/completions", chat_body("hi", 1).dump());
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_TRUE(server.instance().drain(test::kPatience));
  EXPECT_NE(running.read_until("[DONE]").find("[DONE]"), std::string::npos);
  server.instance().stop();
}

TEST(Server, StoppingTellsTheClientsThatAreCutOff) {
  TestServer server;
  HttpClient client = server.client();
  json body = chat_body("Count.", 7000);
  body["ignore_eos"] = true;
  body["stream"] = true;
  client.send_raw(test::post_text("/v1/chat/completions", body.dump()));
  client.read_until("data: ");
  server.instance().stop();
  const std::string rest = client.read_until("[DONE]");
  EXPECT_NE(rest.find("shutting down"), std::string::npos);
}

// ---- /health_generate ----

TEST(Server, HealthGenerateMakesOneToken) {
  TestServer server;
  HttpClient client = server.client();
  for (int i = 1; i <= 2; ++i) {
    EXPECT_EQ(client.get("/health_generate").status, 200);
    // The engine's figures follow its events.
    const auto tokens = [&] { return server.instance().engine().stats().generated_tokens; };
    for (int wait = 0; wait < 1000 && tokens() < static_cast<std::uint64_t>(i); ++wait)
      std::this_thread::sleep_for(5ms);
    EXPECT_EQ(tokens(), static_cast<std::uint64_t>(i));
  }
  EXPECT_EQ(server.instance().engine().stats().prefix.queries, 0u);
  EXPECT_EQ(server.metric("pivot_requests_received_total"), 0);  // nobody's request
  EXPECT_EQ(server.metric("pivot_http_requests_total", "/health_generate"), 2);
}

TEST(Server, HealthGenerateTellsThatTheDeviceFails) {
  const auto faulty = std::make_shared<test::FaultyBackend>(make_backend("cpu", 2).value());
  TestServer server([&](server::InstanceOptions& options) { options.engine.backend = faulty; });
  HttpClient client = server.client();
  faulty->failing_steps = 1;
  const auto reply = client.get("/health_generate");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("the device failed"), std::string::npos) << reply.body;
  EXPECT_EQ(client.get("/health").status, 200);  // the loop turns
  EXPECT_EQ(client.get("/health_generate").status, 200);
}

TEST(Server, HealthGenerateTellsThatAStepHangs) {
  const auto faulty = std::make_shared<test::FaultyBackend>(make_backend("cpu", 2).value());
  TestServer server([&](server::InstanceOptions& options) {
    options.engine.backend = faulty;
    options.service.health_patience = 200ms;
  });
  HttpClient client = server.client();
  faulty->hangs = true;
  const auto reply = client.get("/health_generate");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("no token within 200 ms"), std::string::npos) << reply.body;
  faulty->hangs = false;
  EXPECT_TRUE(server.is_idle());
  EXPECT_EQ(client.get("/health_generate").status, 200);
}

// A server whose slots are taken is healthy while it writes for others, and nobody is pre-empted to find out.
TEST(Server, HealthGenerateDisturbsNobody) {
  TestServer server([](server::InstanceOptions& options) {
    options.engine.max_sequences = 1;
    options.service.health_patience = std::chrono::milliseconds(test::kPatience) / 240;
  });
  HttpClient stream = server.client();
  json body = chat_body("Go on for ever.", 6000);
  body["stream"] = true;
  body["ignore_eos"] = true;
  stream.send_raw(test::post_text("/v1/chat/completions", body.dump()));
  stream.read_until("data: ");
  EXPECT_EQ(server.client().get("/health_generate").status, 200);
  const EngineStats stats = server.instance().engine().stats();
  EXPECT_EQ(stats.preemptions, 0u);
  EXPECT_EQ(stats.finished, 0u);
  stream.close();
  EXPECT_TRUE(server.is_idle());
}

// ---- grammars ----

// An object that names properties and allows others: a tenth of a second for each of them.
json slow_schema(unsigned count) {
  json properties;
  for (unsigned i = 0; i < count; ++i) {
    std::string name;
    for (unsigned k = 0, x = i * 2654435761u + 1; k < 20; ++k) {
      x = 1664525u * x + 1013904223u;
      name += static_cast<char>('a' + x / 65536 % 26);
    }
    properties[name] = {{"type", "string"}};
  }
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", true}};
}

// What takes long to compile holds up neither bodies nor steps, and is told when its time is up.
TEST(Server, AGrammarThatCompilesLongHoldsUpNobody) {
  if (!grammars_available()) GTEST_SKIP() << "this build has no grammar library";
  TestServer server([](server::InstanceOptions& options) {
    options.service.work_threads = 1;
    options.grammar_limits.threads = 1;
    options.grammar_limits.compile_timeout = 300ms;
    options.grammar_limits.max_cost = std::numeric_limits<std::int64_t>::max();
  });
  json slow = chat_body("hi", 4);
  slow["guided_json"] = slow_schema(45);  // some seconds; 15 took less than 300 ms on a fast machine
  HttpClient waiting = server.client();
  waiting.send_raw(test::post_text("/v1/chat/completions", slow.dump()));
  for (int i = 0; i < 2000 && server.metric("pivot_grammars_waiting") == 0; ++i)
    std::this_thread::sleep_for(5ms);
  ok(server.client().post("/v1/chat/completions", chat_body("hi", 2).dump()));
  EXPECT_EQ(server.metric("pivot_grammars_waiting"), 1);  // the other one was served meanwhile
  const auto reply = waiting.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 400) << reply->body;
  const json error = json::parse(reply->body)["error"];
  EXPECT_EQ(error["param"], "guided_json");
  EXPECT_NE(error["message"].get<std::string>().find("longer than 300 ms"), std::string::npos) << error;
  EXPECT_EQ(server.metric("pivot_grammars_total", "timed_out"), 1);
  // It is still being compiled: who asks again is told at once.
  EXPECT_EQ(server.client().post("/v1/chat/completions", slow.dump()).status, 400);
}

TEST(Server, AGrammarBeyondItsBudgetIsRefusedBeforeItIsCompiled) {
  if (!grammars_available()) GTEST_SKIP() << "this build has no grammar library";
  TestServer server;
  json slow = chat_body("hi", 4);
  slow["guided_json"] = slow_schema(60);
  const auto reply = server.client().post("/v1/chat/completions", slow.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("would cost 30000"), std::string::npos) << reply.body;
  EXPECT_EQ(server.metric("pivot_grammars_total", "refused"), 1);
  EXPECT_EQ(server.metric("pivot_grammar_compile_seconds_total"), 0);
}

TEST(Server, AFullQueueIsTold) {
  TestServer server([](server::InstanceOptions& options) {
    options.engine.max_sequences = 1;
    options.engine.max_queued = 1;
  });
  json body = chat_body("Count.", 4000);
  body["ignore_eos"] = true;
  std::vector<HttpClient> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(server.client());
    clients.back().send_raw(test::post_text("/v1/chat/completions", body.dump()));
    std::this_thread::sleep_for(50ms);
  }
  const auto reply = clients.back().read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 429);
  EXPECT_EQ(json::parse(reply->body)["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(reply->headers.contains("retry-after"));
}

// M8: every stream equals the same request alone.
TEST(Server, ManyStreamsAtOnceEqualTheSameAlone) {
  TestServer server;
  constexpr int kRequests = 40;
  const auto body_of = [](int i) {
    json body = chat_body("The code for town " + std::to_string(i % 10) + " is " + std::to_string(1000 + i) +
                              ". What is the code for town " + std::to_string(i % 10) + "?",
                          10 + i % 5);
    body["stream"] = true;
    body["temperature"] = i % 2;
    body["seed"] = i;
    return body.dump();
  };
  std::vector<std::string> alone(kRequests), together(kRequests);
  for (int i = 0; i < kRequests; ++i)
    alone[i] = streamed_text(server.client().post("/v1/chat/completions", body_of(i)).body);
  server.instance().engine().clear_prefix_cache();
  std::vector<std::thread> threads;
  for (int i = 0; i < kRequests; ++i) {
    threads.emplace_back([&, i] {
      together[i] = streamed_text(server.client().post("/v1/chat/completions", body_of(i)).body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(together[i], alone[i]) << i;
}

}  // namespace
}  // namespace pivot
