// Tokens into answers: scripted pieces stand for what a model would sample (public-faults.md B27, B31, B32).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http_client.h"
#include "server/api/answer.h"
#include "server/api/writer.h"
#include "support/embedded_model.h"
#include "text/chat/dsml.h"

namespace pivot {
namespace {

using api::ChoiceAnswer;
using api::ChoiceText;
using nlohmann::json;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = *Tokenizer::load(test::embedded_model_dir());
  return instance;
}

ChoiceText stopping_at(std::vector<std::string> stops) {
  return ChoiceText(tokenizer(), *StopStrings::create(std::move(stops)), true);
}

// An answer of this text, given to the writer in pieces of `piece` bytes.
struct Script {
  std::string text;
  ThinkingMode thinking = ThinkingMode::kChat;
  api::Api api = api::Api::kChat;
  bool parallel = true;
};

struct Outcome {
  std::string stream;
  std::string body;
};

Outcome play(const Script& script, std::size_t piece) {
  api::GenerationRequest request;
  request.api = script.api;
  request.prompt = api::ChatPrompt{};
  request.include_usage = true;
  api::AnswerOptions options;
  options.thinking = script.thinking;
  options.parallel_tool_calls = script.parallel;
  const auto answer_of = [&](bool streaming) {
    api::AnswerIdentity identity;
    identity.id = "id-1";
    identity.model = "m";
    const auto writer = api::make_writer(request, identity);
    ChoiceAnswer answer(tokenizer(), options);
    api::Usage usage{10, 4, 3, 0};
    std::string out = streaming ? writer->begin(usage) : "";
    SampledToken token;
    token.id = TokenId{5};
    for (std::size_t at = 0; at < script.text.size(); at += piece) {
      answer.token(token, std::string_view(script.text).substr(at, piece), false);
      const api::Delta delta = answer.take();
      if (streaming && !delta.empty()) out += writer->delta(0, delta, usage);
    }
    answer.finish("");
    const api::Delta rest = answer.take(true);
    api::ChoiceEnd end;
    end.word = answer.finish_word(false, false);
    if (streaming) {
      if (!rest.empty()) out += writer->delta(0, rest, usage);
      return out + writer->end_choice(0, end, usage) + writer->end(usage);
    }
    api::ChoiceRecord record;
    record.content = answer.content();
    record.reasoning = answer.reasoning();
    record.tool_calls = answer.tool_calls();
    record.end = end;
    return writer->body({record}, usage);
  };
  return {answer_of(true), answer_of(false)};
}

std::string two_calls() {
  const std::string m(dsml::kMarker);
  return "plan</think>Checking.\n\n<" + m + "tool_calls>\n<" + m + "invoke name=\"read_meter\">\n<" + m +
         "parameter name=\"ids\" string=\"false\">[1, 2]</" + m + "parameter>\n<" + m +
         "parameter name=\"note\" string=\"true\">a<b</" + m + "parameter>\n</" + m + "invoke>\n<" + m +
         "invoke name=\"stop_pump\">\n</" + m + "invoke>\n</" + m + "tool_calls>";
}

// What a client puts together from a chat stream.
json joined_chat(const std::string& stream) {
  json out = {{"reasoning", ""}, {"content", ""}, {"calls", json::array()}};
  bool done = false;
  for (const auto& event : test::sse_events(stream)) {
    if (event.data == "[DONE]") {
      done = true;
      continue;
    }
    const json chunk = json::parse(event.data);
    if (chunk["choices"].empty()) {
      out["usage"] = chunk["usage"];
      continue;
    }
    EXPECT_TRUE(chunk["usage"].is_null());
    const json& choice = chunk["choices"][0];
    const json& delta = choice["delta"];
    if (delta.contains("content"))
      out["content"] = out["content"].get<std::string>() + delta["content"].get<std::string>();
    if (delta.contains("reasoning_content"))
      out["reasoning"] = out["reasoning"].get<std::string>() + delta["reasoning_content"].get<std::string>();
    for (const json& call : delta.value("tool_calls", json::array())) {
      if (call.contains("id")) {
        EXPECT_EQ(call["index"], out["calls"].size());
        out["calls"].push_back({{"id", call["id"]}, {"name", call["function"]["name"]}, {"arguments", ""}});
      }
      json& slot = out["calls"][call["index"].get<std::size_t>()];
      slot["arguments"] =
          slot["arguments"].get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) out["finish"] = choice["finish_reason"];
  }
  EXPECT_TRUE(done);
  return out;
}

TEST(Answer, ToolCallsDoNotDependOnHowTheTextIsCut) {
  for (const std::size_t piece : {1u, 2u, 3u, 5u, 7u, 11u, 64u, 100'000u}) {
    const Outcome outcome = play({two_calls(), ThinkingMode::kThinking}, piece);
    const json stream = joined_chat(outcome.stream);
    EXPECT_EQ(stream["reasoning"], "plan");
    EXPECT_EQ(stream["content"], "Checking.");
    EXPECT_EQ(stream["finish"], "tool_calls");
    ASSERT_EQ(stream["calls"].size(), 2u) << piece;
    EXPECT_EQ(stream["calls"][0]["arguments"], R"({"ids": [1, 2], "note": "a<b"})");
    EXPECT_EQ(stream["calls"][1]["arguments"], "{}");
    EXPECT_NE(stream["calls"][0]["id"], stream["calls"][1]["id"]);
    EXPECT_EQ(stream["usage"]["prompt_tokens_details"]["cached_tokens"], 4);

    const json body = json::parse(outcome.body);
    const json& message = body["choices"][0]["message"];
    EXPECT_EQ(message["reasoning_content"], "plan");
    EXPECT_EQ(message["content"], "Checking.");
    EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"ids": [1, 2], "note": "a<b"})");
    EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "stop_pump");
  }
}

