// The acceptance kit: the checks of specification section 10 that can be run on any checkpoint, as one list
// of outcomes.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/report/document.h"
#include "recall/attribution.h"

namespace pivot::recall {

enum class Outcome : std::uint8_t { kPass, kFail, kSkipped };
std::string_view to_string(Outcome outcome);  // "pass", "fail", "skipped"

struct Check {
  std::string number;  // of specification section 10, "-" for those beyond it
  std::string name;
  Outcome outcome = Outcome::kSkipped;
  std::string detail;  // what was measured, or why it was skipped
  double seconds = 0;
};

struct AcceptanceSubject {
  std::string name;
  std::shared_ptr<const ModelWeights> weights;  // on the host
  std::shared_ptr<Backend> backend;
  Knobs knobs;
  const Tokenizer* tokenizer = nullptr;
  std::vector<TokenId> stop_tokens;
  int num_threads = 0;
  std::shared_ptr<const ModelWeights> twin;  // the same model with other expert bytes; may be null
  std::string audit;                         // what loading and identification said: one sentence
  std::vector<Case> cases;                   // the recall grid
  std::vector<TokenId> text;                 // some hundred tokens of text
  std::filesystem::path vectors;             // folder of official API vectors; empty: none
  const CancelFlag* cancel = nullptr;
  std::function<void(const Check&)> on_check;  // as soon as it is done
  ProgressFn on_progress;                      // tokens of the recall grid done and to do
};

// Runs every check, in the order of their numbers; a check that cannot be made says why. Errors: kCancelled;
// everything else is a failed check.
Result<std::vector<Check>> accept(const AcceptanceSubject& subject);

bool accepted(const std::vector<Check>& checks);  // none failed
// `setting` says where and how the model ran: "on cpu, knobs: reference".
report::Document acceptance_document(const std::string& model, const std::string& setting,
                                     const std::vector<Check>& checks);
std::string acceptance_json(const std::string& model, const std::vector<Check>& checks);

}  // namespace pivot::recall
