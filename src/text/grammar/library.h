// The adapter to XGrammar: the only files that see its headers, and where its exceptions end.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/grammar/grammar.h"

namespace pivot {

// A grammar compiled for a vocabulary; immutable, shared by its constraints.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual std::size_t memory_bytes() const = 0;
  // Counts masks and their time in `counters`.
  virtual Result<std::unique_ptr<TokenConstraint>> start() const = 0;
};

struct MaskCounters;

class GrammarLibrary {
 public:
  virtual ~GrammarLibrary() = default;
  // Any number of threads at a time. REQUIRES: check_grammar accepted it. Errors: kInvalidArgument with the
  // library's reason; kUnsupported for a strict schema with a keyword that the library would ignore.
  virtual Result<std::shared_ptr<const CompiledGrammar>> compile(const AnswerGrammar& grammar) const = 0;
};

// `vocabulary`: the bytes of each token, empty for tokens that no answer may have. Errors: kUnsupported where
// this build has no library; kInternal where it fails.
Result<std::unique_ptr<GrammarLibrary>> make_grammar_library(const std::vector<std::string>& vocabulary,
                                                             const std::vector<TokenId>& stop_tokens,
                                                             std::shared_ptr<MaskCounters> counters);

}  // namespace pivot