TEST(Answer, TextThatLooksLikeACallArrivesWhole) {
  const std::string text = "a < b, <|, <｜DS and \n\n<";
  for (const std::size_t piece : {1u, 4u, 1000u}) {
    EXPECT_EQ(joined_chat(play({text}, piece).stream)["content"], text);
    EXPECT_EQ(joined_chat(play({text}, piece).stream)["finish"], "stop");
  }
}

TEST(Answer, OneCallIsEnoughWhereCallsMayNotBeParallel) {
  Script script{two_calls(), ThinkingMode::kThinking};
  script.parallel = false;
  const json stream = joined_chat(play(script, 3).stream);
  EXPECT_EQ(stream["calls"].size(), 1u);
  EXPECT_EQ(stream["finish"], "tool_calls");
}

TEST(Answer, AnthropicBlocksOpenAndCloseInOrder) {
  Script script{two_calls(), ThinkingMode::kThinking, api::Api::kMessages};
  for (const std::size_t piece : {1u, 7u, 100'000u}) {
    const Outcome outcome = play(script, piece);
    std::vector<std::string> blocks;
    std::map<int, std::string> texts;
    int open = -1;
    std::string last;
    for (const auto& event : test::sse_events(outcome.stream)) {
      const json data = json::parse(event.data);
      EXPECT_EQ(event.name, data["type"]);
      last = event.name;
      if (event.name == "content_block_start") {
        EXPECT_EQ(open, -1);
        open = data["index"];
        EXPECT_EQ(static_cast<std::size_t>(open), blocks.size());
        blocks.push_back(data["content_block"]["type"]);
      } else if (event.name == "content_block_delta") {
        EXPECT_EQ(data["index"], open);
        for (const char* key : {"thinking", "text", "partial_json"}) {
          if (data["delta"].contains(key)) texts[open] += data["delta"][key].get<std::string>();
        }
      } else if (event.name == "content_block_stop") {
        EXPECT_EQ(data["index"], open);
        open = -1;
      } else if (event.name == "message_delta") {
        EXPECT_EQ(data["delta"]["stop_reason"], "tool_use");
      }
    }
    EXPECT_EQ(last, "message_stop");
    EXPECT_EQ(blocks, (std::vector<std::string>{"thinking", "text", "tool_use", "tool_use"}));
    EXPECT_EQ(texts[0], "plan");
    EXPECT_EQ(texts[1], "Checking.");
    EXPECT_EQ(json::parse(texts[2]), json::parse(R"({"ids":[1,2],"note":"a<b"})"));
    const json body = json::parse(outcome.body);
    EXPECT_EQ(body["content"][2]["input"], json::parse(R"({"ids":[1,2],"note":"a<b"})"));
    EXPECT_EQ(body["stop_reason"], "tool_use");
    EXPECT_EQ(body["usage"]["input_tokens"], 6);
    EXPECT_EQ(body["usage"]["cache_read_input_tokens"], 4);
  }
}

TEST(Answer, ResponsesEventsAreNumberedAndEndWithTheWhole) {
  const Outcome outcome = play({two_calls(), ThinkingMode::kThinking, api::Api::kResponses}, 3);
  std::uint64_t next = 0;
  json last;
  for (const auto& event : test::sse_events(outcome.stream)) {
    last = json::parse(event.data);
    EXPECT_EQ(last["sequence_number"], next++);
    EXPECT_EQ(last["type"], event.name);
  }
  EXPECT_EQ(last["type"], "response.completed");
  const json& output = last["response"]["output"];
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[1]["content"][0]["text"], "Checking.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["arguments"], R"({"ids": [1, 2], "note": "a<b"})");
  const json body = json::parse(outcome.body);
  EXPECT_EQ(body["output"].size(), 4u);
  EXPECT_EQ(body["output"][1]["content"], output[1]["content"]);
  EXPECT_EQ(body["status"], "completed");
}

// B31, with the pieces of the report given as tokens of their own bytes.
TEST(ChoiceText, CutsStopStringsOverTokens) {
  const auto run = [](std::vector<std::string> stops, const std::string& text) {
    ChoiceText choice = stopping_at(std::move(stops));
    std::string out;
    for (const TokenId id : tokenizer().encode(text)) {
      if (!choice.matched()) out += choice.push(id);
    }
    return out + choice.finish();
  };
  EXPECT_EQ(run({"bravo charlie"}, "alpha bravo charlie delta"), "alpha ");
  EXPECT_EQ(run({"abac"}, "ababx"), "ababx");
  EXPECT_EQ(run({"abab"}, "ababx"), "");
  EXPECT_EQ(run({"\n\n", "END"}, "one\ntwo END three"), "one\ntwo ");
  EXPECT_EQ(run({"，"}, "甲，乙"), "甲");
}

TEST(ChoiceText, NeverCutsCharacters) {
  ChoiceText choice = stopping_at({});
  const std::string text = "Repeat: \U0001F600 你好 삼겹살 ďábel é";
  std::string out;
  for (const TokenId id : tokenizer().encode(text)) {
    const std::string piece = choice.push(id);
    EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos);
    out += piece;
  }
  EXPECT_EQ(out + choice.finish(), text);
}

