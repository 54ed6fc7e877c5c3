// Opening what a benchmark runs on, and telling what it found.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "base/installation.h"
#include "base/report/text.h"
#include "base/report/units.h"
#include "base/threads.h"
#include "bench/bench.h"
#include "bench/cost.h"
#include "checkpoint/flash_config.h"
#include "checkpoint/load.h"
#include "checkpoint/resolve.h"
#include "checkpoint/synthesis.h"
#include "checkpoint/weight_shapes.h"
#include "engine/devices.h"
#include "inputs.h"
#include "model_options.h"
#include "ops/cpu/simd/isa.h"
#include "pivot_version.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMiB = 1 << 20;

std::string size_text(double bytes) { return report::format_bytes(bytes); }

Json floors_json(const Floors& floors) {
  Json peaks = Json::array();
  for (const Peak& peak : floors.peaks)
    peaks.push_back({{"instruction", peak.instruction},
                     {"flops_per_second_one_thread", peak.one_thread},
                     {"flops_per_second", peak.all_threads}});
  return {{"buffer_bytes", floors.buffer_bytes},
          {"read_bytes_per_second_one_thread", floors.read_one_thread},
          {"read_bytes_per_second", floors.read_all_threads},
          {"peaks", peaks}};
}

void add_floors(Bench& bench, const std::string& isa, int threads) {
  const MachineFacts machine = machine_facts();
  bench.json["machine"] = {
      {"cpu", machine.cpu}, {"usable_cores", machine.usable_cores}, {"threads", threads},
      {"isa", isa},         {"memory_bytes", machine.memory_bytes}, {"load_average", machine.load}};
  bench.json["floors"] = floors_json(*bench.floors);
  report::Table table;
  table.caption = fmt::format("Floors of this machine ({}, {}; load {:.1f}), measured now",
                              machine.cpu.empty() ? "unknown CPU" : machine.cpu, bench.backend->device().name,
                              machine.load);
  table.columns = {{"what", report::Align::kLeft},
                   {"one thread", report::Align::kRight},
                   {fmt::format("{} threads", threads), report::Align::kRight},
                   {"", report::Align::kLeft}};
  const Floors& f = *bench.floors;
  table.rows.push_back({"reading memory", fmt::format("{:.2f}", f.read_one_thread * 1e-9),
                        fmt::format("{:.2f}", f.read_all_threads * 1e-9),
                        fmt::format("GB/s, {} read once", size_text(static_cast<double>(f.buffer_bytes)))});
  for (const Peak& peak : f.peaks)
    table.rows.push_back({std::string(peak.instruction), fmt::format("{:.1f}", peak.one_thread * 1e-9),
                          fmt::format("{:.1f}", peak.all_threads * 1e-9),
                          "Gop/s, multiply and add count two"});
  bench.document.add(std::move(table));
}

// What to type to measure the same again: this process's own words, without where they were to be written.
std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command = "pivot", word;
  for (bool program = true, skipped = false; std::getline(file, word, '\0'); program = false) {
    if (program || std::exchange(skipped, false) || word.starts_with("--out=")) continue;
    if (word == "--out")
      skipped = true;
    else
      command += " " + word;
  }
  return command;
}

Result<> describe(Bench& bench, const BenchOptions& options, const std::string& name) {
  bench.json = {{"benchmark", name},
                {"command", own_command()},
                {"version", kVersion},
                {"commit", kCommit},
                {"build_type", kBuildType},
                {"device", bench.backend->device().name},
                {"knobs", pivot::describe(bench.knobs)}};
  if (bench.on_cuda()) {
    Json switches = Json::object();
    for (const BackendSwitch& s : backend_switches(*bench.backend)) switches[std::string(s.name)] = s.on;
    bench.json["switches"] = switches;
    return {};
  }
  PIVOT_TRY(const simd::Isa isa, simd::choose_isa());
  const std::string isa_name =
      bench.backend->name() == "cpu" ? std::string(simd::to_string(isa)) : std::string("reference");
  ThreadPool pool(options.threads);
  show_status("finding the floors of this machine");
  PIVOT_TRY(bench.floors, measure_floors(pool, simd::to_string(isa), options.working_set_mib * kMiB));
  bench.read_bytes_per_second = bench.floors->read_all_threads;
  add_floors(bench, isa_name, pool.size());
  return {};
}

// What --synthetic makes in host memory.
struct SyntheticPlan {
  ModelWeights shapes;
  SynthesisOptions options;
  std::int64_t bytes = 0;
};

bool is_layer_model(const BenchOptions& options) { return options.synthetic == "flash-layer"; }

std::int64_t resident_experts(const BenchOptions& options, const ModelConfig& config) {
  const std::int64_t experts = config.n_routed_experts;
  return is_layer_model(options) ? experts : std::min(options.resident, experts);
}

std::string layers_text(std::int64_t layers) {
  return fmt::format("{} layer{}", layers, layers == 1 ? "" : "s");
}

