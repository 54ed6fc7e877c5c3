#include <xgrammar/xgrammar.h>

#include <time.h>

#include <algorithm>
#include <array>
#include <exception>
#include <thread>

#include "text/grammar/library.h"
#include "text/grammar/library_log.h"
#include "text/grammar/mask_counters.h"
#include "text/grammar/tool_markup.h"

namespace pivot {
namespace {

// JSON allows any number of spaces between tokens, and a model that is allowed to will now and then write
// nothing else for the rest of its answer. This many fit an indented document.
constexpr int kMaxWhitespace = 16;

// Runs what calls the library; nothing that it throws leaves.
template <class Function>
auto guarded(ErrorCode code, std::string_view what, const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory, "{}: no memory left", what);
  } catch (const std::exception& exception) {
    return fail(code, "{}: {}", what, exception.what());
  } catch (...) {
    return fail(code, "{}: the grammar library failed without a reason", what);
  }
}

// The whole batch waits for a mask, and a few grammars that compile well (ambiguous repeats inside repeats)
// take milliseconds for each. One request may have this much of the engine thread's time, no more.
constexpr double kFreeSeconds = 2.0;
constexpr double kSecondsPerToken = 0.005;

// Processor time of this thread: waiting for a busy machine does not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Constraint final : public TokenConstraint {
 public:
  Constraint(xgrammar::GrammarMatcher matcher, std::size_t words, std::shared_ptr<MaskCounters> counters)
      : matcher_(std::move(matcher)), words_(words), counters_(std::move(counters)) {}

  Result<bool> fill_mask(std::span<std::uint32_t> mask) override {
    if (mask.size() < words_)
      return fail(ErrorCode::kInternal, "a mask of {} words was given; the vocabulary has {}", mask.size(),
                  words_);
    if (!ahead_.empty()) {
      std::copy(ahead_.begin(), ahead_.end(), mask.begin());
      ahead_.clear();
      return true;
    }
    return compute(mask.first(words_));
  }

  Result<> accept(TokenId token) override {
    ahead_.clear();
    PIVOT_TRY(const bool accepted,
              guarded(ErrorCode::kInternal, "constrained decoding",
                      [&]() -> Result<bool> { return matcher_.AcceptToken(raw(token)); }));
    if (!accepted)
      return fail(ErrorCode::kInternal, "token {} was chosen although the grammar's mask forbids it",
                  raw(token));
    if (matcher_.IsTerminated()) {
      finished_ = true;
      return {};
    }
    if (!matcher_.IsCompleted()) return {};
    // The text may end here. Where it must, the answer is over without a step for the end-of-sentence token;
    // otherwise the mask that tells is the next step's.
    std::vector<std::uint32_t> mask(words_);
    PIVOT_TRY(const bool restricted, compute(mask));
    if (!restricted) return {};
    ahead_ = mask;
    for (const int stop : matcher_.GetStopTokenIds())
      mask[static_cast<std::size_t>(stop) / 32] &= ~(1u << (stop % 32));
    finished_ = std::all_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word == 0; });
    return {};
  }

  bool is_finished() const override { return finished_; }

  std::unique_ptr<TokenConstraint> clone() const override {
    auto copy = std::make_unique<Constraint>(matcher_.Fork(), words_, counters_);
    copy->ahead_ = ahead_;
    copy->finished_ = finished_;
    copy->tokens_ = tokens_;
    copy->seconds_ = seconds_;
    return copy;
  }

 private:
  Result<bool> compute(std::span<std::uint32_t> mask) {
    const double start_seconds = thread_seconds();
    std::array<std::int64_t, 1> shape = {static_cast<std::int64_t>(words_)};
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = shape.data();
    PIVOT_TRY(const bool restricted,
              guarded(ErrorCode::kInternal, "constrained decoding",
                      [&]() -> Result<bool> { return matcher_.FillNextTokenBitmask(&tensor); }));
    counters_->masks.fetch_add(1, std::memory_order_relaxed);
    const double seconds = thread_seconds() - start_seconds;
    counters_->nanoseconds.fetch_add(static_cast<std::uint64_t>(seconds * 1e9), std::memory_order_relaxed);
    seconds_ += seconds;
    ++tokens_;
    if (seconds_ > kFreeSeconds + kSecondsPerToken * static_cast<double>(tokens_))
      return fail(
          ErrorCode::kInvalidArgument,
          "the grammar took {:.1f} s for the masks of {} tokens, which holds up every other answer; make it "
          "less ambiguous (repeats inside repeats)",
          seconds_, tokens_);
    if (restricted && std::all_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word == 0; }))
      return fail(
          ErrorCode::kInternal,
          "the grammar allows no token of the vocabulary after this text, and the text may not end here");
    return restricted;
  }

  xgrammar::GrammarMatcher matcher_;
  std::size_t words_;
  std::shared_ptr<MaskCounters> counters_;
  std::vector<std::uint32_t> ahead_;  // the next mask, where accept() computed it
  bool finished_ = false;
  std::int64_t tokens_ = 0;
  double seconds_ = 0;
};

class Compiled final : public CompiledGrammar {
 public:
  Compiled(xgrammar::CompiledGrammar grammar, std::size_t words, std::shared_ptr<MaskCounters> counters)
      : grammar_(std::move(grammar)), words_(words), counters_(std::move(counters)) {}

