#include "run_program.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "support/patience.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

[[noreturn]] void execute(const std::vector<std::string>& arguments, const Environment& environment) {
  // What the developer has set must not change the tests.
  for (const char* name :
       {"PIVOT_DEVICE", "PIVOT_KNOB", "PIVOT_THREADS", "PIVOT_MAX_TOKENS", "PIVOT_JSON", "NO_COLOR"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv = {const_cast<char*>(PIVOT_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(PIVOT_BINARY, argv.data());
  ::_exit(127);
}

constexpr int kOutOfReach = 126;

// Root becomes "nobody"; false where nobody cannot start the program.
bool give_up_rights() {
  constexpr unsigned kNobody = 65534;
  if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0))
    return false;
  return ::access(PIVOT_BINARY, X_OK) == 0;
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

BackgroundProgram::BackgroundProgram(const std::vector<std::string>& arguments, const std::string& input,
                                     const Environment& environment, bool without_rights)
    : folder_(scratch_dir()) {
  // Files instead of pipes: nothing can block on a full one.
  std::ofstream(folder_ / "in", std::ios::binary) << input;
  process_ = ::fork();
  if (process_ == 0) {
    const int in = ::open((folder_ / "in").c_str(), O_RDONLY);
    const int out = ::open((folder_ / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = ::open((folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(in, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    if (without_rights && !give_up_rights()) ::_exit(kOutOfReach);
    execute(arguments, environment);
  }
}

BackgroundProgram::~BackgroundProgram() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
}

void BackgroundProgram::send(int signal_number) { ::kill(process_, signal_number); }

ProgramResult BackgroundProgram::result() {
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  return {exit_code_of(status), contents(folder_ / "out"), contents(folder_ / "err")};
}

ProgramResult run_pivot(const std::vector<std::string>& arguments, const std::string& input,
                        const Environment& environment) {
  return BackgroundProgram(arguments, input, environment).result();
}

std::optional<ProgramResult> run_pivot_without_rights(const std::vector<std::string>& arguments) {
  ProgramResult result = BackgroundProgram(arguments, "", {}, true).result();
  if (result.exit_code == kOutOfReach) return std::nullopt;
  return result;
}

TerminalProgram::TerminalProgram(const std::vector<std::string>& arguments, const Environment& environment) {
  winsize size{};
  size.ws_col = 100;
  size.ws_row = 30;
  process_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  if (process_ == 0) {
    ::setenv("TERM", "xterm", 1);
    execute(arguments, environment);
  }
}

TerminalProgram::~TerminalProgram() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ::close(terminal_);
}

void TerminalProgram::type(const std::string& keys) {
  ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

bool TerminalProgram::takes_keys() const {
  termios mode{};
  return ::tcgetattr(terminal_, &mode) == 0 && (mode.c_lflag & ICANON) == 0;
}

bool TerminalProgram::wait_for(const std::string& text) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const std::size_t at = screen_.find(text, seen_);
    if (at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    if (std::chrono::steady_clock::now() > end) return false;
    pollfd wait{terminal_, POLLIN, 0};
    if (::poll(&wait, 1, 500) <= 0) continue;
    char buffer[4096];
    const ssize_t count = ::read(terminal_, buffer, sizeof buffer);
    if (count <= 0) return false;
    screen_.append(buffer, static_cast<std::size_t>(count));
  }
}

int TerminalProgram::exit_code() {
  // A program that does not end fails its test here, with its screen, and not by the time limit of all tests.
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "the program has not ended";
      ::kill(process_, SIGKILL);
      break;
    }
    pollfd wait{terminal_, POLLIN, 0};
    if (::poll(&wait, 1, 500) <= 0) continue;
    char buffer[4096];
    const ssize_t count = ::read(terminal_, buffer, sizeof buffer);
    if (count <= 0) break;
    screen_.append(buffer, static_cast<std::size_t>(count));
  }
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  return exit_code_of(status);
}

}  // namespace pivot::test
