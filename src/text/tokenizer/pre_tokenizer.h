// The pre-tokenizer of a tokenizer.json: a sequence of isolating splits that cut a text into words for the
// BPE.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/tokenizer/deepseek_splitter.h"
#include "text/tokenizer/regex_splitter.h"

namespace pivot {

struct SplitPattern {
  std::string pattern;
  bool literal = false;  // {"String": ...} rather than {"Regex": ...}
};

class PreTokenizer {
 public:
  struct Workspace {
    std::vector<std::string_view> pieces;
    std::vector<std::string_view> next;
  };
  enum class Matchers { kFastest, kRegexOnly };  // the second for tests that compare the two

  // Errors: those of RegexSplitter::create.
  static Result<PreTokenizer> create(const std::vector<SplitPattern>& splits,
                                     Matchers matchers = Matchers::kFastest);

  // Calls sink(std::string_view) for each word; the words joined are the text. REQUIRES: text is valid UTF-8.
  template <class Sink>
  void split(std::string_view text, Workspace& workspace, Sink&& sink) const {
    if (deepseek_) return deepseek_->split(text, std::forward<Sink>(sink));
    split_by_regex(text, workspace);
    for (const std::string_view piece : workspace.pieces) sink(piece);
  }
  bool by_hand() const { return deepseek_.has_value(); }

 private:
  void split_by_regex(std::string_view text, Workspace& workspace) const;

  std::optional<DeepseekSplitter> deepseek_;  // where the patterns are DeepSeek's
  std::vector<RegexSplitter> steps_;          // otherwise
};

}  // namespace pivot