  std::size_t memory_bytes() const override { return grammar_.MemorySizeBytes(); }

  Result<std::unique_ptr<TokenConstraint>> start() const override {
    return guarded(
        ErrorCode::kInternal, "constrained decoding", [&]() -> Result<std::unique_ptr<TokenConstraint>> {
          return std::make_unique<Constraint>(xgrammar::GrammarMatcher(grammar_), words_, counters_);
        });
  }

 private:
  xgrammar::CompiledGrammar grammar_;
  std::size_t words_;
  std::shared_ptr<MaskCounters> counters_;
};

struct Compile {
  xgrammar::GrammarCompiler& compiler;

  xgrammar::CompiledGrammar operator()(const JsonObjectGrammar&) const {
    return schema(R"({"type": "object"})", false);
  }
  xgrammar::CompiledGrammar operator()(const JsonSchemaGrammar& grammar) const {
    return schema(grammar.schema, grammar.strict);
  }
  xgrammar::CompiledGrammar operator()(const RegexGrammar& grammar) const {
    return compiler.CompileRegex(grammar.pattern);
  }
  xgrammar::CompiledGrammar operator()(const EbnfGrammar& grammar) const {
    return compiler.CompileGrammar(grammar.text, "root");
  }
  xgrammar::CompiledGrammar operator()(const ChoiceGrammar& grammar) const {
    return compiler.CompileStructuralTag(choice_structural_tag(grammar));
  }
  xgrammar::CompiledGrammar operator()(const ToolCallGrammar& grammar) const {
    return compiler.CompileStructuralTag(tool_structural_tag(grammar, kMaxWhitespace));
  }

  xgrammar::CompiledGrammar schema(const std::string& text, bool strict) const {
    return compiler.CompileJSONSchema(text, /*any_whitespace=*/true, std::nullopt, std::nullopt, strict,
                                      kMaxWhitespace);
  }
};

// Keywords of a strict schema that the library would leave unenforced, as it tells them; empty: none.
std::string unenforced(const AnswerGrammar& grammar) {
  const LibraryLog log;
  const auto convert = [](const std::string& schema) {
    (void)xgrammar::Grammar::FromJSONSchema(schema, true, std::nullopt, std::nullopt, true, kMaxWhitespace);
  };
  if (const auto* schema = std::get_if<JsonSchemaGrammar>(&grammar); schema && schema->strict)
    convert(schema->schema);
  if (const auto* calls = std::get_if<ToolCallGrammar>(&grammar)) {
    for (const GrammarTool& tool : calls->tools)
      if (tool.strict && !tool.parameters.empty()) convert(tool.parameters);
  }
  return log.warnings().empty() ? std::string() : log.warnings().front();
}

class Library final : public GrammarLibrary {
 public:
  Library(const std::vector<std::string>& vocabulary, const std::vector<int>& stop_tokens,
          std::shared_ptr<MaskCounters> counters)
      : words_(static_cast<std::size_t>(mask_words(static_cast<std::int64_t>(vocabulary.size())))),
        compiler_(xgrammar::TokenizerInfo(vocabulary, xgrammar::VocabType::RAW,
                                          static_cast<int>(vocabulary.size()), stop_tokens),
                  thread_count(), /*cache_enabled=*/false),
        counters_(std::move(counters)) {}

  Result<std::shared_ptr<const CompiledGrammar>> compile(const AnswerGrammar& grammar) const override {
    constexpr std::string_view kWhat = "the grammar cannot be compiled";
    PIVOT_TRY(const std::string left_out,
              guarded(ErrorCode::kInvalidArgument, kWhat,
                      [&]() -> Result<std::string> { return unenforced(grammar); }));
    if (!left_out.empty())
      return fail(
          ErrorCode::kUnsupported,
          "the schema asks for what strict output cannot guarantee: {}. Leave it out, or set strict to false",
          left_out);
    PIVOT_TRY(auto compiled,
              guarded(ErrorCode::kInvalidArgument, kWhat, [&]() -> Result<xgrammar::CompiledGrammar> {
                const LibraryLog unread;
                return std::visit(Compile{compiler_}, grammar);
              }));
    return std::make_shared<Compiled>(std::move(compiled), words_, counters_);
  }

 private:
  static int thread_count() {
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  }

  std::size_t words_;
  mutable xgrammar::GrammarCompiler compiler_;
  std::shared_ptr<MaskCounters> counters_;
};

}  // namespace

bool grammars_available() { return true; }

Result<std::unique_ptr<GrammarLibrary>> make_grammar_library(const std::vector<std::string>& vocabulary,
                                                             const std::vector<TokenId>& stop_tokens,
                                                             std::shared_ptr<MaskCounters> counters) {
  std::vector<int> stops;
  for (const TokenId stop : stop_tokens) stops.push_back(raw(stop));
  return guarded(ErrorCode::kInternal, "preparing structured output",
                 [&]() -> Result<std::unique_ptr<GrammarLibrary>> {
                   return std::make_unique<Library>(vocabulary, stops, std::move(counters));
                 });
}

}  // namespace pivot
