// The program's own options, before and behind a command.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "run_program.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

TEST(GlobalOptions, TheLogLevelIsTakenBeforeAndBehindEveryCommand) {
  const std::string help = run_pivot({"--help"}).out;
  for (const char* command : {"inspect", "diff", "convert", "plan", "serve", "generate", "chat", "demo",
                              "logits", "recall", "accept", "bench", "metrics", "knobs"}) {
    EXPECT_NE(help.find(command), std::string::npos);
    for (const auto& arguments : {std::vector<std::string>{"--log-level", "loud", command},
                                  std::vector<std::string>{command, "--log-level", "loud"}}) {
      const ProgramResult result = run_pivot(arguments);
      EXPECT_EQ(result.exit_code, 64) << command;
      // A command that also wants a MODEL may say that first.
      EXPECT_TRUE(result.err.find("log level is one of") != std::string::npos ||
                  result.err.find("required") != std::string::npos)
          << result.err;
    }
  }
  EXPECT_EQ(run_pivot({"knobs", "--log-level", "off"}).exit_code, 0);
}

TEST(GlobalOptions, JsonBeforeACommandIsNotReadPast) {
  const ProgramResult result = run_pivot({"--json", "knobs"});
  EXPECT_EQ(result.exit_code, 64);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("--json"), std::string::npos) << result.err;
  EXPECT_EQ(run_pivot({"knobs", "--json"}).exit_code, 0);
}

// What `pivot serve` writes until it listens and is told to end.
std::string log_of_server(std::vector<std::string> arguments, const Environment& environment = {}) {
  const auto socket = scratch_dir() / "serve.sock";
  std::filesystem::remove(socket);
  for (const char* argument : {"embedded", "--port", "0", "--max-model-len", "512", "--unix-socket"})
    arguments.emplace_back(argument);
  arguments.push_back(socket.string());
  BackgroundProgram server(arguments, "", environment);
  for (int i = 0; i < 6000 && !std::filesystem::exists(socket); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  server.send(SIGTERM);
  const ProgramResult result = server.result();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.err;
}

TEST(GlobalOptions, TheServerLogsAsMuchAsItIsTold) {
  const std::string listening = "\"event\":\"listening\"";
  EXPECT_NE(log_of_server({"serve"}).find(listening), std::string::npos);
  EXPECT_EQ(log_of_server({"--log-level", "warn", "serve"}), "");
  EXPECT_EQ(log_of_server({"serve", "--log-level", "warn"}), "");
  EXPECT_EQ(log_of_server({"serve"}, {{"PIVOT_LOG_LEVEL", "warn"}}), "");
  // A flag wins over the environment.
  EXPECT_NE(log_of_server({"--log-level", "info", "serve"}, {{"PIVOT_LOG_LEVEL", "warn"}}).find(listening),
            std::string::npos);
  const auto file = scratch_dir() / "level.toml";
  std::ofstream(file) << "[operation]\nlog-level = \"warn\"\n";
  EXPECT_EQ(log_of_server({"serve", "--config", file.string()}), "");
}

}  // namespace
}  // namespace pivot::test
