// Structured output: what an answer must look like, compiled into token masks (XGrammar's core).
//
// A build without that library compiles and runs; constrain() then refuses with kUnsupported.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "text/grammar/constraint.h"

namespace pivot {

class Tokenizer;

// ---- what to ask for ----

// Any JSON object.
struct JsonObjectGrammar {};

// JSON that a schema accepts. Properties come in the schema's order, required ones always.
struct JsonSchemaGrammar {
  std::string schema;  // JSON text: an object or a boolean
  // Objects have no properties beyond those that the schema names; otherwise JSON Schema's own rule holds:
  // more are allowed unless additionalProperties says no.
  bool strict = true;
};

// The whole answer matches the expression.
struct RegexGrammar {
  std::string pattern;
};

// A grammar in GBNF-like EBNF; its start is the rule `root`.
struct EbnfGrammar {
  std::string text;
};

// The answer is one of these texts.
struct ChoiceGrammar {
  std::vector<std::string> choices;
};

struct GrammarTool {
  std::string name;
  std::string parameters;  // JSON Schema text of the arguments object; empty: any arguments
  bool strict = false;     // as JsonSchemaGrammar::strict
};

// Tool calls in the markup of DeepSeek-V4 (specification 7.5). String arguments are raw text in it, so a
// schema's string constraints apply to the text between the tags.
struct ToolCallGrammar {
  enum class Use : std::uint8_t {
    kOptional,  // free text, which may end with one block of calls (tool_choice auto)
    kRequired,  // one block of calls and nothing else (tool_choice required, or a named tool)
  };
  std::vector<GrammarTool> tools;  // the ones that may be called
  Use use = Use::kOptional;
  bool parallel = true;  // more than one call in the block
};

using AnswerGrammar = std::variant<JsonObjectGrammar, JsonSchemaGrammar, RegexGrammar, EbnfGrammar,
                                   ChoiceGrammar, ToolCallGrammar>;

struct ConstrainOptions {
  // The prompt left the thinking part open: every token is allowed up to "</think>", the grammar starts after
  // it. Where the grammar demands an answer, the end of sentence is not allowed before.
  bool after_reasoning = false;
};

// ---- compiling ----

// What a request may ask for. Compiling cannot be interrupted, so these bound it beforehand; the time-out
// only frees those who wait.
struct GrammarLimits {
  std::size_t max_bytes = 128 * 1024;       // of schemas, patterns and names together
  std::int32_t max_depth = 32;              // nested lists and objects of a schema
  std::int32_t max_nodes = 8'000;           // values in the schemas of a request
  std::int32_t max_enum_values = 2'000;     // all enums of a request together; also of a choice list
  std::int64_t max_count = 100'000;         // minLength, maxItems, minProperties and the like
  std::size_t max_pattern_bytes = 2'048;    // of one regular expression, also inside a schema
  std::int64_t max_pattern_states = 5'000;  // its characters and classes with every repeat written out
  std::int64_t max_cost = 10'000;           // of a request's schemas; about milliseconds (check.cpp)
  std::size_t max_ebnf_bytes = 32 * 1024;
  std::int32_t max_tools = 128;
  std::chrono::milliseconds compile_timeout{10'000};  // for a free thread, and again for the compilation
  std::int32_t threads = 2;                           // compilations at a time
  std::int32_t max_waiting = 64;                      // further ones; one more is refused with kUnavailable
  std::size_t cache_bytes = std::size_t{256} << 20;   // of compiled grammars
};

struct GrammarStats {
  std::uint64_t compiled = 0;
  std::uint64_t cached = 0;     // asked for again
  std::uint64_t refused = 0;    // beyond a limit, malformed, no thread free, too slow
  std::uint64_t timed_out = 0;  // of these, those that waited as long as compile_timeout
  std::int64_t waiting = 0;     // gauge: being compiled, or waiting for it
  double compile_seconds = 0;
  std::uint64_t masks = 0;
  double mask_seconds = 0;
  std::size_t cache_bytes = 0;  // gauge, as the library estimates it
};

// True where this build can compile grammars.
bool grammars_available();

// Whether a schema, pattern or grammar is within the limits and well formed as far as pivot itself can tell;
// everything constrain() refuses before it asks the library. Errors: kInvalidArgument naming the limit, what
// was found and where; kUnsupported for a keyword that a strict schema may not have.
Result<> check_grammar(const AnswerGrammar& grammar, const GrammarLimits& limits);

// One per tokenizer; any number of threads may call it. Compiled grammars are shared and kept while they are
// used and while they fit cache_bytes, least recently used first out.
class GrammarCompiler {
 public:
  // `stop_tokens`: which tokens may end an answer (config's eos_token_id). `vocab_size`: rows of the logits,
  // at least the tokenizer's. Copies what it needs of the tokenizer. Errors: kInvalidArgument for a stop
  // token outside the vocabulary or none; kInternal where the library fails.
  static Result<std::unique_ptr<GrammarCompiler>> create(const Tokenizer& tokenizer,
                                                         std::span<const TokenId> stop_tokens,
                                                         std::int64_t vocab_size, GrammarLimits limits = {});
  ~GrammarCompiler();  // waits for a compilation that runs
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  using Done = std::function<void(Result<std::unique_ptr<TokenConstraint>>)>;
  // Gives `done` a constraint in its first state, once: before it returns where nothing has to be compiled
  // (known already, refused), else on one of the compiler's threads. `done` must not block. Errors:
  // kInvalidArgument (malformed, beyond a limit, contradictory, too slow to compile), kUnavailable (too many
  // compilations wait, or after stop()), kUnsupported (this build has no grammar library).
  void constrain_later(const AnswerGrammar& grammar, const ConstrainOptions& options, Done done);
  // The same, waited for: up to twice compile_timeout.
  Result<std::unique_ptr<TokenConstraint>> constrain(const AnswerGrammar& grammar,
                                                     const ConstrainOptions& options = {});

  // Whoever waits is told kUnavailable, and so is everyone who asks from now on. When it returns, no `done`
  // runs any more. Idempotent; not from inside a `done`.
  void stop();

  GrammarStats stats() const;

 private:
  struct Impl;
  explicit GrammarCompiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pivot
