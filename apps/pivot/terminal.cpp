#include "terminal.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <locale.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cwchar>

namespace pivot::cli {
namespace {

void print_line(std::string_view prefix, std::string_view sentence) {
  std::string line(prefix);
  for (const char c : printable(sentence)) line += c == '\n' || c == '\t' ? ' ' : c;
  line += '\n';
  std::fflush(stdout);  // keep the order of the two streams when both end in one file
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

std::string printable(std::string_view utf8) {
  std::string text;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    // U+0080 to U+009F, which some terminals take for escape sequences, are C2 80 to C2 9F.
    const bool is_c1 = byte == 0xC2 && i + 1 < utf8.size() && static_cast<unsigned char>(utf8[i + 1]) < 0xA0;
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      text += fmt::format("\\x{:02x}", byte);
    } else if (is_c1) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(utf8[++i]));
    } else {
      text += utf8[i];
    }
  }
  return text;
}

void print_error(std::string_view sentence) { print_line("pivot: ", sentence); }
void print_note(std::string_view sentence) { print_line("pivot: note: ", sentence); }

bool is_terminal(int file_descriptor) { return ::isatty(file_descriptor) == 1; }

int terminal_width(int file_descriptor) {
  winsize size{};
  if (::ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool wants_color(int file_descriptor) {
  if (!is_terminal(file_descriptor)) return false;
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

int display_width(std::string_view utf8) {
  // Widths are a matter of the character set alone, so one locale does for everybody, whatever LANG says.
  static const locale_t utf8_locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t previous = utf8_locale != nullptr ? ::uselocale(utf8_locale) : nullptr;
  int columns = 0;
  std::mbstate_t state{};
  for (std::size_t at = 0; at < utf8.size();) {
    wchar_t character = 0;
    const std::size_t length = std::mbrtowc(&character, utf8.data() + at, utf8.size() - at, &state);
    if (length == 0 ||
        length > utf8.size() - at) {  // a NUL, or bytes that are not UTF-8: shown as one replacement
      state = {};
      columns += length == 0 ? 0 : 1;
      ++at;
      continue;
    }
    columns += std::max(0, ::wcwidth(character));  // -1 (a control character) takes none
    at += length;
  }
  if (previous != nullptr) ::uselocale(previous);
  return columns;
}

Style style_for(int file_descriptor) {
  if (!wants_color(file_descriptor)) return {};
  return {"\x1b[2m", "\x1b[1m", "\x1b[32m", "\x1b[0m"};
}

std::string format_duration(double seconds) {
  if (seconds < 0.0995) return fmt::format("{:.0f} ms", std::max(0.0, seconds) * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::min(seconds + 0.5, 1e15));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1023.95 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_count(std::int64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') text += ' ';
    text += digits[i];
  }
  return text;
}

ProgressBar::ProgressBar(std::string label, Unit unit)
    : label_(std::move(label)),
      unit_(unit),
      enabled_(is_terminal(STDERR_FILENO)),
      start_(std::chrono::steady_clock::now()),
      last_draw_(start_) {}

ProgressBar::~ProgressBar() { clear(); }

std::string ProgressBar::line(std::string_view label, Unit unit, std::int64_t done, std::int64_t total,
                              double seconds, int width_columns) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0.0;
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0.0;
  std::string right = fmt::format("{:3.0f}%", share * 100);
  if (rate > 0) {
    right += unit == Unit::kBytes ? fmt::format("  {}/s", format_bytes(static_cast<std::int64_t>(rate)))
                                  : fmt::format("  {:.0f} tokens/s", rate);
    if (done < total) right += "  " + format_duration(static_cast<double>(total - done) / rate) + " left";
  }
  const int fixed = display_width(label) + display_width(right) + 6;  // "L  [" "]  R"
  const int cells = std::min(40, width_columns - fixed - 1);
  if (cells < 4) {
    std::string text = fmt::format("{}  {}", label, right);
    return display_width(text) < width_columns ? text : fmt::format("{:3.0f}%", share * 100);
  }
  const int filled = static_cast<int>(share * cells + 0.5);
  return fmt::format("{}  [{}{}]  {}", label, std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(cells - filled), '-'), right);
}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (seconds < 0.3 || now - last_draw_ < std::chrono::milliseconds(100)) return;
  last_draw_ = now;
  drawn_ = true;
  std::fflush(stdout);
  const std::string text =
      "\r" + line(label_, unit_, done, total, seconds, terminal_width(STDERR_FILENO)) + "\x1b[K";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void ProgressBar::clear() {
  if (!drawn_) return;
  drawn_ = false;
  std::fputs("\r\x1b[K", stderr);
}

namespace {

std::atomic<bool> interrupt_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may touch it

void on_interrupt(int signal_number) {
  if (interrupt_flag.exchange(true)) {
    // The second one: die of it, as if no handler had been there.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(signal_number, &usual, nullptr);
    ::raise(signal_number);
  }
}

}  // namespace

struct InterruptScope::Saved {
  struct sigaction action;
};

InterruptScope::InterruptScope() : saved_(new Saved) {
  clear();
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigemptyset(&action.sa_mask);  // no SA_RESTART: a blocking read returns, so that a prompt sees Ctrl-C
  ::sigaction(SIGINT, &action, &saved_->action);
}

InterruptScope::~InterruptScope() {
  ::sigaction(SIGINT, &saved_->action, nullptr);
  delete saved_;
}

bool InterruptScope::interrupted() { return interrupt_flag.load(); }
const std::atomic<bool>& InterruptScope::flag() { return interrupt_flag; }
void InterruptScope::clear() { interrupt_flag.store(false); }

}  // namespace pivot::cli
