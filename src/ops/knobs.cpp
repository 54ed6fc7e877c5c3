#include "ops/knobs.h"

#include <array>
#include <charconv>
#include <optional>

#include "base/check.h"

namespace pivot {
namespace {

template <class E>
struct Spelling {
  E value;
  std::string_view name;
};
// clang 14 does not deduce the arguments of an aggregate by itself.
template <class E>
Spelling(E, const char*) -> Spelling<E>;

constexpr std::array kActivations = {Spelling{Activations::kBf16, "bf16"},
                                     Spelling{Activations::kF32, "f32"}};
constexpr std::array kKv = {Spelling{KvPrecision::kFp8, "fp8"}, Spelling{KvPrecision::kBf16, "bf16"}};
constexpr std::array kKvLayout = {Spelling{KvLayout::kPacked, "packed"}, Spelling{KvLayout::kWide, "wide"}};
constexpr std::array kIndexKeys = {Spelling{IndexPrecision::kFp4, "fp4"},
                                   Spelling{IndexPrecision::kFp8, "fp8"},
                                   Spelling{IndexPrecision::kBf16, "bf16"}};
constexpr std::array kIndexScore = {Spelling{ScorePrecision::kF32, "f32"},
                                    Spelling{ScorePrecision::kBf16, "bf16"}};
constexpr std::array kExpertAct = {Spelling{ActQuant::kFp8, "fp8"}, Spelling{ActQuant::kNvfp4, "nvfp4"},
                                   Spelling{ActQuant::kBf16, "bf16"}};
constexpr std::array kDenseAct = {Spelling{ActQuant::kFp8, "fp8"}, Spelling{ActQuant::kBf16, "bf16"}};
constexpr std::array kMhc = {Spelling{HcPrecision::kF32, "f32"}, Spelling{HcPrecision::kTf32, "tf32"},
                             Spelling{HcPrecision::kBf16, "bf16"}};

template <auto Member, const auto& Spellings>
bool set_enum(Knobs& knobs, std::string_view text) {
  for (const auto& spelling : Spellings) {
    if (spelling.name != text) continue;
    knobs.*Member = spelling.value;
    return true;
  }
  return false;
}

template <auto Member, const auto& Spellings>
std::string get_enum(const Knobs& knobs) {
  for (const auto& spelling : Spellings)
    if (spelling.value == knobs.*Member) return std::string(spelling.name);
  PIVOT_CHECK(false, "knob value {}", static_cast<int>(knobs.*Member));
}

// One entry per 4 tokens of the longest context the family is specified for (1 Mi tokens).
constexpr std::int32_t kMaxIndexTopk = 262144;

bool set_topk(Knobs& knobs, std::string_view text) {
  if (text == "checkpoint") {
    knobs.index_topk = kTopkFromCheckpoint;
    return true;
  }
  if (text == "all") {
    knobs.index_topk = kTopkAll;
    return true;
  }
  std::int32_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < 1 || value > kMaxIndexTopk)
    return false;
  knobs.index_topk = value;
  return true;
}

std::string get_topk(const Knobs& knobs) {
  if (knobs.index_topk == kTopkFromCheckpoint) return "checkpoint";
  return knobs.index_topk == kTopkAll ? "all" : std::to_string(knobs.index_topk);
}

struct Entry {
  KnobInfo info;
  bool (*set)(Knobs&, std::string_view);
  std::string (*get)(const Knobs&);
};

// Every knob changes what later layers see, and with it the rows those layers cache: none may be left out of
// the prefix-cache key if a warm start is to equal a cold one bit for bit. A future knob that only changes
// speed will not.
constexpr bool kChangesState = true;

constexpr std::array kEntries = {
    Entry{{"activations", "bf16 | f32", "bf16",
           "Rounding of every activation between operators: bf16 as the published reference, f32 for none.",
           kChangesState},
          set_enum<&Knobs::activations, kActivations>,
          get_enum<&Knobs::activations, kActivations>},
    Entry{{"kv", "fp8 | bf16", "fp8",
           "Precision of the non-rotary dims of raw and compressed KV rows: fp8 in groups of 64, or "
           "unrounded bf16.",
           kChangesState},
          set_enum<&Knobs::kv, kKv>,
          get_enum<&Knobs::kv, kKv>},
    Entry{{"kv_layout", "packed | wide", "packed",
           "Storage of fp8 KV rows: codes and scales (584 bytes a row) or the same values as bf16 (1024 "
           "bytes).",
           kChangesState},
          set_enum<&Knobs::kv_layout, kKvLayout>,
          get_enum<&Knobs::kv_layout, kKvLayout>},
    Entry{{"index_keys", "fp4 | fp8 | bf16", "fp4",
           "Precision of the indexer's queries and keys after the Hadamard rotation.", kChangesState},
          set_enum<&Knobs::index_keys, kIndexKeys>,
          get_enum<&Knobs::index_keys, kIndexKeys>},
    Entry{{"index_topk", "checkpoint | all | 1..262144", "checkpoint",
           "Compressed entries each query of a ratio-4 layer attends to; all reads every visible entry.",
           kChangesState},
          set_topk,
          get_topk},
    Entry{{"index_score", "f32 | bf16", "f32",
           "Precision of the indexer's scores: bf16 rounds as the published reference and ties often.",
           kChangesState},
          set_enum<&Knobs::index_score, kIndexScore>,
          get_enum<&Knobs::index_score, kIndexScore>},
    Entry{{"expert_act", "fp8 | nvfp4 | bf16", "fp8",
           "Rounding of the routed experts' inputs: fp8 per 128, nvfp4 per 16 with the checkpoint's input "
           "scale, or none.",
           kChangesState},
          set_enum<&Knobs::expert_act, kExpertAct>,
          get_enum<&Knobs::expert_act, kExpertAct>},
    Entry{{"dense_act", "fp8 | bf16", "fp8",
           "Rounding of the input of every other FP8 linear: fp8 per 128, or none.", kChangesState},
          set_enum<&Knobs::dense_act, kDenseAct>,
          get_enum<&Knobs::dense_act, kDenseAct>},
    Entry{{"wo_a_act", "bf16 | fp8", "bf16",
           "Rounding of the input of wo_a, which the published reference leaves unquantised.", kChangesState},
          set_enum<&Knobs::wo_a_act, kDenseAct>,
          get_enum<&Knobs::wo_a_act, kDenseAct>},
    Entry{{"mhc", "f32 | tf32 | bf16", "f32",
           "Operand precision of the hyper-connection product; some engines run it in tf32 or bf16.",
           kChangesState},
          set_enum<&Knobs::mhc, kMhc>,
          get_enum<&Knobs::mhc, kMhc>},
};

constexpr auto kTable = [] {
  std::array<KnobInfo, kEntries.size()> table{};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = kEntries[i].info;
  return table;
}();

const Entry* find_entry(std::string_view name) {
  for (const Entry& entry : kEntries)
    if (entry.info.name == name) return &entry;
  return nullptr;
}

std::string known_names() {
  std::string names;
  for (const Entry& entry : kEntries) {
    if (!names.empty()) names += ", ";
    names += entry.info.name;
  }
  return names;
}

}  // namespace

