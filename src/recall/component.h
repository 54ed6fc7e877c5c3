// The parts of the engine that a loss of recall can be laid at, in the order in which a step computes them:
// of two that disagree with the oracle, the earlier one is the cause.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pivot::recall {

enum class Part : std::uint8_t {
  kCompressorCarry,    // compressor state from one step to the next
  kCompressorRestore,  // compressor state after going back to a saved point, where steps alone keep it
  kWindowCarry,        // window rows from one step to the next
  kWindowRestore,      // window rows after going back to a saved point, where steps alone keep them
  kRope,               // rotary embedding of a layer kind
  kRawRows,            // this step's KV rows
  kEntryScales,        // scales of compressed KV rows
  kEntryRows,          // compressed KV rows
  kKeyRotation,        // Hadamard rotation of index keys
  kKeyScales,          // scales of index keys
  kKeyLayout,          // byte layout of index keys
  kKeyValues,          // index keys
  kIndexQuery,         // index queries
  kTopkSize,           // fewer entries selected than index_topk
  kTopkCandidates,     // entries selected that are not the best
  kExperts,            // routed experts
};
inline constexpr int kNumParts = 16;

// "Hadamard rotation of index keys".
std::string_view to_string(Part part);
// The part whose comparison also covers this one, where it is a way in which that one differs: wrong scales
// or a missing rotation are found in rows and keys that differ, and are right where those agree.
std::optional<Part> covered_by(Part part);
// What a difference from the oracle in this part means, and where to look: half a sentence.
std::string_view symptom(Part part);

}  // namespace pivot::recall
