// The words that cases are made of. Names and words do not occur in the shipped excerpt.
#pragma once

#include <string>
#include <vector>

#include "recall/draws.h"

namespace pivot::recall {

// Biblical names that the embedded model saw as keys in training.
const std::vector<std::string>& key_names();
// Common English nouns, for values and counted words.
const std::vector<std::string>& common_words();

std::string draw_number(Draws& draws);  // six digits
std::string draw_group(Draws& draws);   // three digits
std::string draw_code(Draws& draws);    // "K7F-93XQ-2D": no I, O, 0 or 1
// `count` different keys; REQUIRES count <= key_names().size().
std::vector<std::string> draw_keys(Draws& draws, std::size_t count);

}  // namespace pivot::recall
