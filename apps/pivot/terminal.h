// What the commands need of a terminal: is there one, how wide, in colour; a progress bar; Ctrl-C.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace pivot::cli {

// "pivot: SENTENCE" on standard error; control characters of the sentence are made visible, so that a
// hostile file name or tensor name cannot drive the terminal.
void print_error(std::string_view sentence);
// "pivot: note: SENTENCE", for things worth knowing that are not failures.
void print_note(std::string_view sentence);

bool is_terminal(int file_descriptor);
// Columns of the terminal behind the descriptor, 80 where there is none.
int terminal_width(int file_descriptor);
// Escape sequences are wanted: a terminal, TERM is not "dumb", and NO_COLOR is unset or empty
// (no-color.org).
bool wants_color(int file_descriptor);

// Columns that the text takes: East Asian wide characters and emoji count 2, combining marks 0.
int display_width(std::string_view utf8);

// The text with its control characters, newline and tab excepted, made visible: what a model or a file says
// must not be able to drive the terminal.
std::string printable(std::string_view utf8);

// Style codes, empty where colour is not wanted.
struct Style {
  std::string_view dim, bold, green, reset;
};
Style style_for(int file_descriptor);

// "1.2 s", "3 min 05 s"; "512 B", "1.4 GiB"; "1 234 567".
std::string format_duration(double seconds);
std::string format_bytes(std::int64_t bytes);
std::string format_count(std::int64_t count);

// One line on standard error, redrawn in place at most ten times a second:
//   loading  [#########-------]  56%  1.2 GiB/s  3 s left
// It draws nothing when standard error is not a terminal, and nothing before 300 ms have passed, so that
// short work stays silent.
class ProgressBar {
 public:
  enum class Unit { kTokens, kBytes };
  ProgressBar(std::string label, Unit unit);
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::int64_t done, std::int64_t total);
  // Erases the line; a later update draws again.
  void clear();

  // The line for a width in columns, without escape codes. Pure, for the tests.
  static std::string line(std::string_view label, Unit unit, std::int64_t done, std::int64_t total,
                          double seconds, int width_columns);

 private:
  std::string label_;
  Unit unit_;
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

// While one of these lives, the first SIGINT sets the flag instead of ending the program; a second one
// that comes before the flag is cleared ends it as usual (exit by signal), so that a stuck program can
// always be stopped.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static bool interrupted();
  // The flag that the engine polls between steps.
  static const std::atomic<bool>& flag();
  static void clear();

 private:
  struct Saved;
  Saved* saved_;
};

}  // namespace pivot::cli
