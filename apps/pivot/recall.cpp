// pivot recall: can this model, on this engine, with these knobs, find facts in long texts, and if not, which
// part loses them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/installation.h"
#include "base/report/html.h"
#include "base/report/text.h"
#include "command.h"
#include "inputs.h"
#include "model_options.h"
#include "recall/attribution.h"
#include "recall/haystack.h"
#include "recall/report.h"
#include "recall/runner.h"
#include "report_output.h"
#include "stopwatch.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

struct RecallCommand {
  ModelOptions model;
  std::vector<std::string> tasks = {"single"};
  std::vector<std::int64_t> lengths = {512, 1024, 2048, 4096};
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::vector<std::int64_t> residues = {0, 1, 2, 3};
  std::int64_t modulus = 4;
  std::int64_t samples = 1;
  std::uint64_t seed = 1;
  std::string wording = "auto";
  std::string text;
  std::string out;
  bool resume = false;
  bool probe = false;
  std::int64_t probe_every = 0;
  bool attribute = false;
  std::string inject;
  ReportOutput report;
};

// The embedded model knows one family of sentences; every other model is asked in plain words.
Result<recall::Wording> resolve_wording(const RecallCommand& command) {
  if (command.wording != "auto") return recall::parse_wording(command.wording);
  return command.model.model == kEmbeddedModelName ? recall::Wording::kNeedle : recall::Wording::kInstruct;
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

Result<> check_lengths(const std::vector<std::int64_t>& lengths, const ModelConfig& config) {
  for (const std::int64_t length : lengths)
    if (length > config.max_position_embeddings)
      return fail(ErrorCode::kContextOverflow,
                  "--lengths has {} tokens, and this model takes at most {} (max_position_embeddings); leave "
                  "out what is longer",
                  length, config.max_position_embeddings);
  return {};
}

// What must be the same for results to belong to one run.
std::string settings_json(const RecallCommand& command, const OpenModel& model, const std::string& text,
                          recall::Wording wording) {
  nlohmann::ordered_json json;
  json["pivot_recall"] = 1;
  json["fingerprint"] = fmt::format("{:016x}", model.weights->fingerprint);
  json["device"] = model.device;
  json["knobs"] = describe(model.knobs);
  json["seed"] = command.seed;
  json["wording"] = wording == recall::Wording::kNeedle ? "needle" : "instruct";
  json["text"] = fmt::format("{:016x}", std::hash<std::string>{}(text));
  json["probe"] = command.probe;
  json["probe_every"] = command.probe_every;
  json["chunk"] = command.model.chunk;
  json["fault"] = command.inject;
  return json.dump();
}

Result<int> run(const RecallCommand& command) {
  // What is cheap to check comes first.
  PIVOT_TRY(const recall::Grid grid, make_grid(command));
  PIVOT_TRY(const recall::Wording wording, resolve_wording(command));
  PIVOT_TRY(const std::filesystem::path default_text, shared_file("texts/hebrews.txt"));
  PIVOT_TRY(const std::string text, read_text(command.text.empty() ? default_text.string() : command.text));
  PIVOT_TRY(OpenModel model, open_model(command.model, /*wants_tokenizer=*/true));
  PIVOT_TRY_VOID(check_lengths(command.lengths, model.weights->config));
  PIVOT_TRY(const recall::Haystack haystack, recall::Haystack::create(text, *model.tokenizer));
  const recall::CaseBuilder builder{&*model.tokenizer, &haystack, wording};
  // A case that cannot be built is told before the first one runs.
  std::vector<recall::Case> cases;
  std::int64_t longest = 0;
  for (const recall::CaseSpec& spec : grid.specs()) {
    PIVOT_TRY(recall::Case test, builder.build(spec));
    longest = std::max(longest, static_cast<std::int64_t>(test.prompt.size()) + test.answer_tokens);
    cases.push_back(std::move(test));
  }
  longest = std::min(longest, model.weights->config.max_position_embeddings);

  recall::RunFacts facts;
  facts.model = model.name;
  facts.device = model.device;
  facts.knobs = describe(model.knobs);
  facts.wording = wording == recall::Wording::kNeedle ? "needle" : "instruct";
  facts.text = command.text.empty() ? "the shipped excerpt" : command.text;
  facts.text_tokens = haystack.tokens();
  facts.wanted_cases = static_cast<std::int64_t>(cases.size());

  std::shared_ptr<Backend> backend = model.backend;
  if (!command.inject.empty()) {
    PIVOT_TRY(const recall::FaultInfo fault, recall::parse_fault(command.inject));
    PIVOT_TRY(backend, recall::make_faulty_backend(backend, model.weights, model.knobs, fault.fault));
    print_note(fmt::format("a fault is injected on purpose: {}", fault.summary));
    facts.knobs += fmt::format(", injected fault: {}", fault.name);
  }
  const InterruptScope interrupts;
  ProgressBar bar(command.attribute ? "attributing" : "recall", ProgressBar::Unit::kTokens);

  if (command.attribute) {
    recall::AttributionSubject subject;
    subject.weights = model.weights;
    subject.backend = backend;
    subject.knobs = model.knobs;
    subject.chunk_tokens = command.model.chunk;
    subject.tokenizer = &*model.tokenizer;
    subject.stop_tokens = model.stop_tokens();
    subject.num_threads = command.model.threads;
    subject.cancel = &InterruptScope::flag();
    subject.on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    PIVOT_TRY(const recall::Attribution attribution, recall::attribute(subject, cases));
    bar.clear();
    PIVOT_TRY_VOID(write_report(command.report, recall::attribution_document(facts, attribution),
                                [&] { return recall::attribution_json(facts, attribution); }));
    return 0;
  }

  std::unique_ptr<recall::Probe> owned;
  std::shared_ptr<recall::Probe> probe;
  if (command.probe) {
    recall::ProbeOptions options;
    options.sample_every = command.probe_every;
    options.num_threads = command.model.threads;
    probe = std::make_shared<recall::Probe>(backend, model.weights, options);
    backend = probe;
  }
  std::optional<recall::CaseLog> log;
  if (!command.out.empty()) {
    std::error_code error;
    std::filesystem::create_directories(command.out, error);
    if (error)
      return fail(ErrorCode::kCannotCreate, "cannot create the folder {}: {}", command.out, error.message());
    PIVOT_TRY(recall::CaseLog opened,
              recall::CaseLog::open(std::filesystem::path(command.out) / "cases.jsonl",
                                    settings_json(command, model, text, wording), command.resume));
    log.emplace(std::move(opened));
  }
  SessionOptions session_options;
  session_options.weights = model.weights;
  session_options.backend = backend;
  session_options.knobs = model.knobs;
  session_options.max_context = command.model.max_context > 0 ? command.model.max_context : longest;
  session_options.chunk_tokens = command.model.chunk;
  PIVOT_TRY(const auto session, Session::create(std::move(session_options)));
  const recall::CaseRunner runner{session.get(),          &*model.tokenizer, model.stop_tokens(),
                                  recall::Path::kOneShot, probe.get(),       &InterruptScope::flag()};
  std::int64_t total = 0, done = 0;
  for (const recall::Case& test : cases) total += static_cast<std::int64_t>(test.prompt.size());
  std::vector<recall::CaseResult> results;
  const Stopwatch watch;
  for (const recall::Case& test : cases) {
    const recall::CaseResult* known = log ? log->find(test.spec.id()) : nullptr;
    if (known != nullptr) {
      results.push_back(*known);
    } else {
      auto result = runner.run(test);
      if (!result && result.error().code == ErrorCode::kCancelled) {
        facts.partial = true;
        break;
      }
      if (!result) return fail(std::move(result).error().with(fmt::format("case {}", test.spec.id())));
      if (log) PIVOT_TRY_VOID(log->append(*result));
      results.push_back(*std::move(result));
    }
    done += static_cast<std::int64_t>(test.prompt.size());
    bar.update(done, total);
  }
  bar.clear();
  facts.seconds = watch.seconds();
  const report::Document document = recall::run_document(facts, results);
  if (!command.out.empty()) {
    PIVOT_TRY_VOID(
        write_file(std::filesystem::path(command.out) / "report.html", report::render_html(document)));
    PIVOT_TRY_VOID(write_file(std::filesystem::path(command.out) / "report.json",
                              recall::run_json(facts, results) + "\n"));
  }
  PIVOT_TRY_VOID(write_report(command.report, document, [&] { return recall::run_json(facts, results); }));
  if (facts.partial)
    return fail(ErrorCode::kCancelled, "stopped after {} of {} cases", results.size(), cases.size());
  return 0;
}

}  // namespace

