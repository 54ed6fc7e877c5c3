// The CPU kernels against the machine's own yardsticks: cpu_kernels [--threads N] [--isa NAME] [--mib N]
// [--passes N]
// [--cpu-clock] [--filter TEXT] [--json FILE].
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/file.h"
#include "ops/cpu/simd/measure.h"
#include "pivot_version.h"

namespace pivot {
namespace {

using namespace simd;

std::string first_line_of(const char* path, std::string_view key) {
  const auto text = read_file(path);
  if (!text) return "unknown";
  const std::size_t at = text->find(key);
  if (at == std::string::npos) return "unknown";
  const std::size_t colon = text->find(':', at) + 2;
  return text->substr(colon, text->find('\n', colon) - colon);
}

std::string to_json(const Measurement& m, const std::string& command) {
  std::string json = fmt::format(
      "{{\n  \"commit\": \"{}\",\n  \"machine\": \"{}\",\n  \"command\": \"{}\",\n  \"isa\": \"{}\",\n  "
      "\"threads\": {}, \"clock\": \"{}\",\n"
      "  \"working_set_bytes\": {},\n  \"read_gb_per_second\": {:.2f},\n  \"multiply_add_gflops\": {:.1f},\n "
      " \"kernels\": [",
      kCommit, first_line_of("/proc/cpuinfo", "model name"), command, to_string(m.options.isa),
      m.options.num_threads, m.options.cpu_clock ? "cpu seconds a thread" : "wall",
      m.options.working_set_bytes, m.peaks.read_bytes_per_second * 1e-9, m.peaks.flops_per_second * 1e-9);
  for (std::size_t i = 0; i < m.timings.size(); ++i) {
    const KernelTiming& t = m.timings[i];
    json += fmt::format(
        "{}\n    {{\"op\": \"{}\", \"shape\": \"{}\", \"seconds\": {:.6g}, \"gb_per_second\": {:.2f}, "
        "\"gflops\": {:.1f}, "
        "\"bound\": \"{}\", \"share\": {:.3f}}}",
        i == 0 ? "" : ",", t.op, t.shape, t.seconds, t.bytes / t.seconds * 1e-9, t.flops / t.seconds * 1e-9,
        t.limit == Limit::kRead ? "read" : "multiply-add", t.share(m.peaks));
  }
  return json + "\n  ]\n}\n";
}

}  // namespace
}  // namespace pivot

int main(int argc, char** argv) {
  using namespace pivot;
  simd::MeasureOptions options;
  options.isa = simd::supported_isas().back();
  std::string json_path, command;
  for (int i = 0; i < argc; ++i)
    command += (i == 0 ? "" : " ") + std::string(i == 0 ? "cpu_kernels" : argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (word == "--threads")
      options.num_threads = std::atoi(value());
    else if (word == "--isa")
      options.isa = simd::parse_isa(value()).value_or(options.isa);
    else if (word == "--mib")
      options.working_set_bytes = std::atoll(value()) << 20;
    else if (word == "--passes")
      options.passes = std::atoi(value());
    else if (word == "--cpu-clock")
      options.cpu_clock = true;
    else if (word == "--filter")
      options.filter = value();
    else if (word == "--json")
      json_path = value();
    else {
      fmt::print(stderr, "unknown argument {}\n", word);
      return 64;
    }
  }
  const simd::Measurement measurement = simd::measure_kernels(
      options,
      [&](const simd::Peaks& peaks) {
        fmt::print("{}: read {:.1f} GB/s, multiply-add {:.1f} GFLOP/s\n", simd::to_string(options.isa),
                   peaks.read_bytes_per_second * 1e-9, peaks.flops_per_second * 1e-9);
        std::fflush(stdout);
      },
      [](const simd::KernelTiming& t, const simd::Peaks& peaks) {
        fmt::print("{:<26} {:<34} {:9.3f} ms  {:6.1f} GB/s  {:7.1f} GFLOP/s  {:5.1f} % of {}\n", t.op,
                   t.shape, 1e3 * t.seconds, t.bytes / t.seconds * 1e-9, t.flops / t.seconds * 1e-9,
                   100 * t.share(peaks), t.limit == simd::Limit::kRead ? "read" : "multiply-add");
        std::fflush(stdout);
      });
  if (json_path.empty()) return 0;
  const Result<> written = write_file(json_path, to_json(measurement, command));
  if (written) return 0;
  fmt::print(stderr, "{}\n", written.error().to_string());
  return 73;
}
