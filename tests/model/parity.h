// The parity cases: every golden run of the two golden sets, on any back-end, with its tolerance.
//
// Used twice: as tests (every metric within its limit) and by parity_report, which prints the measured
// values.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace pivot::test {

struct Metric {
  std::string name;
  double value = 0;
  double limit = 0;
  bool at_least = false;  // the limit is a lower bound

  bool ok() const { return at_least ? value >= limit : value <= limit; }  // false for NaN
};

struct ParityCase {
  std::string set;                 // "goldens", "goldens-wide"
  std::string mode;                // "plain", "qat", "native", ...
  std::string name;                // "n129"
  std::vector<std::string> needs;  // files and folders, relative to the test data
  std::function<std::vector<Metric>(const std::shared_ptr<Backend>&)> run;

  std::string id() const { return set + "/" + mode + "/" + name; }
};

// All cases, in the order that finds faults fastest: plain, qat, native, then the bf16 runs and the twins.
std::vector<ParityCase> parity_cases();

}  // namespace pivot::test
