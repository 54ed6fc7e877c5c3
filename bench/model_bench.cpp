// Prefill and decode speed of a whole model on a back-end: model_bench FOLDER [--device D] [--threads N]
// [--contexts 1024,4096,...] [--decode N].
//
// For each context: one prefill from nothing, then greedy decode steps at that depth. CPU seconds are printed
// beside the wall clock, because they stay meaningful on a machine that is busy with other work.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/load.h"
#include "engine/devices.h"
#include "engine/session.h"

namespace pivot {
namespace {

struct Clock {
  std::chrono::steady_clock::time_point wall = std::chrono::steady_clock::now();
  double cpu = cpu_seconds();

  static double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  double wall_passed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count();
  }
  double cpu_passed() const { return cpu_seconds() - cpu; }
};

struct Arguments {
  std::string folder, device = "cpu";
  int threads = 0, decode = 32, chunk = 0;
  std::vector<std::int64_t> contexts = {1024, 4096, 32768};
};

std::vector<std::int64_t> numbers(std::string_view list) {
  std::vector<std::int64_t> values;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    values.push_back(std::atoll(std::string(list.substr(at, comma - at)).c_str()));
    at = comma + 1;
  }
  return values;
}

Result<> measure(const Arguments& arguments) {
  PIVOT_TRY(const auto weights, load_model(arguments.folder));
  PIVOT_TRY(const auto backend, make_backend(arguments.device, arguments.threads));
  fmt::print("{}\n", backend->device().name);
  for (const std::int64_t context : arguments.contexts) {
    SessionOptions options;
    options.weights = weights;
    options.backend = backend;
    options.max_context = context + arguments.decode + 1;
    options.chunk_tokens = arguments.chunk;
    PIVOT_TRY(const auto session, Session::create(options));
    std::vector<TokenId> ids;
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < context; ++i) {
      state = state * 1664525u + 1013904223u;
      ids.push_back(TokenId{static_cast<std::int32_t>(
                                (state >> 8) % static_cast<std::uint32_t>(weights->config.vocab_size - 200)) +
                            100});
    }
    const Clock prefill;
    PIVOT_TRY_VOID(session->prefill(ids));
    const double prefill_wall = prefill.wall_passed(), prefill_cpu = prefill.cpu_passed();
    std::vector<double> steps;
    const Clock decode;
    for (int i = 0; i < arguments.decode; ++i) {
      PIVOT_TRY(const TokenId next, argmax(session->logits()));
      const Clock step;
      PIVOT_TRY_VOID(session->decode(next));
      steps.push_back(step.wall_passed());
    }
    const double decode_cpu = decode.cpu_passed() / arguments.decode;
    std::sort(steps.begin(), steps.end());
    fmt::print(
        "context {:6}: prefill {:7.3f} s wall, {:7.3f} s cpu ({:.0f} tok/s wall); decode step {:.3f} ms "
        "median, "
        "{:.3f} ms best, {:.3f} ms cpu ({:.0f} tok/s median)\n",
        context, prefill_wall, prefill_cpu, static_cast<double>(context) / prefill_wall,
        1e3 * steps[steps.size() / 2], 1e3 * steps.front(), 1e3 * decode_cpu, 1.0 / steps[steps.size() / 2]);
    std::fflush(stdout);
  }
  return {};
}

}  // namespace
}  // namespace pivot

int main(int argc, char** argv) {
  pivot::Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (word == "--device")
      arguments.device = value();
    else if (word == "--threads")
      arguments.threads = std::atoi(value());
    else if (word == "--decode")
      arguments.decode = std::max(1, std::atoi(value()));
    else if (word == "--chunk")
      arguments.chunk = std::atoi(value());
    else if (word == "--contexts")
      arguments.contexts = pivot::numbers(value());
    else
      arguments.folder = word;
  }
  if (arguments.folder.empty()) {
    fmt::print(
        stderr,
        "usage: model_bench FOLDER [--device D] [--threads N] [--contexts A,B] [--decode N] [--chunk N]\n");
    return 64;
  }
  const pivot::Result<> result = pivot::measure(arguments);
  if (result) return 0;
  fmt::print(stderr, "{}\n", result.error().to_string());
  return 1;
}
