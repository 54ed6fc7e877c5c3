#include "text/grammar/pattern_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "text/grammar/grammar.h"

namespace pivot {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;  // far beyond any limit, and safe to multiply with

// A reader of what regular expressions and EBNF have in common. Sizes count characters, classes and names
// once each, and what is repeated as often as it can be.
class Scanner {
 public:
  enum class Syntax { kRegex, kEbnf };

  Scanner(std::string_view text, Syntax syntax, std::int64_t limit)
      : text_(text), syntax_(syntax), limit_(limit) {}

  std::string run() {
    groups_.push_back({});
    while (at_ < text_.size()) {
      if (std::string problem = step(); !problem.empty()) return problem;
    }
    if (groups_.size() != 1) return fmt::format("{} of its brackets are not closed", groups_.size() - 1);
    close_atom();
    return check_size();
  }
  // After run() found no problem.
  std::int64_t size() const { return groups_.front().size; }

 private:
  struct Group {
    std::int64_t size = 0;  // of what is complete in it
    std::int64_t atom = 0;  // of the last atom: a quantifier may follow
  };
  // A schema's pattern of a few kilobytes nests no deeper; the library recurses by group.
  static constexpr std::size_t kMaxGroups = 64;

  std::string step() {
    const char c = text_[at_];
    if (c == '\\') {
      if (at_ + 1 >= text_.size()) return "it ends with a backslash";
      at_ += 2;
      return add_atom(1);
    }
    if (c == '[') return skip_class();
    if (c == '(') {
      if (groups_.size() > kMaxGroups) return fmt::format("its groups nest more than {} deep", kMaxGroups);
      groups_.push_back({});
      ++at_;
      return {};
    }
    if (c == ')') return close_group();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      return {};
    }
    if (c == '{') return repeat();
    if (syntax_ == Syntax::kEbnf) return step_ebnf(c);
    ++at_;
    return c == '|' ? std::string() : add_atom(1);
  }

  std::string step_ebnf(char c) {
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
      return {};
    }
    if (c == '"') {
      std::size_t end = at_ + 1;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') end += text_[end] == '\\' ? 2 : 1;
      if (end >= text_.size() || text_[end] == '\n') return "a quoted text in it is not closed";
      const auto length = static_cast<std::int64_t>(end - at_ - 1);
      at_ = end + 1;
      return add_atom(std::max<std::int64_t>(length, 1));
    }
    if (name_character(c)) {
      while (at_ < text_.size() && name_character(text_[at_])) ++at_;
      return add_atom(1);
    }
    if (c == ':') {
      // A new rule begins: what came before it is complete.
      close_atom();
      if (std::string problem = check_size(); !problem.empty()) return problem;
      groups_.back().size = 0;
    }
    ++at_;
    return {};
  }

  static bool name_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  }

  std::string skip_class() {
    std::size_t end = at_ + 1;
    if (end < text_.size() && text_[end] == '^') ++end;
    // The first bracket in a class may stand for itself.
    if (end < text_.size() && text_[end] == ']' && syntax_ == Syntax::kRegex) ++end;
    while (end < text_.size() && text_[end] != ']') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return "a character class in it is not closed";
    at_ = end + 1;
    return add_atom(1);
  }

  std::string close_group() {
    if (groups_.size() == 1) return "it closes a bracket that it did not open";
    close_atom();
    const std::int64_t size = groups_.back().size;
    groups_.pop_back();
    ++at_;
    return add_atom(std::max<std::int64_t>(size, 1));
  }

  // {m}, {m,}, {m,n}; anything else in braces is text to a regular expression.
  std::string repeat() {
    std::size_t end = at_ + 1;
    skip_spaces(end);
    const std::optional<std::int64_t> low = number(end);
    std::optional<std::int64_t> high = low;
    skip_spaces(end);
    if (end < text_.size() && text_[end] == ',') {
      ++end;
      skip_spaces(end);
      high = number(end);
      skip_spaces(end);
    }
    if ((!low && !high) || end >= text_.size() || text_[end] != '}') {
      ++at_;
      return add_atom(1);
    }
    at_ = end + 1;
    Group& group = groups_.back();
    const std::int64_t times = std::max<std::int64_t>({low.value_or(0), high.value_or(0), 1});
    group.atom = std::min(kHuge, group.atom * std::min(times, kHuge / std::max<std::int64_t>(group.atom, 1)));
    return group.atom > limit_ ? too_large() : std::string();
  }

  std::optional<std::int64_t> number(std::size_t& at) const {
    std::int64_t value = 0;
    bool any = false;
    for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at) {
      value = std::min(kHuge, value * 10 + (text_[at] - '0'));
      any = true;
    }
    return any ? std::optional(value) : std::nullopt;
  }
  void skip_spaces(std::size_t& at) const {
    if (syntax_ == Syntax::kEbnf)
      while (at < text_.size() && text_[at] == ' ') ++at;
  }

  std::string add_atom(std::int64_t size) {
    close_atom();
    groups_.back().atom = size;
    return check_size();
  }
  void close_atom() {
    Group& group = groups_.back();
    group.size = std::min(kHuge, group.size + group.atom);
    group.atom = 0;
  }
  std::string check_size() const { return groups_.back().size > limit_ ? too_large() : std::string(); }
  std::string too_large() const {
    return fmt::format("with its repeats written out it has more than {} characters; repeat less", limit_);
  }

  std::string_view text_;
  Syntax syntax_;
  std::int64_t limit_;
  std::size_t at_ = 0;
  std::vector<Group> groups_;
};

}  // namespace

PatternSize measure_pattern(std::string_view pattern, const GrammarLimits& limits) {
  if (pattern.empty()) return {0, "it is empty"};
  if (pattern.size() > limits.max_pattern_bytes)
    return {0,
            fmt::format("it has {} bytes; at most {} are allowed", pattern.size(), limits.max_pattern_bytes)};
  Scanner scanner(pattern, Scanner::Syntax::kRegex, limits.max_pattern_states);
  std::string problem = scanner.run();
  return {scanner.size(), std::move(problem)};
}

std::string ebnf_problem(std::string_view text, const GrammarLimits& limits) {
  if (text.empty()) return "it is empty";
  return Scanner(text, Scanner::Syntax::kEbnf, limits.max_pattern_states).run();
}

}  // namespace pivot
