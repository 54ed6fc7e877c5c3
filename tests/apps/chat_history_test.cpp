#include "chat_history.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/embedded_model.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::cli {
namespace {

class ChatHistoryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(test::embedded_model_dir());
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    tokenizer_.emplace(*std::move(loaded));
  }
  // Tokens of a text, split as no tokenizer would: byte by byte where it can.
  std::vector<TokenId> odd_tokens(const std::string& text) const {
    std::vector<TokenId> ids;
    for (const char c : text) {
      const auto one = tokenizer_->encode(std::string(1, c));
      ids.insert(ids.end(), one.begin(), one.end());
    }
    return ids;
  }
  TokenId eos() const { return *tokenizer_->special().eos; }
  static std::size_t common(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
    std::size_t n = 0;
    while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
    return n;
  }

  std::optional<Tokenizer> tokenizer_;
  ChatOptions chat_{ThinkingMode::kChat, true, ReasoningEffort::kDefault, ChatEncoding::kPreview, ""};
};

TEST_F(ChatHistoryTest, KeepsTheTokensThatWereSampled) {
  ChatHistory history(*tokenizer_);
  history.set_system("Be brief.");
  const auto first = history.ask("Hello there", chat_);
  ASSERT_TRUE(first);
  std::vector<TokenId> answer = odd_tokens("General answer");
  ASSERT_NE(answer, tokenizer_->encode("General answer"));
  answer.push_back(eos());
  history.answered(answer, ThinkingMode::kChat);
  const auto second = history.ask("And then?", chat_);
  ASSERT_TRUE(second);
  std::vector<TokenId> expected = *first;
  expected.insert(expected.end(), answer.begin(), answer.end());
  EXPECT_EQ(common(*second, expected), expected.size());
  EXPECT_EQ(tokenizer_->decode(*second),
            "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hello there<｜Assistant｜></think>General answer"
            "<｜end▁of▁sentence｜><｜User｜>And then?<｜Assistant｜></think>");
}

TEST_F(ChatHistoryTest, ClosesAnAnswerThatWasCutOff) {
  ChatHistory history(*tokenizer_);
  const auto first = history.ask("Hello", chat_);
  ASSERT_TRUE(first);
  history.answered(odd_tokens("cut o"), ThinkingMode::kChat);
  const auto second = history.ask("x", chat_);
  ASSERT_TRUE(second);
  const std::size_t behind_answer = first->size() + odd_tokens("cut o").size();
  ASSERT_GT(second->size(), behind_answer);
  EXPECT_EQ((*second)[behind_answer], eos());
}

TEST_F(ChatHistoryTest, DropsReasoningButKeepsThePromptTokens) {
  ChatHistory history(*tokenizer_);
  ChatOptions thinking = chat_;
  thinking.thinking = ThinkingMode::kThinking;
  const auto first = history.ask("Hello", thinking);
  ASSERT_TRUE(first);
  std::vector<TokenId> answer = odd_tokens("I think");
  answer.push_back(*tokenizer_->special().think_close);
  for (const TokenId id : odd_tokens("so")) answer.push_back(id);
  answer.push_back(eos());
  history.answered(answer, ThinkingMode::kThinking);
  EXPECT_EQ(history.messages().back().reasoning, "I think");
  const auto second = history.ask("more", thinking);
  ASSERT_TRUE(second);
  EXPECT_EQ(common(*second, *first), first->size() - 1);  // all but think-open
  EXPECT_EQ(tokenizer_->decode(*second).find("I think"), std::string::npos);
}

TEST_F(ChatHistoryTest, WithdrawsAnOpenTurn) {
  ChatHistory history(*tokenizer_);
  const auto first = history.ask("Hello", chat_);
  ASSERT_TRUE(first);
  history.withdraw();
  EXPECT_TRUE(history.messages().empty());
  EXPECT_EQ(history.ask("Hello", chat_).value(), *first);
}

TEST_F(ChatHistoryTest, SavesWhatTheConversationReaderReads) {
  ChatHistory history(*tokenizer_);
  history.set_system("S");
  ASSERT_TRUE(history.ask("u \"quoted\" 你好", chat_));
  history.answered(odd_tokens("a"), ThinkingMode::kChat);
  const auto conversation = parse_conversation(history.to_json());
  ASSERT_TRUE(conversation);
  ASSERT_EQ(conversation->messages.size(), 3u);
  EXPECT_EQ(conversation->messages[1].content[0].text, "u \"quoted\" 你好");
  EXPECT_EQ(conversation->messages[2].role, ChatRole::kAssistant);
}

}  // namespace
}  // namespace pivot::cli
