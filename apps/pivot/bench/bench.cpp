// pivot bench: speed next to what the machine allows, of single operators and of whole steps.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/bench.h"
#include "bench/cpu_kernels.h"
#include "command.h"
#include "engine/devices.h"

namespace pivot::cli {
namespace {

using What = BenchOptions::What;

Result<int> run(const BenchOptions& options) {
  switch (options.what) {
    case What::kDecode:
      return run_decode(options);
    case What::kPrefill:
      return run_prefill(options);
    case What::kKernels:
      return run_kernels(options);
    case What::kLadder:
      return run_ladder(options);
  }
  return 0;
}

void add_sizes(CLI::App* sub, BenchOptions& options, const char* contexts, const char* batches) {
  sub->add_option("--context", options.contexts, contexts)->delimiter(',');
  sub->add_option("--batch", options.batches, batches)->delimiter(',');
}

std::string operator_names() {
  std::string names;
  for (const CpuKernel& kernel : cpu_kernels())
    names += (names.empty() ? "" : ", ") + std::string(kernel.name);
  return names;
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* summary, What what) {
    CLI::App* sub = app.add_subcommand(name, summary);
    sub->parse_complete_callback([options, what] { options->what = what; });
    std::string words;
    for (const std::string& word : device_words()) words += (words.empty() ? "" : ", ") + word;
    sub->add_option("--device", options->device, words)->capture_default_str();
    sub->add_option("--threads", options->threads, "CPU threads; 0 is one per usable core")
        ->capture_default_str();
    sub->add_option("--working-set", options->working_set_mib,
                    "MiB that a CPU's read bandwidth is measured on and its kernels stream")
        ->capture_default_str();
    sub->add_option("--knob", options->knobs, "NAME=VALUE[,NAME=VALUE] of `pivot knobs`; repeatable")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false)
        ->delimiter(',');
    sub->add_option("--off", options->off, "A switch of the GPU back-end to turn off; repeatable")
        ->allow_extra_args(false)
        ->delimiter(',');
    sub->add_option("--out", options->out, "Also write the JSON to this file")->type_name("FILE");
    sub->add_flag("--json", options->json, "Print JSON instead of tables (docs/schema/bench.json)");
    return sub;
  };
  const auto add_model = [&](CLI::App* sub) {
    sub->add_option("MODEL", options->model, "A checkpoint as for `pivot generate`, with random caches");
    return sub;
  };
  const auto add_synthetic = [&](CLI::App* sub) {
    sub->add_option(
        "--synthetic", options->synthetic,
        "Random weights of the published shapes instead of a MODEL: flash (whole), flash-layer (--layers of "
        "it, every expert, 43 layers extrapolated)");
    sub->add_option("--layers", options->layers, "Only the first N layers; 0: all, of flash-layer 1")
        ->capture_default_str();
    sub->add_option("--resident-experts", options->resident,
                    "Experts of a layer with memory of their own, of --synthetic flash; the rest are aliases")
        ->capture_default_str();
    return sub;
  };
  const auto add_steps = [&](CLI::App* sub) {
    sub->add_option("--steps", options->steps, "Steps to time; the median counts")->capture_default_str();
  };
  constexpr const char* kContexts = "Tokens in the caches, one or more values (4096)";
  constexpr const char* kBatches = "Sequences of a step, one or more values (1)";
  CLI::App* decode = add_synthetic(add_model(
      add("decode", "Time single-token steps: tokens/s, share of the roofline, operators", What::kDecode)));
  add_sizes(decode, *options, kContexts, kBatches);
  add_steps(decode);
  CLI::App* prefill =
      add_synthetic(add_model(add("prefill", "Time a prompt from its first token", What::kPrefill)));
  prefill->add_option("--tokens", options->tokens, "Length of the prompt, one or more values (8192)")
      ->delimiter(',');
  prefill->add_option("--chunk", options->chunk, "Tokens of one step")->capture_default_str();
  for (CLI::App* sub : {decode, prefill})
    sub->add_flag("--breakdown", options->breakdown, "Of a CPU: also the time of every operator");
  CLI::App* kernels =
      add_synthetic(add("kernels", "Time operators one by one, each next to its bound", What::kKernels));
  add_sizes(kernels, *options, "Tokens in the caches (GPU: 4096; CPU: 65536, for attention and index scores)",
            "Sequences of a step, one or more values (GPU: 1; CPU: 1, 8)");
  kernels->add_option("--op", options->operators, "Of a CPU, these only: " + operator_names())
      ->allow_extra_args(false)
      ->delimiter(',');
  kernels
      ->add_option("--tokens", options->tokens,
                   "Of a CPU: also steps of a prompt of so many tokens, one or more values")
      ->delimiter(',');
  CLI::App* ladder = add_synthetic(
      add("ladder", "Turn the back-end's switches on one by one: speed and numerics of each rung",
          What::kLadder));
  add_sizes(ladder, *options, kContexts, kBatches);
  add_steps(ladder);
  ladder->add_option("--prompt", options->prompt, "Tokens of the comparison with the oracle")
      ->capture_default_str();
  return [options] { return run(*options); };
}

}  // namespace pivot::cli
