// Tool calls as a structural tag, the JSON in which XGrammar takes mixed texts.
#pragma once

#include <string>

#include "base/error.h"
#include "text/grammar/grammar.h"

namespace pivot {

// {"type": "structural_tag", "format": ...} for the markup of specification 7.5. Spaces between the tags are
// those of the markup; JSON values may have up to `max_whitespace` spaces around each of their tokens.
// REQUIRES: check_grammar accepted it.
std::string tool_structural_tag(const ToolCallGrammar& grammar, int max_whitespace);
// The same for a list of texts.
std::string choice_structural_tag(const ChoiceGrammar& grammar);

}  // namespace pivot
