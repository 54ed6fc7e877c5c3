// How large a regular expression or a grammar becomes once its repeats are written out.
#pragma once

#include <string>
#include <string_view>

namespace pivot {

struct GrammarLimits;

// What keeps a regular expression from being compiled, as a phrase; empty: nothing. Looks at its length, its
// balance and its size with every {m,n} written out; an automaton has about that many states.
std::string pattern_problem(std::string_view pattern, const GrammarLimits& limits);
// The same for EBNF: the size of the largest rule body, and of a rule with the rules it repeats.
std::string ebnf_problem(std::string_view text, const GrammarLimits& limits);

}  // namespace pivot
