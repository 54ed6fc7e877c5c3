#include "recall/component.h"

#include <array>

namespace pivot::recall {
namespace {

struct PartWords {
  std::string_view name;
  std::string_view symptom;
};

constexpr std::array<PartWords, kNumParts> kWords = {{
    {"compressor state between steps", "the rings do not hold what the step before left in them"},
    {"compressor state after a restore",
     "the rings do not hold what was saved: look at what a prefix hit or a hand-over copies"},
    {"window rows between steps", "the ring does not hold the rows of the steps before"},
    {"window rows after a restore",
     "the ring does not hold what was saved: look at what a prefix hit or a hand-over copies"},
    {"rotary embedding", "the rotated dims of KV rows differ: theta, YaRN, or the position of an entry"},
    {"raw KV rows", "a step's own rows differ before they are stored: wkv, its norm or the rounding"},
    {"scales of compressed KV rows",
     "the codes are right, their scales are not: where they are stored or read"},
    {"compressed KV rows", "neither scales nor rotation explain it: the compressor, its norm, or the place"},
    {"Hadamard rotation of index keys",
     "keys agree once they are rotated again: they lack the rotation that queries have, or have it twice"},
    {"scales of index keys", "the codes are right, their scales are not: where they are stored or read"},
    {"byte layout of index keys", "the same codes stand in other places: writer and reader disagree"},
    {"index keys", "neither rotation, scales nor layout explain it: the index compressor or its rounding"},
    {"index queries", "wq_b, the rotations or the rounding"},
    {"number of selected entries", "fewer than index_topk are selected though more are visible"},
    {"choice of selected entries", "others score higher than some that are selected: candidates are lost"},
    {"routed experts", "same input, same experts, another sum: their bytes, scales or activation format"},
}};

}  // namespace

std::string_view to_string(Part part) { return kWords[static_cast<std::size_t>(part)].name; }

std::optional<Part> covered_by(Part part) {
  switch (part) {
    case Part::kEntryScales:
      return Part::kEntryRows;
    case Part::kKeyRotation:
    case Part::kKeyScales:
    case Part::kKeyLayout:
      return Part::kKeyValues;
    default:
      return std::nullopt;
  }
}

std::string_view symptom(Part part) { return kWords[static_cast<std::size_t>(part)].symptom; }

}  // namespace pivot::recall
