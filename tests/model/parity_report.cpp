// Prints what the parity tests measure: parity_report [--json] [--backend NAME] [FILTER], FILTER a part of
// the case's id.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "engine/devices.h"
#include "model/parity.h"
#include "model/runner.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

bool has_data(const ParityCase& parity) {
  for (const std::string& needed : parity.needs)
    if (!find_data(needed)) return false;
  return true;
}

int report(const std::vector<std::string>& backends, std::string_view filter, bool json) {
  bool all_ok = true;
  bool first = true;
  if (json) fmt::print("[");
  for (const std::string& name : backends) {
    const auto backend = make_backend(name, 2);
    if (!backend) {
      fmt::print(stderr, "{}\n", backend.error().to_string());
      return 1;
    }
    for (const ParityCase& parity : parity_cases()) {
      if (parity.id().find(filter) == std::string::npos || !has_data(parity)) continue;
      const auto start = std::chrono::steady_clock::now();
      std::vector<Metric> metrics;
      try {
        metrics = parity.run(*backend);
      } catch (const Refused& refused) {
        if (json)
          fmt::print("{}\n{{\"backend\": \"{}\", \"case\": \"{}\", \"refused\": \"{}\"}}", first ? "" : ",",
                     name, parity.id(), refused.what());
        else
          fmt::print("{:<14} {:<38} refused: {}\n", name, parity.id(), refused.what());
        first = false;
        continue;
      }
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (json) {
        fmt::print("{}\n{{\"backend\": \"{}\", \"case\": \"{}\", \"seconds\": {:.3f}", first ? "" : ",", name,
                   parity.id(), seconds);
        for (const Metric& metric : metrics)
          fmt::print(", \"{}\": {{\"value\": {:.6g}, \"limit\": {:.6g}, \"ok\": {}}}", metric.name,
                     metric.value, metric.limit, metric.ok());
        fmt::print("}}");
      } else {
        fmt::print("{:<14} {:<38} {:6.2f} s", name, parity.id(), seconds);
        for (const Metric& metric : metrics)
          fmt::print("  {} {:.3g} ({} {:.3g}){}", metric.name, metric.value,
                     metric.at_least ? ">=" : "<=", metric.limit, metric.ok() ? "" : " FAILED");
        fmt::print("\n");
      }
      std::fflush(stdout);
      first = false;
      for (const Metric& metric : metrics) all_ok = all_ok && metric.ok();
    }
  }
  if (json) fmt::print("\n]\n");
  return all_ok ? 0 : 1;
}

}  // namespace
}  // namespace pivot::test

int main(int argc, char** argv) {
  std::vector<std::string> backends;
  std::string_view filter;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json")
      json = true;
    else if (word == "--backend" && i + 1 < argc)
      backends.emplace_back(argv[++i]);
    else
      filter = word;
  }
  if (backends.empty()) backends = pivot::test::tested_backends();
  return pivot::test::report(backends, filter, json);
}
