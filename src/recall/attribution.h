// Which part of an engine loses recall: the same cases under every suspect's alternative, and each part
// against the oracle.
//
// Two kinds of evidence. Behaviour: how many of the same cases an alternative answers that the subject does
// not (paired, McNemar's exact test, Holm's correction over the alternatives). Mechanism: the probe's audit,
// which compares what each part wrote with what the oracle would have written from the same input. The
// verdict needs both before it accuses a part; a part that differs without costing an answer is reported as
// such, and a loss without a differing part too.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/report/document.h"
#include "recall/fault.h"
#include "recall/report.h"
#include "recall/runner.h"
#include "recall/statistics.h"

namespace pivot::recall {

struct AttributionSubject {
  std::shared_ptr<const ModelWeights> weights;  // on the host
  std::shared_ptr<Backend> backend;             // what is suspected
  Knobs knobs;
  std::int32_t chunk_tokens = 0;  // 0: the session chooses
  const Tokenizer* tokenizer = nullptr;
  std::vector<TokenId> stop_tokens;
  int num_threads = 0;  // of the oracle
  // false: an alternative that cannot change the verdict any more is not run. Where every answer is right
  // nothing can be got back; where a part differs from the oracle, the oracle's own answers say what it
  // costs.
  bool every_variant = false;
  const CancelFlag* cancel = nullptr;
  ProgressFn on_progress;  // cases done and to do
};

struct Variant {
  std::string name;   // "all entries attended"
  std::string rules;  // what it would show: "the indexer and its selection"
  Knobs knobs;
  std::int32_t chunk_tokens = 0;
  Path path = Path::kOneShot;
  bool oracle = false;  // runs on cpu-reference instead of the subject's back-end
};

struct VariantResult {
  Variant variant;
  std::string unsupported;  // why it could not run; empty: it ran
  std::int64_t right = 0;
  std::int64_t cases = 0;
  PairedCounts pairs;  // first: the subject (of the same path), second: this variant
  double p = 1;        // McNemar, exact, two-sided
  double p_holm = 1;   // corrected for the number of variants
  Interval gain;       // of pairs.difference()
};

enum class VerdictKind : std::uint8_t {
  kClean,        // nothing lost that an alternative gets back, and no part differs
  kPart,         // a part differs from the oracle, and answers are lost
  kHarmless,     // a part differs from the oracle, and no answer is lost on these cases
  kSetting,      // every part agrees with the oracle; a setting gets answers back
  kUnexplained,  // answers are lost on this back-end that the oracle gives, and every part agrees
  kModel,        // answers are lost whatever is changed: the model, or the cases
};

struct Verdict {
  VerdictKind kind = VerdictKind::kClean;
  Part part = Part::kKeyValues;  // of kPart and kHarmless
  std::string component;         // in words
  double points_lost = 0;        // of 100
  Interval points;               // 95 %
  double p = 1;
  std::string sentence;                // the verdict
  std::vector<std::string> ruled_out;  // one sentence each
};

struct Attribution {
  std::int64_t cases = 0;
  std::int64_t right = 0;               // one-shot
  std::int64_t restored_right = 0;      // after going back to a saved point
  std::vector<VariantResult> variants;  // those that ran, in that order
  std::int64_t skipped = 0;             // alternatives that could not have changed the verdict
  std::array<AuditCount, kNumParts> audit{};
  Verdict verdict;
};

// Errors: the session's, kCancelled. Cases must be the same task family; 20 and more make a test worth
// reading.
Result<Attribution> attribute(const AttributionSubject& subject, const std::vector<Case>& cases);

// The verdict of measured evidence. Pure.
Verdict judge(const Attribution& evidence);

report::Document attribution_document(const RunFacts& facts, const Attribution& attribution);
std::string attribution_json(const RunFacts& facts, const Attribution& attribution);

}  // namespace pivot::recall
