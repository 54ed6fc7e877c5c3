// Every run-time choice that can change numerics, in one table (docs/design.md section 4).
//
// The defaults are the published reference's numerics. `pivot knobs` prints the table, /metrics echoes it,
// ablations sweep it, and prefix-cache keys hash the values that change state bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {

enum class Activations : std::uint8_t { kBf16, kF32 };  // rounding of every activation between ops
enum class KvPrecision : std::uint8_t {
  kFp8,
  kBf16
};  // Q8_64 on the NoPE dims of raw and compressed rows, or none
enum class KvLayout : std::uint8_t {
  kPacked,
  kWide
};  // fp8 rows as codes + scales, or the same values as BF16
enum class IndexPrecision : std::uint8_t {
  kFp4,
  kFp8,
  kBf16
};  // index queries and keys after the Hadamard rotation
enum class ActQuant : std::uint8_t { kFp8, kNvfp4, kBf16 };  // input of a quantised linear
enum class HcPrecision : std::uint8_t {
  kF32,
  kTf32,
  kBf16
};                                                         // operands of the hyper-connection product fn . u
enum class ScorePrecision : std::uint8_t { kF32, kBf16 };  // index scores before selection

inline constexpr std::int32_t kTopkFromCheckpoint = -1;  // index_topk of config.json
inline constexpr std::int32_t kTopkAll = 0;              // attend to every visible compressed entry

struct Knobs {
  Activations activations = Activations::kBf16;
  KvPrecision kv = KvPrecision::kFp8;
  KvLayout kv_layout = KvLayout::kPacked;  // kWide is implied by kv=bf16 and by activations=f32
  IndexPrecision index_keys = IndexPrecision::kFp4;
  std::int32_t index_topk = kTopkFromCheckpoint;
  ScorePrecision index_score = ScorePrecision::kF32;
  ActQuant expert_act = ActQuant::kFp8;  // input of routed experts' w1, w3, w2
  ActQuant dense_act = ActQuant::kFp8;   // input of every other FP8 linear (fp8 or bf16)
  ActQuant wo_a_act = ActQuant::kBf16;   // input of wo_a (bf16 or fp8)
  HcPrecision mhc = HcPrecision::kF32;

  bool operator==(const Knobs&) const = default;
};

struct KnobInfo {
  std::string_view name;           // "index_topk"
  std::string_view values;         // "fp4 | fp8 | bf16"
  std::string_view default_value;  // spelled as `values`
  std::string_view effect;         // one sentence
  bool changes_state;              // cached bytes depend on it: part of the prefix-cache key
};

// The table, in the order of struct Knobs.
std::span<const KnobInfo> knob_table();

// Sets one knob from its spelling; an unknown name or value is an error that lists what is possible.
Result<> set_knob(Knobs& knobs, std::string_view name, std::string_view value);
// Applies "name=value" assignments in order.
Result<> set_knobs(Knobs& knobs, std::span<const std::string> assignments);
std::string knob_value(const Knobs& knobs, std::string_view name);
// "kv=fp8 index_keys=fp4 ..." of every knob that differs from its default; "reference" when none does.
std::string describe(const Knobs& knobs);
// Hash of the knobs that change state bytes.
std::uint64_t state_hash(const Knobs& knobs);

}  // namespace pivot
