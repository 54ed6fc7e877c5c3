// pivot: thin entry point. It builds the command line from the command table, runs one command, and turns its
// result into an exit code.
#include <CLI/CLI.hpp>
#include <clocale>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.h"
#include "command.h"
#include "environment.h"
#include "pivot_version.h"
#include "terminal.h"
#include "version.h"

namespace pivot::cli {
namespace {

constexpr int kUsage = 64;  // EX_USAGE

int report(const Error& error) {
  print_error(error.to_string());
  return error.code == ErrorCode::kCancelled ? kInterruptedExit : mapping(error.code).exit_code;
}

// CLI11's sentences, with what to do next.
int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* used = &app;
  std::string path = "pivot";
  for (const auto* sub : app.get_subcommands()) {
    used = sub;
    path += " " + sub->get_name();
  }
  std::string message = error.what();
  while (!message.empty() && (message.back() == '\n' || message.back() == '.')) message.pop_back();
  print_error(fmt::format("{}; see `{} --help`", message, path));
  static_cast<void>(used);
  return kUsage;
}

int run(int argc, char** argv) {
  CLI::App app{"Inspects, plans, serves and proves DeepSeek-V4-Flash.", "pivot"};
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  bool version = false;
  bool json = false;
  std::string log_level = "warn";
  app.add_flag("--version", version, "Print commit, build type, back-ends and architectures, then exit");
  app.add_flag("--json", json, "With --version: print one JSON object");
  app.add_option("--log-level", log_level, "trace, debug, info, warn, error or off (standard error)")
      ->envname("PIVOT_LOG_LEVEL")
      ->capture_default_str();
  app.footer(
      "Exit codes follow sysexits.h: 0 done, 64 usage, 65 bad data, 66 no input, 70 a bug, 73 cannot write, "
      "74 I/O.\nEvery option is also an environment variable: --max-tokens is PIVOT_MAX_TOKENS.");

  std::vector<std::pair<CLI::App*, Run>> commands;
  for (const Command& command : command_table()) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    sub->get_formatter()->column_width(34);
    sub->fallthrough();  // the program's own options may stand behind the command, too
    commands.emplace_back(sub, command.add(*sub));
    name_environment_variables(*sub);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  }
  // Otherwise it would be read past: the commands' own --json stands behind them.
  if (json && !version) {
    print_error("--json is wanted behind a command that has it, or with --version; see `pivot --help`");
    return kUsage;
  }
  if (const auto logging = init_logging(log_level); !logging) return report(logging.error());
  if (version) {
    std::printf("%s\n", json ? version_json().c_str() : version_text().c_str());
    return 0;
  }
  for (const auto& [sub, run_command] : commands) {
    if (!sub->parsed()) continue;
    const Result<int> result = run_command();
    return result ? *result : report(result.error());
  }
  print_error("a command is wanted; see `pivot --help`");
  return kUsage;
}

}  // namespace
}  // namespace pivot::cli

int main(int argc, char** argv) {
  // Characters are UTF-8 whatever LANG says; only the character set, so that numbers keep their point.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  // Nothing below may throw; if something does all the same, say so instead of dying with a core.
  try {
    return pivot::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    pivot::cli::print_error("out of memory; give the process more, or a smaller --max-context");
    return pivot::mapping(pivot::ErrorCode::kOutOfMemory).exit_code;
  } catch (const std::exception& error) {
    pivot::cli::print_error(std::string("internal fault: ") + error.what());
    return pivot::mapping(pivot::ErrorCode::kInternal).exit_code;
  }
}