std::span<const KnobInfo> knob_table() { return kTable; }

Result<> set_knob(Knobs& knobs, std::string_view name, std::string_view value) {
  const Entry* entry = find_entry(name);
  if (entry == nullptr)
    return fail(ErrorCode::kInvalidArgument, "there is no knob \"{}\"; the knobs are {}", name,
                known_names());
  if (!entry->set(knobs, value))
    return fail(ErrorCode::kInvalidArgument, "knob {} cannot be \"{}\"; it takes {} (default {})", name,
                value, entry->info.values, entry->info.default_value);
  return {};
}

Result<> set_knobs(Knobs& knobs, std::span<const std::string> assignments) {
  Knobs changed = knobs;
  for (const std::string& assignment : assignments) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos)
      return fail(ErrorCode::kInvalidArgument,
                  "\"{}\" is not a knob setting; write name=value with a name of {}", assignment,
                  known_names());
    const std::string_view text = assignment;
    PIVOT_TRY_VOID(set_knob(changed, text.substr(0, equals), text.substr(equals + 1)));
  }
  knobs = changed;
  return {};
}

std::string knob_value(const Knobs& knobs, std::string_view name) {
  const Entry* entry = find_entry(name);
  PIVOT_CHECK(entry != nullptr, "knob {}", name);
  return entry->get(knobs);
}

std::string describe(const Knobs& knobs) {
  std::string text;
  for (const Entry& entry : kEntries) {
    const std::string value = entry.get(knobs);
    if (value == entry.info.default_value) continue;
    if (!text.empty()) text += ' ';
    text += fmt::format("{}={}", entry.info.name, value);
  }
  return text.empty() ? "reference" : text;
}

std::uint64_t state_hash(const Knobs& knobs) {
  // FNV-1a over the spelling, so that the value does not depend on enum numbering or struct layout.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const Entry& entry : kEntries) {
    if (!entry.info.changes_state) continue;
    for (const char c : fmt::format("{}={};", entry.info.name, entry.get(knobs))) {
      hash ^= static_cast<unsigned char>(c);
      hash *= 0x100000001b3u;
    }
  }
  return hash;
}

}  // namespace pivot
