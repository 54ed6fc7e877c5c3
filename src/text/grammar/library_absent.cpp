// For builds without XGrammar.
#include "text/grammar/library.h"

namespace pivot {

bool grammars_available() { return false; }

Result<std::unique_ptr<GrammarLibrary>> make_grammar_library(const std::vector<std::string>&,
                                                             const std::vector<TokenId>&,
                                                             std::shared_ptr<MaskCounters>) {
  return fail(
      ErrorCode::kUnsupported,
      "structured output (JSON schemas, regular expressions, grammars, forced tool calls) needs a build with "
      "XGrammar; this one was made without it, see `pivot --version`");
}

}  // namespace pivot
