// How large a regular expression or a grammar becomes once its repeats are written out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pivot {

struct GrammarLimits;

struct PatternSize {
  std::int64_t states =
      0;                // characters and classes with every {m,n} written out: about its automaton's states
  std::string problem;  // what keeps it from being compiled, as a phrase; empty: nothing
};
// Looks at a regular expression's length, its balance and its size.
PatternSize measure_pattern(std::string_view pattern, const GrammarLimits& limits);
// What keeps EBNF from being compiled: also the size of a rule's body, its repeats written out.
std::string ebnf_problem(std::string_view text, const GrammarLimits& limits);

}  // namespace pivot
