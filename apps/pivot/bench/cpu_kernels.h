// The operators that `pivot bench kernels` times on a CPU: each on a model of the published shapes of its
// own, made so that the weights it streams fill the working set and everything else is small.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cost.h"
#include "ops/ops.h"

namespace pivot::cli {

struct CpuKernel {
  std::string_view name;         // "experts-fp4"
  std::string_view what;         // one line
  std::string_view instruction;  // whose peak bounds its operations (Floors::peaks)
  double operations = 1;         // of the instruction for each one that the cost counts
};

// Every kernel, in the order of a step.
std::vector<CpuKernel> cpu_kernels();
// Those named, in that order; all for an empty list. kInvalidArgument for a name that there is not.
Result<std::vector<CpuKernel>> choose_cpu_kernels(const std::vector<std::string>& names);

struct CpuKernelSizes {
  std::int64_t context = 65536;                // of attention and index scores
  std::vector<std::int32_t> batches = {1, 8};  // tokens of as many sequences
  std::vector<std::int64_t> prompt_tokens;  // tokens of one sequence; for the kernels that a prompt has too
  std::int64_t working_set_bytes = 1 << 30;
  int threads = 0;
};

struct CpuKernelResult {
  std::int64_t tokens = 0;
  bool prompt = false;
  std::int32_t calls = 0;  // of a pass over the working set
  double seconds = 0;      // of one call: median of the passes
  double best_seconds = 0;
  double working_set_bytes = 0;
  Cost cost;  // of one call
};

// The most memory that any of them takes at a time, weights and rows.
std::int64_t cpu_kernels_bytes(const std::vector<CpuKernel>& kernels, const CpuKernelSizes& sizes);

Result<std::vector<CpuKernelResult>> run_cpu_kernel(const CpuKernel& kernel,
                                                    const std::shared_ptr<Backend>& backend,
                                                    const Knobs& knobs, const CpuKernelSizes& sizes);

}  // namespace pivot::cli
