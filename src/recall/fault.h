// Deliberate faults, to prove that attribution finds them. Test and documentation only: nothing makes one
// unless asked.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "ops/ops.h"
#include "recall/component.h"

namespace pivot::recall {

enum class Fault : std::uint8_t {
  kUnrotatedKeys,
  kAliasedKeyScales,
  kMisreadKeyLayout,
  kDroppedCandidates,
  kSmallTopk,
  kWindowLostOnRestore,
  kCompressorLostOnRestore,
  kCompressorLostBetweenSteps,
  kWrongTheta,
  kMisreadKvScales,
  kZeroedExperts,
};

struct FaultInfo {
  Fault fault;
  std::string_view name;     // "unrotated-keys"
  std::string_view summary;  // what it does, and which public fault it imitates (specification 9)
  Part part;                 // what a verdict has to name
};
std::span<const FaultInfo> fault_table();
// kInvalidArgument with the list for another word.
Result<FaultInfo> parse_fault(std::string_view name);

// `inner` with the fault. `weights` on the host; `knobs` those of the session (they fix the layout of its
// state).
Result<std::shared_ptr<Backend>> make_faulty_backend(std::shared_ptr<Backend> inner,
                                                     std::shared_ptr<const ModelWeights> weights,
                                                     const Knobs& knobs, Fault fault);

}  // namespace pivot::recall
