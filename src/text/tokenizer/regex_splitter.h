// One isolating split of a pre-tokenizer by a regular expression or a literal text, on PCRE2 with its
// compiler (JIT).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {

// Immutable; any number of threads may split at the same time.
class RegexSplitter {
 public:
  // The pattern is in the reference's dialect (Oniguruma, Ruby syntax). Constructs that mean something else
  // to PCRE2 are refused with kUnsupported, and so is what PCRE2 cannot compile. Character properties follow
  // the PCRE2 library's Unicode version: characters assigned since may be cut differently from the reference
  // (DeepseekSplitter has its own tables and does not depend on it).
  static Result<RegexSplitter> create(std::string_view pattern, bool literal);
  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // Appends the pieces of a text: each match, and each stretch between matches; none is empty and joined they
  // are the text. REQUIRES: text is valid UTF-8. Where matching exceeds its limits (a pattern that backtracks
  // without end) the rest is one piece and a warning is logged.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace pivot
