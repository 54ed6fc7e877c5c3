// Collects everything that is wrong with an input, so that one Error reports all of it (fault B24: not one
// per start).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {

class Problems {
 public:
  // At most this many sentences are spelled out; the rest is counted.
  static constexpr std::size_t kMaxListed = 20;

  template <class... Args>
  void add(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    add_sentence(code, fmt::format(format, std::forward<Args>(args)...));
  }
  void add_sentence(ErrorCode code, std::string sentence);
  // Takes over a failure met on the way, contexts included.
  void add(const Error& error) { add_sentence(error.code, error.to_string()); }

  bool empty() const { return count_ == 0; }
  std::size_t count() const { return count_; }
  // The sentences themselves, at most kMaxListed.
  const std::vector<std::string>& sentences() const { return sentences_; }

  // One problem: "SUBJECT: sentence". Several: "SUBJECT has 3 problems:" and one line each. The code is that
  // of the first problem. REQUIRES: not empty().
  Error to_error(std::string_view subject) const;

 private:
  std::size_t count_ = 0;
  ErrorCode code_ = ErrorCode::kInvalidData;
  std::vector<std::string> sentences_;
};

// A name from an untrusted file, fit for a message: in double quotes, control bytes escaped, cut at 120
// bytes.
std::string quote_name(std::string_view name);

}  // namespace pivot
