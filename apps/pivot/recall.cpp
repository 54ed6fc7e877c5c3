// pivot recall: can this model, on this engine, with these knobs, find facts in long texts, and if not, which
// part loses them.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "command.h"
#include "model_options.h"
#include "recall/attribution.h"
#include "recall_plan.h"
#include "report_output.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

// What must be the same for results to belong to one run.
std::string settings_json(const RecallCommand& command, const OpenModel& model, const RecallPlan& plan) {
  nlohmann::ordered_json json;
  json["pivot_recall"] = 1;
  json["fingerprint"] = fmt::format("{:016x}", model.weights->fingerprint);
  json["device"] = model.device;
  json["knobs"] = describe(model.knobs);
  json["seed"] = command.seed;
  json["wording"] = plan.facts.wording;
  json["text"] = plan.text_fingerprint;
  json["probe"] = command.probe;
  json["probe_every"] = command.probe_every;
  json["chunk"] = command.model.chunk;
  json["fault"] = command.inject;
  return json.dump();
}

Result<int> run_attribution(const RecallCommand& command, const OpenModel& model,
                            const std::shared_ptr<Backend>& backend, const RecallPlan& plan) {
  ProgressBar bar("attributing", ProgressBar::Unit::kTokens);
  recall::AttributionSubject subject;
  subject.weights = model.weights;
  subject.backend = backend;
  subject.knobs = model.knobs;
  subject.chunk_tokens = command.model.chunk;
  subject.tokenizer = &*model.tokenizer;
  subject.stop_tokens = model.stop_tokens();
  subject.num_threads = command.model.threads;
  subject.every_variant = command.every_variant;
  if (!command.twin.empty()) {
    ModelOptions twin = command.model;
    twin.model = command.twin;
    PIVOT_TRY(const OpenModel other, open_model(twin, /*wants_tokenizer=*/false));
    subject.twin = other.weights;
  }
  subject.cancel = &InterruptScope::flag();
  subject.on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
  PIVOT_TRY(const recall::Attribution attribution, recall::attribute(subject, plan.cases));
  bar.clear();
  PIVOT_TRY_VOID(write_reports(command, recall::attribution_document(plan.facts, attribution),
                               recall::attribution_json(plan.facts, attribution)));
  if (!attribution.unreached.empty())
    return fail(ErrorCode::kCancelled, "stopped before {} alternatives; the report is marked partial",
                attribution.unreached.size());
  return 0;
}

Result<int> run(const RecallCommand& command) {
  if (!command.twin.empty() && !command.attribute)
    return fail(ErrorCode::kInvalidArgument,
                "--twin is an alternative of --attribute; give that, too, or run the twin by itself");
  if (!command.url.empty()) return run_recall_remote(command);
  PIVOT_TRY(OpenModel model, open_model(command.model, /*wants_tokenizer=*/true));
  PIVOT_TRY(RecallPlan plan,
            plan_recall(command, *model.tokenizer, model.weights->config.max_position_embeddings));
  plan.facts.device = model.device;
  plan.facts.knobs = describe(model.knobs);

  std::shared_ptr<Backend> backend = model.backend;
  if (!command.inject.empty()) {
    PIVOT_TRY(const recall::FaultInfo fault, recall::parse_fault(command.inject));
    PIVOT_TRY(backend, recall::make_faulty_backend(backend, model.weights, model.knobs, fault.fault));
    print_note(fmt::format("a fault is injected on purpose: {}", fault.summary));
    plan.facts.knobs += fmt::format(", injected fault: {}", fault.name);
  }
  const InterruptScope interrupts;
  if (command.attribute) return run_attribution(command, model, backend, plan);

  std::shared_ptr<recall::Probe> probe;
  if (command.probe) {
    recall::ProbeOptions options;
    options.sample_every = command.probe_every;
    options.num_threads = command.model.threads;
    probe = std::make_shared<recall::Probe>(backend, model.weights, options);
    backend = probe;
  }
  SessionOptions session_options;
  session_options.weights = model.weights;
  session_options.backend = backend;
  session_options.knobs = model.knobs;
  session_options.max_context = command.model.max_context > 0 ? command.model.max_context : plan.longest;
  session_options.chunk_tokens = command.model.chunk;
  PIVOT_TRY(const auto session, Session::create(std::move(session_options)));
  const recall::CaseRunner runner{session.get(),          &*model.tokenizer, model.stop_tokens(),
                                  recall::Path::kOneShot, probe.get(),       &InterruptScope::flag()};
  return run_recall(command, plan, settings_json(command, model, plan),
                    [&](const recall::Case& test) { return runner.run(test); });
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
  app.add_option("--wording", command->wording,
                 "needle (what embedded and tally were trained on), instruct, or auto")
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
  app.add_flag(
      "--every-variant", command->every_variant,
      "With --attribute: also run what cannot change the verdict any more, and a smaller index_topk");
  app.add_option("--twin", command->twin,
                 "With --attribute: the same model with other expert bytes, as one more alternative")
      ->type_name("FOLDER");
  app.add_option(
         "--url", command->url,
         "Ask this OpenAI-compatible server (its /v1/completions) instead of running the model here; MODEL "
         "is then the folder of its tokenizer")
      ->type_name("URL");
  app.add_option("--served-model", command->served_model,
                 "The server's name for the model; the first of its list where not given")
      ->type_name("NAME");
  app.add_option("--send", command->send, "Prompts as ids (exact), or as text for servers that take no ids")
      ->capture_default_str();
  app.add_option("--api-key", command->api_key, "Sent to --url as a bearer token")->type_name("KEY");
  app.add_option("--stall-seconds", command->stall_seconds,
                 "A server that sends nothing for so long has not answered the case")
      ->capture_default_str();
  // For the documentation and the tests of --attribute; in no help text.
  app.add_option("--inject", command->inject)->group("");
  add_report_options(app, command->report, "recall.json");
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
