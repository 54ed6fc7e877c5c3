// The text of `pivot demo`: a book with a fact hidden in it, and the question about that fact. Pure
// functions.
//
// The wordings are those that the embedded model was trained on (models/needle/README.md); the keys are names
// of its training that the book itself does not contain.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot::cli {

struct StoryOptions {
  std::uint64_t seed = 0;          // of the key, the value, the place and the decoys
  std::int64_t prompt_tokens = 0;  // the whole prompt has at most this many
  double depth = -1;  // place of the fact, 0 (start) to 1 (end); negative: drawn from the middle 80 %
};

struct Story {
  std::string prompt;  // the user's message: book, fact, decoys, question
  std::string key;     // "Bethshan"
  std::string value;   // six digits
  std::string needle;  // the sentence that holds the fact
  std::string question;
  std::string answer_opening;   // what the answer says before the value, the blank included
  double depth = 0;             // share of the verses that precede the fact
  std::int64_t num_verses = 0;  // of the book, that fit
  std::int64_t num_decoys = 0;  // sentences of the same form with other keys and values
};

using CountTokens = std::function<std::int64_t(std::string_view text)>;

// `book` is one verse a line. Errors: kInvalidArgument for a depth outside [0, 1], for fewer tokens than a
// text of a few verses needs, or for a book without verses.
Result<Story> tell_story(std::string_view book, const StoryOptions& options, const CountTokens& count_tokens);

// The six digits that follow `opening` in the answer, or nothing: what the demo compares with the value.
std::string value_in_answer(std::string_view answer, std::string_view opening);

}  // namespace pivot::cli
