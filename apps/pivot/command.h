// How a sub-command joins the program: one file with one `add_...` function, one line in commands.cpp.
//
// A command declares its options on the CLI::App that it is given and returns the function to run once
// they are parsed. Results go to standard output, everything else to standard error. The returned int is
// the exit code of a run that did its work (0, or a verdict such as "the checkpoints differ"); an Error is
// printed by main as one sentence, `pivot: ...`, and turned into its sysexits code by the table of
// base/error.h.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "base/error.h"

namespace CLI {
class App;
}

namespace pivot::cli {

using Run = std::function<Result<int>()>;

// What a shell expects of a program that Ctrl-C stopped: 128 + SIGINT. Also the exit code of kCancelled.
inline constexpr int kInterruptedExit = 130;

struct Command {
  std::string_view name;
  std::string_view summary;  // one line of `pivot --help`
  Run (*add)(CLI::App& app);
};

// Every command of this build, in the order of `pivot --help`.
std::span<const Command> command_table();

// One per file of the same name. Every option with a long name also reads the environment variable
// PIVOT_<NAME> (--max-tokens: PIVOT_MAX_TOKENS); main does that for all commands.
Run add_inspect(CLI::App& app);
Run add_diff(CLI::App& app);
Run add_convert(CLI::App& app);
Run add_plan(CLI::App& app);
Run add_generate(CLI::App& app);
Run add_chat(CLI::App& app);
Run add_demo(CLI::App& app);
Run add_logits(CLI::App& app);
Run add_knobs(CLI::App& app);
Run add_recall(CLI::App& app);
Run add_accept(CLI::App& app);
Run add_serve(CLI::App& app);
Run add_metrics(CLI::App& app);
Run add_bench(CLI::App& app);

}  // namespace pivot::cli
