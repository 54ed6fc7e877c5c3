// What the sub-commands of `pivot bench` share: their options, the opened model, and how results are told.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/report/document.h"
#include "bench/machine.h"
#include "bench/model.h"
#include "ops/knobs.h"

namespace pivot::cli {

struct BenchOptions {
  enum class What { kDecode, kPrefill, kKernels, kLadder } what = What::kDecode;
  std::string model;      // a checkpoint; empty: synthetic
  std::string synthetic;  // "flash", "flash-layer"
  std::string device = "auto";
  int threads = 0;
  std::vector<std::int64_t> contexts;  // empty: 4096; of the kernels of a CPU 65536
  std::vector<std::int32_t> batches;   // empty: 1; of the kernels of a CPU 1 and 8
  std::vector<std::int64_t>
      tokens;  // prefill: lengths of prompts; kernels on a CPU: tokens of a prompt's step
  std::int32_t chunk = 8192;
  std::int64_t layers = 0;
  std::int64_t resident = 232;
  std::int32_t steps = 24;
  std::int32_t prompt = 256;
  std::int64_t working_set_mib = 1024;
  bool breakdown = false;
  std::vector<std::string> operators;  // kernels on a CPU: names; empty: all
  std::vector<std::string> knobs;
  std::vector<std::string> off;
  std::string out;
  bool json = false;
};

struct Bench {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const ModelWeights> weights;
  double read_bytes_per_second = 0;
  std::optional<Floors> floors;  // of a CPU
  Knobs knobs;
  nlohmann::ordered_json json;
  report::Document document;
  std::int64_t extrapolate_from_layers = 0;  // > 0: the model is that many layers of the whole one
  bool checkpoint = false;

  bool on_cuda() const { return backend->name() == "cuda"; }
};

// The model that --synthetic flash-layer names: layers of the published shapes with learned routing, of
// ratios 4, 128, 4, 128, ...
ModelConfig flash_layer_config(std::int64_t layers);

// kInvalidArgument for a number that is not possible; `longest`: the largest context.
Result<> check_bench_numbers(const BenchOptions& options, std::int64_t longest);
// Checks the options, makes the back-end, finds the floors of a CPU and makes or loads the model. Nothing
// large is allocated before it is known to fit.
Result<Bench> open_bench(const BenchOptions& options, const std::string& name);
// For kernels on a CPU, which make their models one after the other.
Result<Bench> open_without_model(const BenchOptions& options, const std::string& name);

// What is being timed, on standard error where that is a terminal; in place of what it said before.
void show_status(std::string_view what);

// Prints the document, or the JSON with --json, and writes --out.
Result<int> finish_bench(const BenchOptions& options, Bench& bench);

// ---- the sub-commands ----
Result<int> run_decode(const BenchOptions& options);
Result<int> run_prefill(const BenchOptions& options);
Result<int> run_kernels(const BenchOptions& options);
Result<int> run_ladder(const BenchOptions& options);

nlohmann::ordered_json decode_json(const DecodeResult& result, std::int64_t context, std::int32_t batch,
                                   double read_bytes_per_second);

}  // namespace pivot::cli
