// pivot bench kernels: on a GPU the operators of one synthetic model; on a CPU bench/cpu_kernels.h's list.
#include <algorithm>

#include "base/report/units.h"
#include "bench/bench.h"
#include "bench/cpu_kernels.h"
#include "bench/operators.h"
#include "checkpoint/flash_config.h"
#include "engine/cuda_devices.h"
#include "engine/devices.h"

namespace pivot::cli {
namespace {

using report::Align;
using report::Cell;
using report::Table;
using report::Tone;

Result<int> run_cuda(const BenchOptions& given) {
  BenchOptions options = given;
  if (options.synthetic.empty()) options.synthetic = "flash";
  if (options.contexts.empty()) options.contexts = {4096};
  if (options.batches.empty()) options.batches = {1};
  if (!options.operators.empty())
    return fail(ErrorCode::kInvalidArgument, "--op is of the CPU; on a GPU all operators are timed");
  PIVOT_TRY(Bench bench, open_bench(options, "kernels"));
  for (const std::int64_t context : options.contexts)
    for (const std::int32_t batch : options.batches) {
      PIVOT_TRY(const std::unique_ptr<OperatorBench> operators,
                OperatorBench::create(bench.backend, bench.weights, bench.knobs, {context, batch, false}));
      Table table;
      table.caption = fmt::format("context {}, batch {}", context, batch);
      table.columns = {{"operator", Align::kLeft}, {"calls", Align::kRight}, {"us", Align::kRight},
                       {"MB", Align::kRight},      {"GB/s", Align::kRight},  {"share", Align::kRight}};
      for (const std::string_view name : operators->names()) {
        PIVOT_TRY(const std::optional<OperatorResult> r, operators->run(name, {3, 9, 0.0}));
        if (!r) continue;
        const double rate = r->cost.bytes / r->seconds, share = rate / bench.read_bytes_per_second;
        bench.json["results"].push_back({{"context", context},
                                         {"batch", batch},
                                         {"operator", r->name},
                                         {"calls", r->calls},
                                         {"microseconds", r->seconds * 1e6},
                                         {"bytes", r->cost.bytes},
                                         {"share_of_read_bandwidth", share}});
        table.rows.push_back({r->name, std::to_string(r->calls), fmt::format("{:.2f}", r->seconds * 1e6),
                              fmt::format("{:.2f}", r->cost.bytes * 1e-6), fmt::format("{:.1f}", rate * 1e-9),
                              report::format_percent(share)});
      }
      bench.document.add(std::move(table));
    }
  PIVOT_TRY(const std::vector<KernelTime> alone, kernel_times(*bench.backend));
  Table table;
  table.caption = "kernels by themselves, one row unless a count says otherwise";
  table.columns = {{"kernel", Align::kLeft},
                   {"us", Align::kRight},
                   {"MB", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"share", Align::kRight}};
  for (const KernelTime& r : alone) {
    const double rate = r.bytes / r.seconds, share = rate / bench.read_bytes_per_second;
    bench.json["kernels"].push_back({{"kernel", r.name},
                                     {"microseconds", r.seconds * 1e6},
                                     {"bytes", r.bytes},
                                     {"share_of_read_bandwidth", share}});
    table.rows.push_back({r.name, fmt::format("{:.2f}", r.seconds * 1e6),
                          fmt::format("{:.2f}", r.bytes * 1e-6), fmt::format("{:.1f}", rate * 1e-9),
                          report::format_percent(share)});
  }
  if (!alone.empty()) bench.document.add(std::move(table));
  return finish_bench(options, bench);
}

Result<int> run_cpu(const BenchOptions& given) {
  BenchOptions options = given;
  if (!options.synthetic.empty() && options.synthetic != "flash")
    return fail(ErrorCode::kInvalidArgument,
                "--synthetic is \"{}\"; the operators are timed at the shapes of flash", options.synthetic);
  if (options.contexts.empty()) options.contexts = {65536};
  if (options.batches.empty()) options.batches = {1, 8};
  PIVOT_TRY_VOID(check_bench_numbers(options, flash_config().max_position_embeddings - 65536));
  PIVOT_TRY(const std::vector<CpuKernel> kernels, choose_cpu_kernels(options.operators));
  CpuKernelSizes sizes;
  sizes.context = options.contexts.front();
  sizes.batches = options.batches;
  sizes.prompt_tokens = options.tokens;
  sizes.working_set_bytes = options.working_set_mib << 20;
  sizes.threads = options.threads;
  PIVOT_TRY_VOID(check_memory(cpu_kernels_bytes(kernels, sizes), available_memory_bytes(), "bench kernels",
                              "choose a smaller --working-set"));
  PIVOT_TRY(Bench bench, open_without_model(options, "kernels"));
  bench.json["model"] = "DeepSeek-V4-Flash shapes, random weights";
  bench.json["context"] = sizes.context;
  Table table;
  table.caption = fmt::format(
      "Operators at the shapes of DeepSeek-V4-Flash, context {}; a share is that of the bound: "
      "reading, or the instruction named",
      report::format_count(sizes.context));
  table.columns = {{"operator", Align::kLeft}, {"tokens", Align::kRight}, {"set", Align::kRight},
                   {"us", Align::kRight},      {"MB", Align::kRight},     {"GB/s", Align::kRight},
                   {"Gop/s", Align::kRight},   {"bound", Align::kLeft},   {"share", Align::kRight}};
  const auto tell = [&](const CpuKernel& kernel, const CpuKernelResult& r) {
    const double peak = bench.floors->peak(kernel.instruction) / kernel.operations;
    const Bound bound = bound_of(r.cost, bench.floors->read_all_threads, peak);
    const double share = bound.seconds / r.seconds;
    bench.json["results"].push_back({{"operator", kernel.name},
                                     {"what", kernel.what},
                                     {"tokens", r.tokens},
                                     {"prompt", r.prompt},
                                     {"calls", r.calls},
                                     {"working_set_bytes", r.working_set_bytes},
                                     {"microseconds", r.seconds * 1e6},
                                     {"microseconds_min", r.best_seconds * 1e6},
                                     {"bytes", r.cost.bytes},
                                     {"flops", r.cost.flops},
                                     {"bytes_per_second", r.cost.bytes / r.seconds},
                                     {"flops_per_second", r.cost.flops / r.seconds},
                                     {"bound", bound.memory ? "memory" : "compute"},
                                     {"instruction", kernel.instruction},
                                     {"operations_per_flop", kernel.operations},
                                     {"bound_microseconds", bound.seconds * 1e6},
                                     {"share_of_bound", share},
                                     {"share_of_bound_best", bound.seconds / r.best_seconds}});
    table.rows.push_back(
        {std::string(kernel.name), fmt::format("{}{}", r.tokens, r.prompt ? " (prompt)" : ""),
         report::format_bytes(r.working_set_bytes), fmt::format("{:.1f}", r.seconds * 1e6),
         fmt::format("{:.2f}", r.cost.bytes * 1e-6), fmt::format("{:.2f}", r.cost.bytes / r.seconds * 1e-9),
         fmt::format("{:.1f}", r.cost.flops / r.seconds * 1e-9),
         bound.memory ? std::string("reading") : std::string(kernel.instruction),
         Cell(report::format_percent(share), share >= 0.65  ? Tone::kGood
                                             : share >= 0.4 ? Tone::kPlain
                                                            : Tone::kWarning)});
  };
  for (const CpuKernel& kernel : kernels) {
    show_status(fmt::format("timing {}", kernel.name));
    PIVOT_TRY(const std::vector<CpuKernelResult> results,
              run_cpu_kernel(kernel, bench.backend, bench.knobs, sizes));
    for (const CpuKernelResult& result : results) tell(kernel, result);
  }
  bench.document.add(std::move(table));
  Table legend;
  legend.columns = {{"operator", Align::kLeft}, {"what", Align::kLeft}};
  for (const CpuKernel& kernel : kernels)
    legend.rows.push_back({std::string(kernel.name), Cell(std::string(kernel.what), Tone::kMuted)});
  bench.document.add(std::move(legend));
  return finish_bench(options, bench);
}

}  // namespace

Result<int> run_kernels(const BenchOptions& options) {
  if (!options.model.empty())
    return fail(ErrorCode::kInvalidArgument,
                "bench kernels runs on the published shapes and takes no MODEL; found {}", options.model);
  PIVOT_TRY(const std::shared_ptr<Backend> backend, make_backend(options.device, options.threads));
  if (backend->name() == "cuda") return run_cuda(options);
  return run_cpu(options);
}

}  // namespace pivot::cli
