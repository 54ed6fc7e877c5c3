// pivot accept: the checks that someone with the real weights runs before trusting a deployment.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "base/installation.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/identify.h"
#include "checkpoint/load.h"
#include "command.h"
#include "inputs.h"
#include "model_options.h"
#include "recall/acceptance.h"
#include "recall/haystack.h"
#include "report_output.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

constexpr int kNotAcceptedExit = 1;
constexpr std::int64_t kTextTokens = 600;

struct AcceptCommand {
  ModelOptions model;
  std::string twin;
  std::string vectors;
  std::string text;
  std::vector<std::int64_t> lengths;
  std::int64_t samples = 1;
  ReportOutput report;
};

// The lengths of specification 10 check 14; the shipped models' context and a CPU's patience end earlier.
std::vector<std::int64_t> grid_lengths(const AcceptCommand& command, const ModelConfig& config) {
  std::vector<std::int64_t> lengths = command.lengths;
  if (lengths.empty())
    lengths = comes_with_pivot(command.model.model)
                  ? std::vector<std::int64_t>{512, 1900, 3600}
                  : std::vector<std::int64_t>{1900, 3600, 5300, 21000, 57000, 128000};
  std::erase_if(lengths, [&](std::int64_t length) { return length > config.max_position_embeddings; });
  return lengths;
}

Result<int> run(const AcceptCommand& command) {
  PIVOT_TRY(const std::filesystem::path default_text, shared_file("texts/hebrews.txt"));
  PIVOT_TRY(const std::string text, read_text(command.text.empty() ? default_text.string() : command.text));
  PIVOT_TRY(const std::filesystem::path path, resolve_model_argument(command.model.model));
  PIVOT_TRY(const Checkpoint checkpoint, Checkpoint::open(path.string()));
  const Identification identity = identify(checkpoint.config_text().value_or(""), checkpoint.table(),
                                           checkpoint.hf_quant_text().value_or(""));
  PIVOT_TRY(OpenModel model, open_model(command.model, /*wants_tokenizer=*/true));
  PIVOT_TRY(const recall::Haystack haystack, recall::Haystack::create(text, *model.tokenizer));

  recall::AcceptanceSubject subject;
  subject.name = model.name;
  subject.weights = model.weights;
  subject.backend = model.backend;
  subject.knobs = model.knobs;
  subject.tokenizer = &*model.tokenizer;
  subject.stop_tokens = model.stop_tokens();
  subject.num_threads = command.model.threads;
  subject.audit = fmt::format(
      "{} tensors, {:.2f} GB: {}, {}, experts {}; every tensor that the model needs is there in its shape "
      "and type",
      identity.tensors, static_cast<double>(identity.data_bytes) / 1e9, identity.family, identity.variant,
      to_string(identity.expert_format));
  if (!command.twin.empty()) {
    ModelOptions twin = command.model;
    twin.model = command.twin;
    PIVOT_TRY(const OpenModel other, open_model(twin, /*wants_tokenizer=*/false));
    subject.twin = other.weights;
  }
  recall::Grid grid;
  grid.lengths = grid_lengths(command, model.weights->config);
  grid.depths = {0.1, 0.5, 0.9};
  grid.samples = command.samples;
  const bool shipped = comes_with_pivot(command.model.model);
  grid.tasks = {shipped ? recall::Task::kSingle : recall::Task::kSingleString};
  const recall::CaseBuilder builder{&*model.tokenizer, &haystack,
                                    shipped ? recall::Wording::kNeedle : recall::Wording::kInstruct};
  std::vector<recall::CaseSpec> specs = grid.specs();  // residues mod 4
  grid.modulus = 128;
  grid.residues = {0, 1, 127};
  grid.depths = {0.5};
  for (const recall::CaseSpec& spec : grid.specs()) specs.push_back(spec);
  for (const recall::CaseSpec& spec : specs) {
    PIVOT_TRY(recall::Case test, builder.build(spec));
    if (static_cast<std::int64_t>(test.prompt.size()) + test.answer_tokens <=
        model.weights->config.max_position_embeddings)
      subject.cases.push_back(std::move(test));
  }
  subject.text =
      haystack.starting_at(0, std::min(kTextTokens, model.weights->config.max_position_embeddings - 320));
  subject.vectors = command.vectors;
  const InterruptScope interrupts;
  subject.cancel = &InterruptScope::flag();
  std::optional<ProgressBar> bar;
  subject.on_progress = [&bar](std::int64_t done, std::int64_t total) {
    if (!bar) bar.emplace("recall grid", ProgressBar::Unit::kTokens);
    bar->update(done, total);
  };
  subject.on_check = [&bar](const recall::Check& check) {
    bar.reset();
    if (is_terminal(STDERR_FILENO))
      print_note(
          fmt::format("{}: {} ({:.1f} s)", check.name, recall::to_string(check.outcome), check.seconds));
  };
  PIVOT_TRY(const std::vector<recall::Check> checks, recall::accept(subject));
  const std::string setting = fmt::format("on {}, knobs: {}", model.device, describe(model.knobs));
  PIVOT_TRY_VOID(write_report(command.report, recall::acceptance_document(model.name, setting, checks),
                              [&] { return recall::acceptance_json(model.name, checks); }));
  return recall::accepted(checks) ? 0 : kNotAcceptedExit;
}

}  // namespace

Run add_accept(CLI::App& app) {
  auto command = std::make_shared<AcceptCommand>();
  add_model_options(app, command->model);
  app.add_option("--twin", command->twin,
                 "The same model with other expert bytes (native and NVFP4): must give the same bits")
      ->type_name("FOLDER");
  app.add_option("--vectors", command->vectors, "Folder of official API answers (manifest.json, official/)")
      ->type_name("FOLDER");
  app.add_option("--lengths", command->lengths, "Of the recall grid, in tokens")->delimiter(',');
  app.add_option("--samples", command->samples, "Cases of each length, depth and residue")
      ->capture_default_str();
  app.add_option("--text", command->text, "Another text to hide facts in")->type_name("FILE");
  add_report_options(app, command->report, "accept.json");
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
