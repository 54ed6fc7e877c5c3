// Walks a constraint along a text, or along tokens drawn from its masks.
#pragma once

#include <random>
#include <string>
#include <string_view>

#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::test {

struct Walk {
  bool allowed = false;   // every token's mask allowed it
  bool complete = false;  // and the text may end there
  bool finished = false;  // and must
  std::string problem;    // where it was not allowed, or an error
};

// Along the tokens that the tokenizer makes of the text.
Walk walk(TokenConstraint& constraint, const Tokenizer& tokenizer, std::string_view text);

// Along tokens drawn evenly from what is allowed, until the constraint is finished or `most` tokens came. A
// stop token is drawn as soon as it is allowed when `eager`. Returns the text; fails the test on any error.
std::string draw(TokenConstraint& constraint, const Tokenizer& tokenizer, std::mt19937& random, int most,
                 bool eager = true);

}  // namespace pivot::test