Run add_recall(CLI::App& app) {
  auto command = std::make_shared<RecallCommand>();
  add_model_options(app, command->model);
  std::string names;
  for (const recall::TaskInfo& info : recall::task_table()) names += fmt::format(" {}", info.name);
  app.add_option("--tasks", command->tasks, "Comma-separated, or all:" + names)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--lengths", command->lengths, "Tokens of the prompts")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--depths", command->depths, "Places of the fact, 0 (start) to 1 (end)")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--residues", command->residues, "Prompt lengths modulo --modulus; -1 for any")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--modulus", command->modulus, "4 and 128 are the compression ratios")
      ->capture_default_str();
  app.add_option("--samples", command->samples, "Cases of each combination")->capture_default_str();
  app.add_option("--seed", command->seed, "Of texts, facts and places")->capture_default_str();
  app.add_option("--wording", command->wording, "needle (the embedded model's), instruct, or auto")
      ->capture_default_str();
  app.add_option("--text", command->text, "Another text to hide facts in, one sentence or verse a line")
      ->type_name("FILE");
  app.add_option("--out", command->out,
                 "Folder for every case as it is done (cases.jsonl), report.html and report.json")
      ->type_name("DIR");
  app.add_flag("--resume", command->resume, "Go on with the run in --out");
  app.add_flag("--probe", command->probe, "Measure how faithful the indexer's selection is");
  app.add_option("--probe-every", command->probe_every,
                 "Also at every n-th prompt position; 0: only where the answer is made")
      ->capture_default_str();
  app.add_flag("--attribute", command->attribute,
               "Run the cases under every suspect's alternative and name the part that loses facts");
  // For the documentation and the tests of --attribute; in no help text.
  app.add_option("--inject", command->inject)->group("");
  add_report_options(app, command->report, "recall.json");
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
