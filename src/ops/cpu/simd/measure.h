// How fast the kernels run against what the machine can do: the code behind `pivot bench kernels --device
// cpu`.
//
// Every figure is the best of several passes. The yardsticks come first, from the same threads in the same
// run: the bandwidth of reading a large buffer once, and the rate of independent multiply-adds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/cpu/simd/isa.h"

namespace pivot::simd {

struct Peaks {
  double read_bytes_per_second = 0;
  double flops_per_second = 0;  // two per multiply-add
};

enum class Limit { kRead, kCompute };

struct KernelTiming {
  std::string op;      // "expert gemv fp4"
  std::string shape;   // "256 experts x [2048, 4096]"
  double seconds = 0;  // of the best pass
  double bytes = 0;    // that the pass has to read
  double flops = 0;
  Limit limit = Limit::kRead;

  // Of the yardstick that bounds this op.
  double share(const Peaks& peaks) const {
    return limit == Limit::kRead ? bytes / seconds / peaks.read_bytes_per_second
                                 : flops / seconds / peaks.flops_per_second;
  }
};

struct MeasureOptions {
  int num_threads = 0;  // 0: one per usable core
  Isa isa = Isa::kPortable;
  std::int64_t working_set_bytes = std::int64_t{1} << 30;  // of the streaming ops, and of the read yardstick
  int passes = 5;
  // Count CPU seconds per thread instead of the wall clock: for a machine that is busy with other work.
  bool cpu_clock = false;
  std::string filter;  // only ops whose name contains it
};

struct Measurement {
  MeasureOptions options;  // num_threads resolved
  Peaks peaks;
  std::vector<KernelTiming> timings;
};

// on_peaks and on_timing report as soon as something is known.
Measurement measure_kernels(const MeasureOptions& options, const std::function<void(const Peaks&)>& on_peaks,
                            const std::function<void(const KernelTiming&, const Peaks&)>& on_timing);

}  // namespace pivot::simd
