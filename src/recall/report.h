// A run as a report: for the terminal, JSON and one HTML page.
#pragma once

#include <string>
#include <vector>

#include "base/report/document.h"
#include "recall/runner.h"

namespace pivot::recall {

struct RunFacts {
  std::string model, device, knobs, wording, text;
  std::string asked;  // "single, multikey; 512, 1024 tokens; depth 0, 0.5"
  std::int64_t text_tokens = 0;
  std::int64_t wanted_cases = 0;
  bool partial = false;  // stopped before the end
  double seconds = 0;
};

// Cases without an answer (CaseResult::failure) are listed and count in no figure.
report::Document run_document(const RunFacts& facts, const std::vector<CaseResult>& results);
std::string run_json(const RunFacts& facts, const std::vector<CaseResult>& results);

}  // namespace pivot::recall
