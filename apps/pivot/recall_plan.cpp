#include "recall_plan.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/file.h"
#include "base/installation.h"
#include "base/report/html.h"
#include "inputs.h"
#include "recall/draws.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

// A server that does not answer this often in a row is gone.
constexpr int kFailuresInARow = 3;

// The models that come with pivot know one family of sentences; every other model is asked in plain words.
Result<recall::Wording> resolve_wording(const RecallCommand& command) {
  if (command.wording != "auto") return recall::parse_wording(command.wording);
  return comes_with_pivot(command.model.model) ? recall::Wording::kNeedle : recall::Wording::kInstruct;
}

Result<recall::Grid> make_grid(const RecallCommand& command) {
  recall::Grid grid;
  grid.tasks.clear();
  for (const std::string& name : command.tasks) {
    if (name == "all") {
      for (const recall::TaskInfo& info : recall::task_table()) grid.tasks.push_back(info.task);
      continue;
    }
    PIVOT_TRY(const recall::Task task, recall::parse_task(name));
    grid.tasks.push_back(task);
  }
  grid.lengths = command.lengths;
  grid.depths = command.depths;
  grid.residues = command.residues;
  grid.modulus = command.modulus;
  grid.samples = command.samples;
  grid.seed = command.seed;
  if (command.samples < 1)
    return fail(ErrorCode::kInvalidArgument, "--samples is {}; at least 1 is wanted", command.samples);
  return grid;
}

Result<> check_lengths(const std::vector<std::int64_t>& lengths, std::int64_t context) {
  for (const std::int64_t length : lengths)
    if (context > 0 && length > context)
      return fail(ErrorCode::kContextOverflow,
                  "--lengths has {} tokens, and this model takes at most {} (max_position_embeddings); leave "
                  "out what is longer",
                  length, context);
  return {};
}

Result<> make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return fail(ErrorCode::kCannotCreate, "cannot create the folder {}: {}", path, error.message());
  return {};
}

}  // namespace

Result<RecallPlan> plan_recall(const RecallCommand& command, const Tokenizer& tokenizer,
                               std::int64_t context) {
  RecallPlan plan;
  PIVOT_TRY(const recall::Grid grid, make_grid(command));
  PIVOT_TRY(plan.wording, resolve_wording(command));
  PIVOT_TRY_VOID(check_lengths(command.lengths, context));
  PIVOT_TRY(const std::filesystem::path default_text, shared_file("texts/hebrews.txt"));
  PIVOT_TRY(const std::string text, read_text(command.text.empty() ? default_text.string() : command.text));
  PIVOT_TRY(const recall::Haystack haystack, recall::Haystack::create(text, tokenizer));
  plan.text_fingerprint = fmt::format("{:016x}", recall::mix_seed(0, std::string_view(text)));
  const recall::CaseBuilder builder{&tokenizer, &haystack, plan.wording};
  for (const recall::CaseSpec& spec : grid.specs()) {
    PIVOT_TRY(recall::Case test, builder.build(spec));
    plan.longest = std::max(plan.longest, static_cast<std::int64_t>(test.prompt.size()) + test.answer_tokens);
    plan.cases.push_back(std::move(test));
  }
  if (context > 0) plan.longest = std::min(plan.longest, context);
  plan.facts.model = command.model.model;
  plan.facts.wording = plan.wording == recall::Wording::kNeedle ? "needle" : "instruct";
  plan.facts.text = command.text.empty() ? "the shipped excerpt" : command.text;
  std::string tasks;
  for (const recall::Task task : grid.tasks)
    tasks += fmt::format("{}{}", tasks.empty() ? "" : ", ", recall::to_string(task));
  plan.facts.asked = fmt::format("{}; {} tokens; depth {}", tasks, fmt::join(grid.lengths, ", "),
                                 fmt::join(grid.depths, ", "));
  plan.facts.text_tokens = haystack.tokens();
  plan.facts.wanted_cases = static_cast<std::int64_t>(plan.cases.size());
  return plan;
}

Result<> write_reports(const RecallCommand& command, const report::Document& document,
                       const std::string& json) {
  if (!command.out.empty()) {
    const std::filesystem::path out(command.out);
    PIVOT_TRY_VOID(make_folder(command.out));
    PIVOT_TRY_VOID(write_file(out / "report.html", report::render_html(document)));
    PIVOT_TRY_VOID(write_file(out / "report.json", json + "\n"));
  }
  return write_report(command.report, document, [&] { return json; });
}

Result<int> run_recall(const RecallCommand& command, const RecallPlan& plan, const std::string& settings,
                       const AskFn& ask) {
  std::optional<recall::CaseLog> log;
  if (!command.out.empty()) {
    PIVOT_TRY_VOID(make_folder(command.out));
    PIVOT_TRY(
        recall::CaseLog opened,
        recall::CaseLog::open(std::filesystem::path(command.out) / "cases.jsonl", settings, command.resume));
    log.emplace(std::move(opened));
  }
  std::int64_t total = 0, done = 0;
  for (const recall::Case& test : plan.cases) total += static_cast<std::int64_t>(test.prompt.size());
  ProgressBar bar("recall", ProgressBar::Unit::kTokens);
  recall::RunFacts facts = plan.facts;
  std::vector<recall::CaseResult> results;
  std::optional<Error> stopped;
  int failures = 0;
  for (const recall::Case& test : plan.cases) {
    if (const recall::CaseResult* known = log ? log->find(test.spec.id()) : nullptr) {
      results.push_back(*known);
    } else {
      auto result = ask(test);
      if (!result) {
        stopped = std::move(result).error().with(fmt::format("case {}", test.spec.id()));
        break;
      }
      if (log) PIVOT_TRY_VOID(log->append(*result));
      results.push_back(*std::move(result));
      failures = results.back().failure.empty() ? 0 : failures + 1;
      if (failures == kFailuresInARow) {
        stopped = Error{ErrorCode::kUnavailable,
                        fmt::format("{} cases in a row got no answer, the last one because: {}",
                                    kFailuresInARow, results.back().failure),
                        {}};
        break;
      }
    }
    done += static_cast<std::int64_t>(test.prompt.size());
    bar.update(done, total);
  }
  bar.clear();
  // Of the cases, so that a run which went on after a stop tells the time of all of it.
  for (const recall::CaseResult& result : results)
    facts.seconds += result.prefill_seconds + result.decode_seconds;
  facts.partial = stopped.has_value();
  if (!stopped || !results.empty())
    PIVOT_TRY_VOID(
        write_reports(command, recall::run_document(facts, results), recall::run_json(facts, results)));
  if (stopped && stopped->code == ErrorCode::kCancelled)
    return fail(ErrorCode::kCancelled, "stopped after {} of {} cases", results.size(), plan.cases.size());
  if (stopped) return fail(*std::move(stopped));
  if (std::none_of(results.begin(), results.end(),
                   [](const recall::CaseResult& result) { return result.failure.empty(); }))
    return fail(ErrorCode::kUnavailable, "none of {} cases got an answer, the last one because: {}",
                results.size(), results.back().failure);
  return 0;
}

}  // namespace pivot::cli
