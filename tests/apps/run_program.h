// Runs the built `pivot` as a user does: arguments, standard input and environment in; both outputs and the
// exit code out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pivot::test {

struct ProgramResult {
  int exit_code = -1;  // 128 + N for a program that signal N ended
  std::string out;
  std::string err;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// A program that runs beside the test.
class BackgroundProgram {
 public:
  explicit BackgroundProgram(const std::vector<std::string>& arguments, const std::string& input = "",
                             const Environment& environment = {}, bool without_rights = false);
  ~BackgroundProgram();  // kills it where it still runs
  BackgroundProgram(const BackgroundProgram&) = delete;
  BackgroundProgram& operator=(const BackgroundProgram&) = delete;

  void send(int signal_number);
  // Waits for the end of the program.
  ProgramResult result();

 private:
  std::filesystem::path folder_;  // its outputs
  int process_ = -1;
};

// As a user whom file modes stop, also where the tests run as root; nullopt where that user cannot reach the
// program.
std::optional<ProgramResult> run_pivot_without_rights(const std::vector<std::string>& arguments);

ProgramResult run_pivot(const std::vector<std::string>& arguments, const std::string& input = "",
                        const Environment& environment = {});

// `pivot` behind a pseudo-terminal of 100 columns: what the user sees, and what they type.
class TerminalProgram {
 public:
  explicit TerminalProgram(const std::vector<std::string>& arguments, const Environment& environment = {});
  ~TerminalProgram();  // kills it where it still runs
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  void type(const std::string& keys);
  // Reads until `text` has appeared behind what earlier calls waited for; false when the program ended or 120
  // s passed.
  bool wait_for(const std::string& text);
  // Whether each key reaches the program at once, not a line at a time.
  bool takes_keys() const;
  // Everything that has appeared so far.
  const std::string& screen() const { return screen_; }
  // Waits for the end of the program.
  int exit_code();

 private:
  int process_ = -1;
  int terminal_ = -1;
  std::string screen_;
  std::size_t seen_ = 0;
};

}  // namespace pivot::test
