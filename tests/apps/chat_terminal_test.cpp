// `pivot chat` behind a pseudo-terminal: what a person sees and types.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "run_program.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

// The prompt in bold, as a terminal shows it before each message.
const std::string kPrompt = "\x1b[1m>\x1b[0m ";

TEST(ChatTerminal, TalksStopsAndSaves) {
  const auto saved = scratch_dir() / "saved.json";
  TerminalProgram chat({"chat", "embedded", "--greedy"});
  ASSERT_TRUE(chat.wait_for("/help lists the commands")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();
  EXPECT_TRUE(chat.takes_keys()) << "a Ctrl-D typed as soon as the prompt shows would be lost";
  chat.type("What is the secret côde?\r");
  ASSERT_TRUE(chat.wait_for("tokens/s")) << chat.screen();
  ASSERT_TRUE(chat.wait_for("context ")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();

  // The second turn goes on from the state of the first.
  chat.type("And now?\r");
  ASSERT_TRUE(chat.wait_for("reused")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();

  // Ctrl-C at the prompt clears the line and goes on.
  chat.type("nonsense");
  ASSERT_TRUE(chat.wait_for("nonsense")) << chat.screen();
  chat.type("\x03");
  ASSERT_TRUE(chat.wait_for("^C")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();

  // The line before comes back from the history; a command with a typing error is told apart from a message.
  chat.type("/sav\r");
  ASSERT_TRUE(chat.wait_for("is not a command")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();
  chat.type("/save " + saved.string() + "\r");
  ASSERT_TRUE(chat.wait_for("Saved 4 messages")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();
  chat.type("\x1b[A\x1b[A\r");  // two lines up: /sav
  ASSERT_TRUE(chat.wait_for("is not a command")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();
  chat.type("/save /nonexistent/folder/x\r");
  ASSERT_TRUE(chat.wait_for("pivot: ")) << chat.screen();
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();
  chat.type("\x04");
  EXPECT_EQ(chat.exit_code(), 0) << chat.screen();

  std::ifstream file(saved);
  const auto json = nlohmann::json::parse(file);
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json[0]["content"], "What is the secret côde?");
}

TEST(ChatTerminal, InterruptEndsTheAnswerAndNotTheProgram) {
  // Thinking without an end: an answer that ended by itself in the moment of the Ctrl-C would lose its last
  // lines, because an interrupt makes the terminal forget the output that nobody has read yet.
  TerminalProgram chat({"chat", "embedded", "--greedy", "--think", "on", "--ignore-eos"});
  ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();
  for (int turn = 0; turn < 2; ++turn) {
    chat.type("Tell a story\r");
    ASSERT_TRUE(chat.wait_for("\x1b[2m")) << chat.screen();
    chat.type("\x03");
    ASSERT_TRUE(chat.wait_for("context ")) << chat.screen();
    ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.screen();
  }
  chat.type("/quit\r");
  EXPECT_EQ(chat.exit_code(), 0) << chat.screen();
}

TEST(ChatTerminal, StaysPlainWithNoColor) {
  TerminalProgram chat({"chat", "embedded", "--greedy", "--max-tokens", "3"}, {{"NO_COLOR", "1"}});
  ASSERT_TRUE(chat.wait_for("> ")) << chat.screen();
  chat.type("hi\r");
  ASSERT_TRUE(chat.wait_for("context ")) << chat.screen();
  chat.type("/quit\r");
  EXPECT_EQ(chat.exit_code(), 0) << chat.screen();
  EXPECT_EQ(chat.screen().find("\x1b[2m"), std::string::npos) << chat.screen();
  EXPECT_EQ(chat.screen().find("\x1b[1m"), std::string::npos) << chat.screen();
}

}  // namespace
}  // namespace pivot::test