// Errors: kOutOfMemory where it does not fit in what is available.
Result<SyntheticPlan> plan_synthetic_model(const BenchOptions& options, const ModelConfig& config) {
  SyntheticPlan plan;
  plan.shapes = shape_weights(config);
  plan.options.resident_experts = resident_experts(options, config);
  plan.options.shared_embedding = is_layer_model(options);
  plan.bytes = synthesized_bytes(plan.shapes, plan.options);
  PIVOT_TRY_VOID(check_memory(
      plan.bytes, available_memory_bytes(),
      fmt::format("--synthetic {} with {} and {} experts a layer", options.synthetic,
                  layers_text(config.num_hidden_layers), plan.options.resident_experts),
      is_layer_model(options) ? "choose fewer --layers" : "choose fewer --layers or --resident-experts"));
  return plan;
}

Result<> make_synthetic_model(Bench& bench, const BenchOptions& options, const ModelConfig& config,
                              std::optional<SyntheticPlan> plan) {
  const std::int64_t resident = resident_experts(options, config);
  std::int64_t bytes = 0;
  if (plan) {
    bytes = plan->bytes;
    show_status("making the weights");
    PIVOT_TRY(bench.weights, synthesize_weights(std::move(plan->shapes), plan->options, options.threads));
  } else {
    PIVOT_TRY(SyntheticModel model, synthesize_model(*bench.backend, config, resident));
    bench.weights = std::move(model.weights);
    bench.read_bytes_per_second = model.read_bytes_per_second;
    bytes = model.bytes;
  }
  bench.extrapolate_from_layers = is_layer_model(options) ? config.num_hidden_layers : 0;
  bench.json["model"] = "DeepSeek-V4-Flash shapes, random weights";
  bench.json["synthetic"] = options.synthetic;
  bench.json["layers"] = config.num_hidden_layers;
  bench.json["compress_ratios"] = config.compress_ratios;
  bench.json["resident_experts_per_layer"] = resident;
  bench.json["weight_bytes"] = bytes;
  bench.json["read_bytes_per_second"] = bench.read_bytes_per_second;
  const std::string ratios = config.num_hidden_layers <= 6
                                 ? fmt::format("ratio {}", fmt::join(config.compress_ratios, ", "))
                                 : std::string("ratios as published");
  bench.document.paragraph(fmt::format(
      "{}: {} of DeepSeek-V4-Flash's shapes ({}), random weights, {} of {} experts a layer, {}; reading: "
      "{:.2f} GB/s",
      bench.backend->device().name, layers_text(config.num_hidden_layers), ratios, resident,
      config.n_routed_experts, size_text(static_cast<double>(bytes)), bench.read_bytes_per_second * 1e-9));
  return {};
}

Result<> load_checkpoint(Bench& bench, const BenchOptions& options) {
  PIVOT_TRY(const std::filesystem::path path, resolve_model_argument(options.model));
  LoadOptions load;
  load.draft = false;
  PIVOT_TRY(bench.weights, load_model(path.string(), load));
  PIVOT_TRY_VOID(check_bench_numbers(options, bench.weights->config.max_position_embeddings));
  bench.checkpoint = true;
  double bytes = dense_bytes(*bench.weights);
  for (const LayerWeights& layer : bench.weights->layers)
    for (const ExpertWeights& expert : layer.ffn.experts) bytes += bytes_of(expert);
  bench.json["model"] = options.model;
  bench.json["layers"] = bench.weights->config.num_hidden_layers;
  bench.json["weight_bytes"] = bytes;
  bench.json["read_bytes_per_second"] = bench.read_bytes_per_second;
  bench.document.paragraph(fmt::format("{} on {}: {} layers, {} of weights without the embedding",
                                       options.model, bench.backend->device().name,
                                       bench.weights->config.num_hidden_layers, size_text(bytes)));
  return {};
}

Result<Bench> open_backend(const BenchOptions& options) {
  Bench bench;
  PIVOT_TRY_VOID(set_knobs(bench.knobs, options.knobs));
  PIVOT_TRY(bench.backend, make_backend(options.device, options.threads));
  for (const std::string& off : options.off) PIVOT_TRY_VOID(set_backend_switch(*bench.backend, off, false));
  return bench;
}

}  // namespace

