// pivot recall --url: the cases against a server, with the tokenizer of a local checkpoint folder.
#include <nlohmann/json.hpp>

#include "base/installation.h"
#include "checkpoint/resolve.h"
#include "recall/remote.h"
#include "recall_plan.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

// Options that reach into the engine say nothing of a server.
Result<> refuse_local_options(const RecallCommand& command) {
  const auto refuse = [](const char* option) {
    return fail(ErrorCode::kInvalidArgument,
                "{} looks into the engine, which --url cannot; leave one of them out", option);
  };
  if (command.probe || command.probe_every > 0) return refuse("--probe");
  if (command.attribute) return refuse("--attribute");
  if (!command.inject.empty()) return refuse("--inject");
  if (!command.model.knobs.empty()) return refuse("--knob");
  return {};
}

std::string settings_json(const RecallCommand& command, const RecallPlan& plan, const std::string& served) {
  nlohmann::ordered_json json;
  json["pivot_recall"] = 1;
  json["url"] = command.url;
  json["served_model"] = served;
  json["send"] = command.send;
  json["seed"] = command.seed;
  json["wording"] = plan.facts.wording;
  json["text"] = plan.text_fingerprint;
  return json.dump();
}

}  // namespace

Result<int> run_recall_remote(const RecallCommand& command) {
  PIVOT_TRY_VOID(refuse_local_options(command));
  PIVOT_TRY(const recall::PromptForm form, recall::parse_prompt_form(command.send));
  if (!(command.stall_seconds > 0))
    return fail(ErrorCode::kInvalidArgument, "--stall-seconds is {}; more than 0 is wanted",
                command.stall_seconds);
  // Only the tokenizer is needed; the weights need not even be there.
  PIVOT_TRY(const std::filesystem::path path, resolve_model_argument(command.model.model));
  std::filesystem::path folder = path;
  if (!std::filesystem::is_directory(folder)) {
    PIVOT_TRY(folder, resolve_checkpoint(path.string()));
    if (!std::filesystem::is_directory(folder)) folder = folder.parent_path();
  }
  PIVOT_TRY(const Tokenizer tokenizer, Tokenizer::load(folder));
  PIVOT_TRY(RecallPlan plan, plan_recall(command, tokenizer, command.model.max_context));

  const InterruptScope interrupts;
  recall::RemoteOptions options;
  options.url = command.url;
  options.model = command.served_model;
  options.api_key = command.api_key;
  options.form = form;
  options.stall_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(command.stall_seconds * 1000));
  options.cancel = &InterruptScope::flag();
  PIVOT_TRY(const recall::RemoteModel remote, recall::RemoteModel::connect(std::move(options)));
  plan.facts.model = remote.model();
  plan.facts.device = command.url;
  plan.facts.knobs = form == recall::PromptForm::kIds
                         ? "the server's, prompts as token ids"
                         : "the server's, prompts as text (its tokenizer may shift lengths and residues)";
  return run_recall(command, plan, settings_json(command, plan, remote.model()),
                    [&](const recall::Case& test) { return remote.run(test, tokenizer); });
}

}  // namespace pivot::cli
