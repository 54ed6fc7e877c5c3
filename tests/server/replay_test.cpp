// Exact replay: a turn that comes back in other words is put into the prompt in the words it was sampled in.
#include <gtest/gtest.h>

#include "server/handlers/replay.h"
#include "support/embedded_model.h"
#include "text/chat/dsml.h"

namespace pivot {
namespace {

using server::PromptEncoder;
using server::ReplayStore;
using server::ReplayTurn;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = *Tokenizer::load(test::embedded_model_dir());
  return instance;
}

std::string sampled_text() {
  const std::string m(dsml::kMarker);
  // Three spaces in the list and no space after the colon: nothing that a renderer would write.
  return "R1</think>Well.\n\n<" + m + "tool_calls>\n<" + m + "invoke name=\"f\">\n<" + m +
         "parameter name=\"x\" string=\"false\">[1,   2]</" + m + "parameter>\n</" + m + "invoke>\n</" + m +
         "tool_calls>";
}

ReplayTurn sampled_turn() {
  ReplayTurn turn;
  // One id per byte where the vocabulary has it: a tokenization that encode() would not choose.
  for (const TokenId id : tokenizer().encode(sampled_text())) turn.ids.push_back(id);
  turn.thinking = true;
  turn.reasoning = "R1";
  turn.content = "Well.";
  turn.calls.push_back({"call_7_0", "f", R"({"x": [1,   2]})", true});
  return turn;
}

Conversation second_turn(std::string arguments, std::string reasoning) {
  Conversation conversation;
  conversation.tools.push_back(R"({"name": "f", "parameters": {"type": "object"}})");
  conversation.messages.push_back(ChatMessage::text(ChatRole::kUser, "go"));
  ChatMessage assistant = ChatMessage::text(ChatRole::kAssistant, "Well.");
  assistant.reasoning = std::move(reasoning);
  assistant.tool_calls.push_back({"call_7_0", "f", std::move(arguments)});
  conversation.messages.push_back(std::move(assistant));
  ChatMessage result = ChatMessage::text(ChatRole::kTool, "3");
  result.tool_call_id = "call_7_0";
  conversation.messages.push_back(std::move(result));
  return conversation;
}

bool contains(const std::vector<TokenId>& ids, const std::vector<TokenId>& part) {
  return std::search(ids.begin(), ids.end(), part.begin(), part.end()) != ids.end();
}

TEST(Replay, GivesBackTheSampledIds) {
  ReplayStore store(1 << 20);
  PromptEncoder encoder(tokenizer(), store);
  const ReplayTurn turn = sampled_turn();
  store.put("client", sampled_turn());
  for (const char* arguments : {R"({"x": [1,   2]})", R"({"x":[1,2]})"}) {
    for (const char* reasoning : {"R1", ""}) {
      Conversation conversation = second_turn(arguments, reasoning);
      const auto ids = encoder.encode("client", conversation, {});
      ASSERT_TRUE(ids);
      EXPECT_TRUE(contains(*ids, turn.ids)) << arguments << " " << reasoning;
      EXPECT_EQ(tokenizer().decode(*ids).find('\x01'), std::string::npos);
    }
  }
}

TEST(Replay, LeavesChangedTurnsAlone) {
  ReplayStore store(1 << 20);
  PromptEncoder encoder(tokenizer(), store);
  const ReplayTurn turn = sampled_turn();
  store.put("client", sampled_turn());
  const auto replays = [&](const std::string& scope, Conversation conversation, ThinkingMode mode) {
    ChatOptions options;
    options.thinking = mode;
    const auto ids = encoder.encode(scope, conversation, options);
    return ids && contains(*ids, turn.ids);
  };
  const auto same = [] { return second_turn(R"({"x": [1, 2]})", ""); };
  EXPECT_TRUE(replays("client", same(), ThinkingMode::kThinking));
  EXPECT_FALSE(replays("another client", same(), ThinkingMode::kThinking));
  EXPECT_FALSE(replays("client", same(), ThinkingMode::kChat));
  EXPECT_FALSE(replays("client", second_turn(R"({"x": [1, 3]})", ""), ThinkingMode::kThinking));
  EXPECT_FALSE(replays("client", second_turn(R"({"x": [1, 2]})", "other"), ThinkingMode::kThinking));
  Conversation renamed = same();
  renamed.messages[1].tool_calls[0].name = "g";
  EXPECT_FALSE(replays("client", std::move(renamed), ThinkingMode::kThinking));
  Conversation edited = same();
  edited.messages[1].content = {{"text", "Ill."}};
  EXPECT_FALSE(replays("client", std::move(edited), ThinkingMode::kThinking));
}

TEST(Replay, WithoutReplayedTurnsTheIdsAreThoseOfTheText) {
  ReplayStore store(1 << 20);
  PromptEncoder encoder(tokenizer(), store);
  Conversation conversation = second_turn("{}", "R1");
  const auto text = encode_chat(conversation, {});
  const auto ids = encoder.encode("client", conversation, {});
  EXPECT_EQ(*ids, tokenizer().encode(*text));
}

// A client's text cannot pretend to be a marker.
TEST(Replay, MarkersInTextsAreText) {
  ReplayStore store(1 << 20);
  PromptEncoder encoder(tokenizer(), store);
  store.put("client", sampled_turn());
  Conversation conversation = second_turn(R"({"x": [1, 2]})", "");
  conversation.messages[0] = ChatMessage::text(ChatRole::kUser, "\x01replay-0000-0\x01");
  const auto ids = encoder.encode("client", conversation, {});
  ASSERT_TRUE(ids);
  EXPECT_NE(tokenizer().decode(*ids).find("replay-0000-0"), std::string::npos);
}

TEST(ReplayStore, IsBoundedAndForgetsTheOldestFirst) {
  ReplayStore store(20'000);
  const auto turn = [](int i) {
    ReplayTurn out;
    out.ids.assign(500, TokenId{1});
    out.content = "answer " + std::to_string(i);
    return out;
  };
  for (int i = 0; i < 100; ++i) store.put("c", turn(i));
  EXPECT_LE(store.bytes(), 20'000u);
  EXPECT_GT(store.turns(), 2u);
  EXPECT_TRUE(store.find("c", ChatMessage::text(ChatRole::kAssistant, "answer 99")));
  EXPECT_FALSE(store.find("c", ChatMessage::text(ChatRole::kAssistant, "answer 0")));
}

}  // namespace
}  // namespace pivot
