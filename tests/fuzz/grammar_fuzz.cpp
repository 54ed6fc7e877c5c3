// Structured output on hostile schemas, expressions, grammars and tools: whatever is compiled can be walked,
// and the mask never allows what accept() refuses.
//
// The first byte chooses the kind; the rest is the text. A walk draws its tokens from the text's bytes.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/library.h"
#include "text/grammar/mask_counters.h"

namespace {

using namespace pivot;

// Every byte, two longer tokens, and the end of sentence.
constexpr int kEos = 258;

const GrammarLibrary& library() {
  static const std::unique_ptr<GrammarLibrary> made = [] {
    std::vector<std::string> vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary.emplace_back(1, static_cast<char>(byte));
    vocabulary.emplace_back("\": ");
    vocabulary.emplace_back("｜DSML｜");
    vocabulary.emplace_back();
    auto made_library = make_grammar_library(vocabulary, {TokenId{kEos}}, std::make_shared<MaskCounters>());
    if (!made_library) std::abort();
    return *std::move(made_library);
  }();
  return *made;
}

AnswerGrammar grammar_of(std::uint8_t kind, const std::string& text) {
  switch (kind % 6) {
    case 0:
      return JsonSchemaGrammar{text, false};
    case 1:
      return JsonSchemaGrammar{text, true};
    case 2:
      return RegexGrammar{text};
    case 3:
      return EbnfGrammar{text};
    case 4:
      return ChoiceGrammar{{text, text + "x"}};
    default:
      return ToolCallGrammar{{{"f", text, kind % 2 == 0}}, ToolCallGrammar::Use::kRequired, true};
  }
}

void walk(TokenConstraint& constraint, const std::string& text) {
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(mask_words(kEos + 1)));
  for (std::size_t step = 0; step < 24 && !constraint.is_finished(); ++step) {
    const Result<bool> restricted = constraint.fill_mask(mask);
    if (!restricted) return;  // a grammar that leads nowhere is told, not hidden
    // From where the text says, the next token that is allowed.
    const int start = text.empty() ? 0 : static_cast<unsigned char>(text[step % text.size()]);
    int token = -1;
    for (int i = 0; i <= kEos && token < 0; ++i) {
      const int candidate = (start + i) % (kEos + 1);
      if (!*restricted || mask_allows(mask, TokenId{candidate})) token = candidate;
    }
    if (token < 0 || !constraint.accept(TokenId{token})) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const AnswerGrammar grammar = grammar_of(data[0], text);
  // Far lower than a server's, so that a run looks at many grammars.
  GrammarLimits limits;
  limits.max_bytes = 2048;
  limits.max_nodes = 64;
  limits.max_depth = 12;
  limits.max_count = 50;
  limits.max_pattern_states = 200;
  limits.max_pattern_bytes = 128;
  limits.max_ebnf_bytes = 256;
  limits.max_cost = 500;
  if (!check_grammar(grammar, limits)) return 0;
  const auto compiled = library().compile(grammar);
  if (!compiled) return 0;
  const auto constraint = (*compiled)->start();
  if (!constraint) std::abort();
  const auto copy = (*constraint)->clone();
  walk(**constraint, text);
  walk(*copy, text);
  return 0;
}
