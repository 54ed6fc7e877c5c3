// A whole plan: one model on one machine under one workload, every layout evaluated, one recommended.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/report/document.h"
#include "checkpoint/inspect/subject.h"
#include "checkpoint/plan/layouts.h"

namespace pivot {

struct Plan {
  std::string label;        // of the checkpoint
  std::string bytes_basis;  // "measured: headers" or "computed from config.json"
  ModelFacts model;
  CheckpointFormats formats;
  Machine machine;
  Workload workload;
  std::vector<Evaluation> evaluations;
  std::optional<Recommendation> recommendation;  // nullopt: nothing fits
};

// Bytes from the headers where there are any, else from the config. kInvalidData / kUnsupported with the
// reason where the subject is not a checkpoint of this family.
Result<ModelFacts> model_facts(const Subject& subject, const CacheFormats& cache, CheckpointFormats& formats);

Result<Plan> make_plan(const Subject& subject, const Machine& machine, const Workload& workload,
                       const CacheFormats& cache);

report::Document plan_document(const Plan& plan);
std::string plan_json(const Plan& plan);  // docs/schema/plan.json

}  // namespace pivot
