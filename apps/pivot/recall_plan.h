// What `pivot recall` was asked for, and the cases that follow from it: shared by the in-process run and the
// run against a server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model_options.h"
#include "recall/haystack.h"
#include "recall/report.h"
#include "recall/runner.h"
#include "report_output.h"

namespace pivot::cli {

struct RecallCommand {
  ModelOptions model;
  std::vector<std::string> tasks = {"single"};
  std::vector<std::int64_t> lengths = {512, 1024, 2048, 4096};
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::vector<std::int64_t> residues = {0, 1, 2, 3};
  std::int64_t modulus = 4;
  std::int64_t samples = 1;
  std::uint64_t seed = 1;
  std::string wording = "auto";
  std::string text;
  std::string out;
  bool resume = false;
  bool probe = false;
  std::int64_t probe_every = 0;
  bool attribute = false;
  bool every_variant = false;
  std::string twin;
  std::string inject;
  // Of a server.
  std::string url;
  std::string served_model;
  std::string send = "ids";
  std::string api_key;
  double stall_seconds = 120;
  ReportOutput report;
};

struct RecallPlan {
  recall::Wording wording = recall::Wording::kNeedle;
  std::vector<recall::Case> cases;
  std::int64_t longest = 0;      // tokens of the longest prompt and its answer
  recall::RunFacts facts;        // model, wording, text, wanted_cases
  std::string text_fingerprint;  // of the text that facts are hidden in
};

// Builds every case, so that one that cannot be built is told before the first runs. `context` is the most
// tokens that the model takes; 0: unknown. Errors: kInvalidArgument, kContextOverflow, the text's.
Result<RecallPlan> plan_recall(const RecallCommand& command, const Tokenizer& tokenizer,
                               std::int64_t context);

// report.html and report.json in --out, if there is one, and what the report options ask for.
Result<> write_reports(const RecallCommand& command, const report::Document& document,
                       const std::string& json);

// Asks one case.
using AskFn = std::function<Result<recall::CaseResult>(const recall::Case&)>;

// Every case of the plan that the log of --out does not hold yet, with a progress bar; then the reports.
// `settings` is the JSON text that must be equal for a log to be continued. A cancelled or failed run leaves
// its partial reports and returns the error.
Result<int> run_recall(const RecallCommand& command, const RecallPlan& plan, const std::string& settings,
                       const AskFn& ask);

// The cases against the server of --url.
Result<int> run_recall_remote(const RecallCommand& command);

}  // namespace pivot::cli