TEST(Answer, LogprobsGoWithTheirTokens) {
  api::GenerationRequest request;
  request.prompt = api::ChatPrompt{};
  request.sampling.top_logprobs = 1;
  const auto writer = api::make_writer(request, {});
  api::AnswerOptions options;
  options.wants_logprobs = true;
  options.thinking = ThinkingMode::kThinking;
  ChoiceAnswer answer(tokenizer(), options);
  ChoiceText text = stopping_at({});
  std::size_t tokens = 0;
  for (const TokenId id : tokenizer().encode("why</think>because \U0001F600")) {
    SampledToken token;
    token.id = id;
    token.logprob = -0.25f;
    token.top = {{id, -0.25f}};
    answer.token(token, text.push(id), false);
    ++tokens;
  }
  SampledToken end;
  end.id = *tokenizer().special().eos;
  answer.token(end, "", true);
  answer.finish(text.finish());
  static_cast<void>(answer.take(true));
  EXPECT_EQ(answer.content_logprobs().size() + answer.reasoning_logprobs().size(), tokens);
  EXPECT_EQ(answer.generated_tokens(), static_cast<std::int64_t>(tokens) + 1);
  std::string bytes;
  for (const auto& token : answer.content_logprobs()) bytes += token.bytes;
  EXPECT_EQ(bytes, "because \U0001F600");
  EXPECT_EQ(answer.reasoning_tokens(), static_cast<std::int64_t>(answer.reasoning_logprobs().size()));
}

}  // namespace
}  // namespace pivot
