// Which layouts a machine allows, what each gives a workload at its roofline, and which one to take and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/plan/memory.h"
#include "checkpoint/plan/roofline.h"

namespace pivot {

struct Workload {
  std::int64_t context_tokens = 32768;  // prompt and answer of one request
  std::int64_t output_tokens = 512;
  int concurrency = 32;  // requests at once, over the whole machine
  std::int64_t prompt_tokens() const { return context_tokens - output_tokens; }
};

// A layout of the whole machine: one kind of replica for everything, or prefill and decode on GPUs of their
// own.
struct Arrangement {
  Layout decode;                  // or both
  std::optional<Layout> prefill;  // only prefill
  std::string name() const;       // "TP2 x 4", "PP4 prefill + TP4 decode"
};

struct Evaluation {
  Arrangement arrangement;
  MemoryPlan memory;                         // of a decode GPU
  std::optional<MemoryPlan> prefill_memory;  // of a prefill GPU
  bool fits = false;
  std::string obstacle;              // why not, where it does not
  double admitted = 0;               // requests of the workload that are served at once
  std::int64_t capacity_tokens = 0;  // KV of all decode replicas together
  DecodeStep single;                 // one sequence on one replica
  DecodeStep loaded;                 // admitted / replicas sequences on one replica
  double total_decode_tokens_per_second = 0;
  Prefill prompt;  // one prompt of the workload on one replica
  double total_prefill_tokens_per_second = 0;
  double transfer_seconds = 0;     // prefill to decode, one request; 0 where both are one
  double first_token_seconds = 0;  // idle machine
  double requests_per_second = 0;  // the whole machine, prompts and answers
};

// All arrangements worth comparing on this machine.
std::vector<Arrangement> arrangements(const ModelConfig& config, const Machine& machine);
Evaluation evaluate(const ModelFacts& model, const Machine& machine, const Arrangement& arrangement,
                    const Workload& workload);

struct Recommendation {
  std::size_t best = 0;  // most requests per second among those that fit and admit the most of the workload
  std::size_t fastest_stream = 0;  // most tokens per second for one sequence
  std::vector<std::string> reasons;
};
// nullopt where nothing fits.
std::optional<Recommendation> recommend(const ModelFacts& model, const Machine& machine,
                                        const Workload& workload, const std::vector<Evaluation>& evaluations);

}  // namespace pivot
