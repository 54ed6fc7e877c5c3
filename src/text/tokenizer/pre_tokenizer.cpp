#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>

namespace pivot {

Result<PreTokenizer> PreTokenizer::create(const std::vector<SplitPattern>& splits, Matchers matchers) {
  PreTokenizer result;
  const bool is_deepseek =
      std::equal(splits.begin(), splits.end(), kDeepseekPatterns.begin(), kDeepseekPatterns.end(),
                 [](const SplitPattern& split, std::string_view known) {
                   return !split.literal && split.pattern == known;
                 });
  if (is_deepseek && matchers == Matchers::kFastest) {
    result.deepseek_.emplace();
    return result;
  }
  for (const SplitPattern& split : splits) {
    PIVOT_TRY(RegexSplitter step, RegexSplitter::create(split.pattern, split.literal));
    result.steps_.push_back(std::move(step));
  }
  return result;
}

void PreTokenizer::split_by_regex(std::string_view text, Workspace& workspace) const {
  workspace.pieces.assign(text.empty() ? 0 : 1, text);
  for (const RegexSplitter& step : steps_) {
    workspace.next.clear();
    for (const std::string_view piece : workspace.pieces) step.split(piece, workspace.next);
    workspace.pieces.swap(workspace.next);
  }
}

}  // namespace pivot
