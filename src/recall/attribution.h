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
  int num_threads = 0;                       // of the oracle
  std::shared_ptr<const ModelWeights> twin;  // the same model with other expert bytes; may be null
  // false: an alternative that cannot change the verdict any more is not run. Where every answer is right
  // nothing can be got back; where a part differs from the oracle, the oracle's own answers say what it
  // costs. true: all are run, and index_topk also with fewer entries.
  bool every_variant = false;
  const CancelFlag* cancel = nullptr;
  ProgressFn on_progress;  // cases done and to do
};

// What an alternative puts on trial.
enum class Suspect : std::uint8_t {
  kRestore,      // state saved and restored
  kBackend,      // everything that the back-end computes: the oracle instead
  kSelection,    // leaving entries out at all: all attended
  kExactIndex,   // whatever the index rounds: keys, queries and scores in fp32
  kKeyFormat,    // index_keys
  kTopk,         // index_topk: more entries
  kFewerTopk,    // index_topk: fewer entries; shows how answers depend on it and gets none back
  kRowFormat,    // kv
  kExpertInput,  // expert_act
  kExpertBytes,  // the twin checkpoint
  kSteps,        // where the prompt is cut into steps
};

struct Variant {
  std::string name;   // "index_topk 32"
  std::string cause;  // what it would show, in words: "too small an index_topk (8)"
  Suspect suspect = Suspect::kSteps;
  std::string setting;  // "index_topk=32" where a knob does it; empty otherwise
  Knobs knobs;
  std::int32_t chunk_tokens = 0;
};

struct VariantResult {
  Variant variant;
  std::string unsupported;  // why it could not run; empty: it ran
  std::int64_t right = 0;
  std::int64_t cases = 0;
  PairedCounts pairs;  // first: the subject, second: this variant
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
  std::string advice;                  // what to do now; may be empty
  std::vector<std::string> evidence;   // the alternatives that it rests on, one sentence each
  std::vector<std::string> ruled_out;  // one sentence each
  std::vector<std::string> open;       // what these cases could not settle
};

struct Attribution {
  std::int64_t cases = 0;
  std::int64_t right = 0;               // one-shot
  std::int64_t restored_right = 0;      // after going back to a saved point
  std::int32_t index_topk = 0;          // entries that a query attends to; 0: all
  std::vector<VariantResult> variants;  // those that ran, in that order
  std::int64_t skipped = 0;             // alternatives that could not have changed the verdict
  std::vector<std::string> unreached;   // names of those that a stopped run did not come to
  std::array<AuditCount, kNumParts> audit{};
  std::vector<LayerFidelity> fidelity;  // of the subject's selection, means over all cases
  Verdict verdict;
};

// Errors: the session's; kCancelled where the run was stopped before the subject itself had answered every
// case. Stopped later, it judges by what was run and lists the rest as unreached. Cases must be the same task
// family; 20 and more make a test worth reading.
Result<Attribution> attribute(const AttributionSubject& subject, const std::vector<Case>& cases);

// Holm's step-down correction of every alternative that could have got answers back.
void correct_for_number(std::vector<VariantResult>& variants);
// Significant, and large enough to be worth a name.
bool gets_answers_back(const VariantResult& variant);
// More often than rounding at a tie explains.
bool differs(const AuditCount& count);

// The verdict of measured evidence (variants corrected). Pure.
Verdict judge(const Attribution& evidence);

report::Document attribution_document(const RunFacts& facts, const Attribution& attribution);
std::string attribution_json(const RunFacts& facts, const Attribution& attribution);

}  // namespace pivot::recall
