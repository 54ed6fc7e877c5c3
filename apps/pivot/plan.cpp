// pivot plan: what a checkpoint needs on given hardware, and what moving to another one would mean.
#include "checkpoint/plan/plan.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/installation.h"
#include "checkpoint/plan/migration.h"
#include "command.h"
#include "report_output.h"

namespace pivot::cli {
namespace {

struct Options {
  std::string path;
  std::string config;
  std::string to;
  std::string to_config;
  std::string diff;
  std::string gpus;
  std::string link;
  int numa_nodes = 1;
  Workload workload;
  std::string kv = "fp8";
  std::string index = "fp4";
  double bandwidth_mbits = 0;
  double load_gbytes = 2;
  ReportOutput output;
};

std::optional<std::filesystem::path> optional_path(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return std::filesystem::path(text);
}

Result<Machine> machine_of(const Options& options) {
  PIVOT_TRY(const HardwareCatalogue catalogue, parse_hardware(embedded_hardware_json()));
  if (options.gpus.empty()) return detect_machine(catalogue);
  return parse_machine(options.gpus, options.link, options.numa_nodes, catalogue);
}

Result<int> run_migration(const Options& options, const Subject& subject, const Machine& machine,
                          const CacheFormats& cache) {
  PIVOT_TRY(const std::filesystem::path to, resolve_model_argument(options.to));
  PIVOT_TRY(const Subject target, Subject::open(to.string(), optional_path(options.to_config)));
  MigrationInput input;
  PIVOT_TRY(input.a, migration_side(subject, {}, machine, options.workload, cache));
  PIVOT_TRY(input.b, migration_side(target, {}, machine, options.workload, cache));
  if (!options.diff.empty()) {
    PIVOT_TRY(const std::string text, read_file(options.diff));
    PIVOT_TRY(input.diff, parse_diff_json(text, options.diff));
  }
  input.download_rate_given = options.bandwidth_mbits > 0;
  if (input.download_rate_given) input.download_bytes_per_second = options.bandwidth_mbits * 1e6 / 8;
  input.load_bytes_per_second = options.load_gbytes * 1e9;
  const Migration migration = make_migration(input);
  PIVOT_TRY_VOID(write_report(options.output, migration_document(migration, input),
                              [&] { return migration_json(migration); }));
  return 0;
}

Result<int> run(const Options& options) {
  PIVOT_TRY(const Machine machine, machine_of(options));
  CacheFormats cache;
  cache.kv = options.kv == "bf16" ? KvFormat::kBf16 : KvFormat::kPacked;
  cache.index = options.index == "bf16"  ? IndexFormat::kBf16
                : options.index == "fp8" ? IndexFormat::kFp8
                                         : IndexFormat::kFp4;
  PIVOT_TRY(const std::filesystem::path path, resolve_model_argument(options.path));
  PIVOT_TRY(const Subject subject, Subject::open(path.string(), optional_path(options.config)));
  if (!options.to.empty()) return run_migration(options, subject, machine, cache);
  PIVOT_TRY(const Plan plan, make_plan(subject, machine, options.workload, cache));
  PIVOT_TRY_VOID(write_report(options.output, plan_document(plan), [&] { return plan_json(plan); }));
  constexpr int kNothingFits = 1;
  return plan.recommendation ? 0 : kNothingFits;
}

}  // namespace

Run add_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("PATH", options->path,
                 "Checkpoint folder, ORG/NAME, `embedded`, header dump, or folder with a config.json")
      ->required();
  app.add_option("--config", options->config, "config.json for a header dump")->type_name("FILE");
  app.add_option("--gpus", options->gpus, "COUNTxNAME, for example 8xRTX-PRO-6000 (default: this machine's)")
      ->type_name("GPUS");
  app.add_option("--link", options->link,
                 "nvlink4, nvlink5, pcie5x16, pcie5x16-no-p2p, pcie4x16 (default: the card's usual)")
      ->type_name("LINK");
  app.add_option("--numa", options->numa_nodes, "NUMA nodes that the GPUs are spread over")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--context", options->workload.context_tokens, "Tokens of a request, prompt and answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--output", options->workload.output_tokens, "Tokens of the answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--concurrency", options->workload.concurrency, "Requests at once over the whole machine")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", options->kv, "KV rows: fp8 (packed, exact) or bf16")
      ->check(CLI::IsMember({"fp8", "bf16"}))
      ->capture_default_str();
  app.add_option("--index-dtype", options->index, "Index keys: fp4 (exact), fp8 or bf16")
      ->check(CLI::IsMember({"fp4", "fp8", "bf16"}))
      ->capture_default_str();
  app.add_option("--to", options->to, "Report what moving from PATH to this checkpoint means")
      ->type_name("PATH");
  app.add_option("--to-config", options->to_config, "config.json for a header dump given to --to")
      ->type_name("FILE");
  app.add_option("--diff", options->diff, "With --to: a report of `pivot diff --json` of the two")
      ->type_name("FILE");
  app.add_option("--bandwidth", options->bandwidth_mbits,
                 "With --to: download rate in Mbit/s (default 1000, marked as assumed)")
      ->check(CLI::PositiveNumber);
  app.add_option("--load-rate", options->load_gbytes, "With --to: GB/s from disk to GPU memory")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_report_options(app, options->output, "plan.json; with --to migration.json");
  app.footer(
      "Exit code 0: planned. 1: no layout fits. Figures are rooflines: what no engine can beat, to compare "
      "layouts by.");
  return [options] { return run(*options); };
}

}  // namespace pivot::cli
