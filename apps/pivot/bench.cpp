// pivot bench: speed at full model size without a checkpoint, next to what the device's memory allows.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/installation.h"
#include "bench_ladder.h"
#include "bench_model.h"
#include "checkpoint/flash_config.h"
#include "checkpoint/load.h"
#include "command.h"
#include "engine/devices.h"
#include "inputs.h"
#include "pivot_version.h"

namespace pivot::cli {
namespace {

using Json = nlohmann::ordered_json;

struct BenchCommand {
  enum class What { kDecode, kPrefill, kKernels, kLadder } what = What::kDecode;
  std::string synthetic;
  std::string device = "auto";
  std::vector<std::int64_t> contexts = {4096};
  std::vector<std::int32_t> batches = {1};
  std::vector<std::int64_t> tokens = {8192};
  std::int32_t chunk = 8192;
  std::int64_t layers = 0;
  std::int64_t resident = 232;
  std::int32_t steps = 24;
  std::int32_t prompt = 256;
  std::vector<std::string> knobs;
  std::vector<std::string> off;
  std::string out;
  bool json = false;
};

struct Bench {
  std::shared_ptr<Backend> backend;
  SyntheticModel model;
  Knobs knobs;
  Json json;
  bool text = true;

  Result<> say(const std::string& line) const { return text ? write_output(line) : Result<>{}; }
};

Result<Bench> open(const BenchCommand& command, const std::string& name) {
  if (command.synthetic != "flash")
    return fail(ErrorCode::kInvalidArgument, "--synthetic is \"{}\"; the model to synthesise is flash",
                command.synthetic);
  if (command.steps < 3)
    return fail(ErrorCode::kInvalidArgument, "--steps is {}; at least 3 are needed", command.steps);
  const ModelConfig config = flash_config(command.layers);
  for (const std::int64_t context : command.contexts)
    if (context < 1 || context > config.max_position_embeddings)
      return fail(ErrorCode::kInvalidArgument, "--context {} is not possible; 1 to {} are", context,
                  config.max_position_embeddings);
  for (const std::int32_t batch : command.batches)
    if (batch < 1 || batch > 1024)
      return fail(ErrorCode::kInvalidArgument, "--batch {} is not possible; 1 to 1024 are", batch);
  for (const std::int64_t tokens : command.tokens)
    if (tokens < 1 || tokens > config.max_position_embeddings)
      return fail(ErrorCode::kInvalidArgument, "--tokens {} is not possible; 1 to {} are", tokens,
                  config.max_position_embeddings);
  if (command.chunk < 1 || command.chunk > 65536)
    return fail(ErrorCode::kInvalidArgument, "--chunk {} is not possible; 1 to 65536 are", command.chunk);
  Bench bench;
  bench.text = !command.json;
  PIVOT_TRY_VOID(set_knobs(bench.knobs, command.knobs));
  PIVOT_TRY(bench.backend, make_backend(command.device));
  for (const std::string& name_off : command.off)
    PIVOT_TRY_VOID(set_backend_switch(*bench.backend, name_off, false));
  PIVOT_TRY(bench.model,
            synthesize_model(*bench.backend, config, std::min(command.resident, config.n_routed_experts)));
  Json switches = Json::object();
  for (const BackendSwitch& s : backend_switches(*bench.backend)) switches[std::string(s.name)] = s.on;
  bench.json = {{"benchmark", name},
                {"version", kVersion},
                {"commit", kCommit},
                {"device", bench.backend->device().name},
                {"model", "DeepSeek-V4-Flash shapes, random weights"},
                {"knobs", describe(bench.knobs)},
                {"switches", switches},
                {"layers", config.num_hidden_layers},
                {"resident_experts_per_layer", std::min(command.resident, config.n_routed_experts)},
                {"weight_bytes", bench.model.bytes},
                {"read_bytes_per_second", bench.model.read_bytes_per_second}};
  PIVOT_TRY_VOID(bench.say(
      fmt::format("{}, {} layers, {:.1f} GB of weights; a kernel that only reads: {:.2f} TB/s\n",
                  bench.backend->device().name, config.num_hidden_layers,
                  static_cast<double>(bench.model.bytes) * 1e-9, bench.model.read_bytes_per_second * 1e-12)));
  return bench;
}

Result<int> finish(const BenchCommand& command, const Bench& bench) {
  const std::string text = bench.json.dump(1) + "\n";
  if (!command.out.empty()) {
    std::ofstream file(command.out, std::ios::binary);
    file << text;
    file.close();
    if (!file) return fail(ErrorCode::kIo, "{} could not be written", command.out);
  }
  if (command.json) PIVOT_TRY_VOID(write_output(text));
  return 0;
}

Json decode_json(const DecodeResult& r, std::int64_t context, std::int32_t batch, double bandwidth) {
  const double roofline = bandwidth / r.bytes_per_step;
  return {{"context", context},
          {"batch", batch},
          {"step_ms", r.step_seconds * 1e3},
          {"step_ms_min", r.best_step_seconds * 1e3},
          {"forwards_per_second", 1.0 / r.step_seconds},
          {"tokens_per_second", batch / r.step_seconds},
          {"bytes_per_step", r.bytes_per_step},
          {"experts_per_layer", r.experts_per_layer},
          {"roofline_tokens_per_second", batch * roofline},
          {"share_of_roofline", 1.0 / r.step_seconds / roofline},
          {"logits_finite", r.logits_finite}};
}

Result<int> run_decode(const BenchCommand& command) {
  PIVOT_TRY(Bench bench, open(command, "decode"));
  bench.json["steps"] = command.steps;
  PIVOT_TRY_VOID(
      bench.say(fmt::format("{:>9} {:>6} {:>10} {:>12} {:>10} {:>10} {:>12} {:>8}\n", "context", "batch",
                            "ms/step", "forwards/s", "tok/s", "GB/step", "roofline", "share")));
  for (const std::int64_t context : command.contexts)
    for (const std::int32_t batch : command.batches) {
      const Result<DecodeResult> result =
          bench_decode(bench.backend, bench.model.weights, bench.knobs, {context, batch, command.steps});
      if (!result) {  // the other sizes may fit
        bench.json["results"].push_back(
            {{"context", context}, {"batch", batch}, {"error", result.error().to_string()}});
        PIVOT_TRY_VOID(
            bench.say(fmt::format("{:>9} {:>6} {}\n", context, batch, result.error().to_string())));
        continue;
      }
      const Json row = decode_json(*result, context, batch, bench.model.read_bytes_per_second);
      bench.json["results"].push_back(row);
      PIVOT_TRY_VOID(bench.say(fmt::format(
          "{:>9} {:>6} {:>10.3f} {:>12.1f} {:>10.1f} {:>10.2f} {:>12.1f} {:>7.1f}%{}\n", context, batch,
          result->step_seconds * 1e3, 1.0 / result->step_seconds, batch / result->step_seconds,
          result->bytes_per_step * 1e-9, row["roofline_tokens_per_second"].get<double>(),
          100.0 * row["share_of_roofline"].get<double>(),
          result->logits_finite ? "" : "  logits are not finite")));
    }
  return finish(command, bench);
}

Result<int> run_prefill(const BenchCommand& command) {
  PIVOT_TRY(Bench bench, open(command, "prefill"));
  PIVOT_TRY_VOID(bench.say(fmt::format("{:>9} {:>9} {:>10} {:>10}\n", "tokens", "chunk", "s", "tok/s")));
  for (const std::int64_t tokens : command.tokens) {
    const Result<PrefillResult> result =
        bench_prefill(bench.backend, bench.model.weights, bench.knobs, {tokens, command.chunk});
    if (!result) {
      bench.json["results"].push_back({{"tokens", tokens}, {"error", result.error().to_string()}});
      PIVOT_TRY_VOID(bench.say(fmt::format("{:>9} {}\n", tokens, result.error().to_string())));
      continue;
    }
    const double rate = static_cast<double>(tokens) / result->seconds;
    bench.json["results"].push_back({{"tokens", tokens},
                                     {"chunk", std::min<std::int64_t>(command.chunk, tokens)},
                                     {"seconds", result->seconds},
                                     {"tokens_per_second", rate},
                                     {"logits_finite", result->logits_finite}});
    PIVOT_TRY_VOID(bench.say(fmt::format("{:>9} {:>9} {:>10.3f} {:>10.1f}{}\n", tokens,
                                         std::min<std::int64_t>(command.chunk, tokens), result->seconds, rate,
                                         result->logits_finite ? "" : "  logits are not finite")));
  }
  return finish(command, bench);
}

Result<int> run_kernels(const BenchCommand& command) {
  PIVOT_TRY(Bench bench, open(command, "kernels"));
  for (const std::int64_t context : command.contexts)
    for (const std::int32_t batch : command.batches) {
      PIVOT_TRY(const std::vector<KernelResult> results,
                bench_kernels(bench.backend, bench.model.weights, bench.knobs, {context, batch, 0}));
      PIVOT_TRY_VOID(
          bench.say(fmt::format("context {}, batch {}\n{:<24} {:>6} {:>10} {:>10} {:>10} {:>8}\n", context,
                                batch, "operator", "calls", "us", "MB", "GB/s", "share")));
      for (const KernelResult& r : results) {
        const double rate = r.bytes / r.seconds, share = rate / bench.model.read_bytes_per_second;
        bench.json["results"].push_back({{"context", context},
                                         {"batch", batch},
                                         {"operator", r.name},
                                         {"calls", r.calls},
                                         {"microseconds", r.seconds * 1e6},
                                         {"bytes", r.bytes},
                                         {"share_of_read_bandwidth", share}});
        PIVOT_TRY_VOID(
            bench.say(fmt::format("{:<24} {:>6} {:>10.2f} {:>10.2f} {:>10.1f} {:>7.1f}%\n", r.name, r.calls,
                                  r.seconds * 1e6, r.bytes * 1e-6, rate * 1e-9, 100.0 * share)));
      }
    }
  return finish(command, bench);
}

Result<int> run_ladder(const BenchCommand& command) {
  if (command.prompt < 2 || command.prompt > 4096)
    return fail(ErrorCode::kInvalidArgument, "--prompt {} is not possible; 2 to 4096 are", command.prompt);
  PIVOT_TRY(const std::filesystem::path folder, embedded_model_dir());
  LoadOptions load;
  load.draft = false;
  PIVOT_TRY(const std::shared_ptr<const ModelWeights> small, load_model(folder.string(), load));
  PIVOT_TRY(Bench bench, open(command, "ladder"));
  LadderCase wanted{{command.contexts.front(), command.batches.front(), command.steps}, {}};
  std::uint32_t state = 1;
  for (std::int32_t i = 0; i < command.prompt; ++i) {
    state = state * 1664525u + 1013904223u;
    wanted.prompt.push_back(
        static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(small->config.vocab_size)));
  }
  PIVOT_TRY(const std::vector<Rung> rungs,
            bench_ladder(bench.backend, bench.model.weights, small, bench.knobs, wanted));
  PIVOT_TRY_VOID(
      bench.say(fmt::format("context {}, batch {}; logits of the embedded model against the oracle\n"
                            "{:<16} {:>9} {:>9} {:>8} {:>12} {:>10} {:>8}\n",
                            wanted.decode.context, wanted.decode.batch, "rung", "ms/step", "tok/s", "share",
                            "relative L2", "largest", "argmax")));
  for (const Rung& rung : rungs) {
    Json row = decode_json(rung.speed, wanted.decode.context, wanted.decode.batch,
                           bench.model.read_bytes_per_second);
    const double share = row["share_of_roofline"].get<double>();
    row["rung"] = rung.name;
    row["effect"] = rung.effect;
    row["numerics"] = {{"relative_l2", rung.numerics.relative_l2},
                       {"largest_difference", rung.numerics.largest},
                       {"rows", rung.numerics.rows},
                       {"same_argmax", rung.numerics.same_argmax}};
    bench.json["results"].push_back(row);
    PIVOT_TRY_VOID(bench.say(fmt::format(
        "{:<16} {:>9.3f} {:>9.1f} {:>7.1f}% {:>12.2e} {:>10.2e} {:>3} of {}\n", rung.name,
        rung.speed.step_seconds * 1e3, wanted.decode.batch / rung.speed.step_seconds, 100.0 * share,
        rung.numerics.relative_l2, rung.numerics.largest, rung.numerics.same_argmax, rung.numerics.rows)));
  }
  return finish(command, bench);
}

Result<int> run(const BenchCommand& command) {
  switch (command.what) {
    case BenchCommand::What::kDecode:
      return run_decode(command);
    case BenchCommand::What::kPrefill:
      return run_prefill(command);
    case BenchCommand::What::kKernels:
      return run_kernels(command);
    case BenchCommand::What::kLadder:
      return run_ladder(command);
  }
  return 0;
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto command = std::make_shared<BenchCommand>();
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* summary, BenchCommand::What what) {
    CLI::App* sub = app.add_subcommand(name, summary);
    sub->parse_complete_callback([command, what] { command->what = what; });
    sub->add_option("--synthetic", command->synthetic,
                    "flash: full-size random weights and caches, made on the device")
        ->required();
    std::string words;
    for (const std::string& word : device_words()) words += (words.empty() ? "" : ", ") + word;
    sub->add_option("--device", command->device, words)->capture_default_str();
    sub->add_option("--layers", command->layers, "Only the first N layers; 0: all")->capture_default_str();
    sub->add_option("--resident-experts", command->resident,
                    "Experts of a layer with memory of their own; the rest are aliases of them")
        ->capture_default_str();
    sub->add_option("--knob", command->knobs, "NAME=VALUE of `pivot knobs`; more than once is possible")
        ->take_all();
    sub->add_option("--off", command->off, "A switch of the back-end to turn off, by its name in the ladder")
        ->take_all();
    sub->add_option("--out", command->out, "Write the JSON to this file too");
    sub->add_flag("--json", command->json, "Print one JSON object");
    return sub;
  };
  const auto add_sizes = [&](CLI::App* sub) {
    sub->add_option("--context", command->contexts, "Tokens before the step, one or more values")
        ->delimiter(',')
        ->capture_default_str();
    sub->add_option("--batch", command->batches, "Sequences of a step, one or more values")
        ->delimiter(',')
        ->capture_default_str();
    sub->add_option("--steps", command->steps, "Steps to time; the median counts")->capture_default_str();
  };
  add_sizes(add("decode", "Time single-token steps: forwards/s, tokens/s, share of the roofline",
                BenchCommand::What::kDecode));
  CLI::App* prefill = add("prefill", "Time a prompt from its first token", BenchCommand::What::kPrefill);
  prefill->add_option("--tokens", command->tokens, "Length of the prompt, one or more values")
      ->delimiter(',')
      ->capture_default_str();
  prefill->add_option("--chunk", command->chunk, "Tokens of one step")->capture_default_str();
  add_sizes(add("kernels", "Time the operators of a decode step one by one", BenchCommand::What::kKernels));
  CLI::App* ladder =
      add("ladder", "Turn the back-end's switches on one by one: speed and numerics of each rung",
          BenchCommand::What::kLadder);
  add_sizes(ladder);
  ladder->add_option("--prompt", command->prompt, "Tokens of the comparison with the oracle")
      ->capture_default_str();
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
