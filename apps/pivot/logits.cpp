// pivot logits: the raw logits after a prompt and after each token of a continuation, for comparison with
// anything.
//
// Tensors of the output (docs/commands.md):
//   prompt_ids  I32 [P]       the prompt
//   logits      F32 [1+N, V]  row 0 follows the last prompt token, row t follows step_ids[t-1]
//   step_ids    I32 [N]       the continuation: given, or the most likely token of the row before
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_writer.h"
#include "command.h"
#include "inputs.h"
#include "model_options.h"
#include "pivot_version.h"
#include "stopwatch.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

struct LogitsCommand {
  ModelOptions model;
  std::string ids;
  std::string out;
  std::string continuation;
  std::int64_t steps = 0;
  bool json = false;
};

std::vector<std::int32_t> raw_ids(const std::vector<TokenId>& ids) {
  std::vector<std::int32_t> values;
  values.reserve(ids.size());
  for (const TokenId id : ids) values.push_back(raw(id));
  return values;
}

Result<int> run(const LogitsCommand& command) {
  if (command.steps < 0) {
    return fail(ErrorCode::kInvalidArgument, "--steps is {}; it is 0 or more", command.steps);
  }
  PIVOT_TRY(const OpenModel model, open_model(command.model, /*wants_tokenizer=*/false));
  const ModelConfig& config = model.weights->config;
  PIVOT_TRY(const std::vector<TokenId> prompt, read_ids(command.ids, config.vocab_size));
  std::vector<TokenId> forced;
  std::int64_t steps = command.steps;
  if (!command.continuation.empty()) {
    PIVOT_TRY(forced, read_ids(command.continuation, config.vocab_size));
    const auto given = static_cast<std::int64_t>(forced.size());
    if (command.steps > given) {
      return fail(ErrorCode::kInvalidArgument, "--steps is {}, but {} has {} token ids", command.steps,
                  command.continuation, given);
    }
    if (steps == 0) steps = given;
  }
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const std::int64_t wanted = prompt_tokens + steps;
  const std::int64_t limit =
      command.model.max_context > 0 ? command.model.max_context : config.max_position_embeddings;
  if (wanted > limit) {
    return fail(ErrorCode::kContextOverflow, "{} prompt tokens and {} steps are {} tokens; {} holds {}",
                prompt_tokens, steps, wanted, command.model.max_context > 0 ? "--max-context" : "the model",
                limit);
  }
  // Before the work: an output that cannot be written should not cost a prefill.
  PIVOT_TRY(auto writer, SafetensorsWriter::create(command.out,
                                                   {{"prompt_ids", DType::kI32, {prompt_tokens}},
                                                    {"logits", DType::kF32, {1 + steps, config.vocab_size}},
                                                    {"step_ids", DType::kI32, {steps}}},
                                                   {{"format", "pt"},
                                                    {"pivot_version", kVersion},
                                                    {"pivot_commit", kCommit},
                                                    {"knobs", describe(model.knobs)},
                                                    {"device", model.device}}));
  PIVOT_TRY(
      const auto session,
      open_session(model, command.model, command.model.max_context > 0 ? command.model.max_context : wanted));

  const std::vector<std::int32_t> prompt_values = raw_ids(prompt);
  PIVOT_TRY_VOID(writer.append_values("prompt_ids", std::span<const std::int32_t>(prompt_values)));
  const InterruptScope interrupts;
  Timings timings;
  timings.prompt_tokens = prompt_tokens;
  {
    ProgressBar bar("reading", ProgressBar::Unit::kTokens);
    const Stopwatch watch;
    PIVOT_TRY_VOID(session->prefill(
        prompt, [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); },
        &InterruptScope::flag()));
    timings.prefill_seconds = watch.seconds();
  }
  PIVOT_TRY_VOID(writer.append_values("logits", session->logits()));
  std::vector<TokenId> taken;
  const Stopwatch watch;
  ProgressBar bar("steps", ProgressBar::Unit::kTokens);
  for (std::int64_t step = 0; step < steps; ++step) {
    if (InterruptScope::interrupted()) {
      return fail(ErrorCode::kCancelled, "stopped after {} of {} steps; nothing was written", step, steps);
    }
    TokenId id{};
    if (forced.empty()) {
      PIVOT_TRY(id, argmax(session->logits()));
    } else {
      id = forced[static_cast<std::size_t>(step)];
    }
    taken.push_back(id);
    PIVOT_TRY_VOID(session->decode(id));
    PIVOT_TRY_VOID(writer.append_values("logits", session->logits()));
    bar.update(step + 1, steps);
  }
  bar.clear();
  timings.generated_tokens = steps;
  timings.decode_seconds = watch.seconds();
  const std::vector<std::int32_t> step_values = raw_ids(taken);
  PIVOT_TRY_VOID(writer.append_values("step_ids", std::span<const std::int32_t>(step_values)));
  PIVOT_TRY_VOID(writer.finish());

  if (command.json) {
    nlohmann::ordered_json json;
    json["out"] = command.out;
    json["model"] = model.name;
    json["device"] = model.device;
    json["knobs"] = describe(model.knobs);
    json["prompt_tokens"] = prompt_tokens;
    json["steps"] = steps;
    json["vocab_size"] = config.vocab_size;
    json["step_ids"] = step_values;
    json["timings"] = {{"load_seconds", model.load_seconds},
                       {"prefill_seconds", timings.prefill_seconds},
                       {"decode_seconds", timings.decode_seconds}};
    PIVOT_TRY_VOID(write_output(json.dump(2) + "\n"));
  } else {
    PIVOT_TRY_VOID(write_output(
        fmt::format("{}: logits [{}, {}] after {} prompt tokens ({}) and {} steps ({})\n", command.out,
                    1 + steps, config.vocab_size, prompt_tokens, format_duration(timings.prefill_seconds),
                    steps, format_duration(timings.decode_seconds))));
  }
  return 0;
}

}  // namespace

Run add_logits(CLI::App& app) {
  auto command = std::make_shared<LogitsCommand>();
  add_model_options(app, command->model);
  app.add_option("--ids", command->ids,
                 "The prompt: a JSON list of token ids, or an object with it under \"ids\"")
      ->type_name("FILE.json")
      ->required();
  app.add_option("--out", command->out, "The safetensors file to write: complete, or not at all")
      ->type_name("FILE.safetensors")
      ->required();
  app.add_option("--steps", command->steps,
                 "Single-token steps after the prompt (default: the whole --continuation)");
  app.add_option("--continuation", command->continuation,
                 "Token ids to feed in these steps; without it, the most likely token each time")
      ->type_name("FILE.json");
  app.add_flag("--json", command->json, "Print one JSON object about the run (docs/commands.md)");
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