Result<> check_bench_numbers(const BenchOptions& options, std::int64_t longest) {
  if (options.steps < 3)
    return fail(ErrorCode::kInvalidArgument, "--steps is {}; at least 3 are needed", options.steps);
  for (const std::int64_t context : options.contexts)
    if (context < 1 || context > longest)
      return fail(ErrorCode::kInvalidArgument, "--context {} is not possible; 1 to {} are", context, longest);
  for (const std::int32_t batch : options.batches)
    if (batch < 1 || batch > 1024)
      return fail(ErrorCode::kInvalidArgument, "--batch {} is not possible; 1 to 1024 are", batch);
  for (const std::int64_t tokens : options.tokens)
    if (tokens < 1 || tokens > longest)
      return fail(ErrorCode::kInvalidArgument, "--tokens {} is not possible; 1 to {} are", tokens, longest);
  if (options.chunk < 1 || options.chunk > 65536)
    return fail(ErrorCode::kInvalidArgument, "--chunk {} is not possible; 1 to 65536 are", options.chunk);
  if (options.working_set_mib < 1 || options.working_set_mib > 65536)
    return fail(ErrorCode::kInvalidArgument, "--working-set {} is not possible; 1 to 65536 MiB are",
                options.working_set_mib);
  if (options.layers < 0 || options.layers > 1024)
    return fail(ErrorCode::kInvalidArgument, "--layers {} is not possible; 1 to 1024 are, and 0 for all",
                options.layers);
  return {};
}

ModelConfig flash_layer_config(std::int64_t layers) {
  ModelConfig config = flash_config(layers > 0 ? layers : 1);
  config.num_hash_layers = 0;
  for (std::size_t l = 0; l < config.compress_ratios.size(); ++l)
    config.compress_ratios[l] = l % 2 == 0 ? 4 : 128;
  return config;
}

Result<Bench> open_without_model(const BenchOptions& options, const std::string& name) {
  PIVOT_TRY_VOID(check_bench_numbers(options, flash_config().max_position_embeddings));
  PIVOT_TRY(Bench bench, open_backend(options));
  PIVOT_TRY_VOID(describe(bench, options, name));
  return bench;
}

Result<Bench> open_bench(const BenchOptions& options, const std::string& name) {
  if (options.model.empty() && options.synthetic.empty())
    return fail(ErrorCode::kInvalidArgument,
                "a MODEL, --synthetic flash or --synthetic flash-layer is wanted");
  if (!options.model.empty() && !options.synthetic.empty())
    return fail(ErrorCode::kInvalidArgument, "MODEL and --synthetic exclude each other; found {} and {}",
                options.model, options.synthetic);
  if (!options.synthetic.empty() && options.synthetic != "flash" && options.synthetic != "flash-layer")
    return fail(ErrorCode::kInvalidArgument,
                "--synthetic is \"{}\"; what can be synthesised is flash and flash-layer", options.synthetic);
  const ModelConfig config =
      options.synthetic == "flash-layer" ? flash_layer_config(options.layers) : flash_config(options.layers);
  PIVOT_TRY_VOID(check_bench_numbers(options, config.max_position_embeddings));
  if (!options.model.empty() && options.layers != 0)
    return fail(ErrorCode::kInvalidArgument, "--layers goes with --synthetic; a checkpoint is run whole");
  PIVOT_TRY(Bench bench, open_backend(options));
  if (options.breakdown && bench.on_cuda())
    return fail(
        ErrorCode::kInvalidArgument,
        "--breakdown is of the CPU, whose operators run one after the other; for a GPU there is `pivot "
        "bench kernels`");
  if (!options.model.empty()) PIVOT_TRY_VOID(resolve_model_argument(options.model));
  if (options.resident < 1)
    return fail(ErrorCode::kInvalidArgument, "--resident-experts {} is not possible; 1 to {} are",
                options.resident, config.n_routed_experts);
  std::optional<SyntheticPlan> plan;
  if (options.model.empty() && !bench.on_cuda()) {
    PIVOT_TRY(plan, plan_synthetic_model(options, config));
  }
  PIVOT_TRY_VOID(describe(bench, options, name));
  if (options.model.empty())
    PIVOT_TRY_VOID(make_synthetic_model(bench, options, config, std::move(plan)));
  else
    PIVOT_TRY_VOID(load_checkpoint(bench, options));
  return bench;
}

void show_status(std::string_view what) {
  if (!is_terminal(STDERR_FILENO)) return;
  std::fprintf(stderr, "\r\033[K%.*s", static_cast<int>(what.size()), what.data());
  std::fflush(stderr);
}

Result<int> finish_bench(const BenchOptions& options, Bench& bench) {
  show_status("");
  if (bench.json.contains("machine")) bench.json["machine"]["load_average_end"] = machine_facts().load;
  const std::string json = bench.json.dump(1) + "\n";
  if (!options.out.empty()) {
    std::ofstream file(options.out, std::ios::binary);
    file << json;
    file.close();
    if (!file) return fail(ErrorCode::kIo, "{} could not be written", options.out);
  }
  constexpr int kFileWidth = 120, kWidest = 200;
  const int width =
      is_terminal(STDOUT_FILENO) ? std::clamp(terminal_width(STDOUT_FILENO), 60, kWidest) : kFileWidth;
  PIVOT_TRY_VOID(write_output(
      options.json ? json : report::render_text(bench.document, {width, wants_color(STDOUT_FILENO)})));
  return 0;
}

}  // namespace pivot::cli
