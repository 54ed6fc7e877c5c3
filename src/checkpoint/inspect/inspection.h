// Everything that can be said about a checkpoint from its texts, headers and, where present, data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/identify.h"
#include "checkpoint/inspect/subject.h"
#include "checkpoint/model_config.h"
#include "checkpoint/modules/modules.h"

namespace pivot {

// Two numbers that most tables want together.
struct Tally {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
};

// How the tensors of one module are stored: "F8_E4M3 + F8_E8M0", counted.
struct ModuleFacts {
  Module module = Module::kNorm;
  bool draft = false;
  Tally tally;
  std::map<std::string, Tally> dtypes;  // safetensors spelling
};

// The tensor list against what the config and the formats found call for.
struct Audit {
  bool done = false;  // needs a config and headers
  std::int64_t expected = 0;
  std::int64_t found = 0;
  std::vector<std::string> missing;  // native names, with dtype and shape wanted
  std::vector<std::string> extra;
  std::vector<std::string> different;   // present with another dtype or shape, with both
  std::vector<std::string> duplicates;  // copies of the embedding or head under mtp.*
  bool clean() const { return done && missing.empty() && extra.empty() && different.empty(); }
};

// Facts that only the values can tell. Each says how much was looked at.
struct Nvfp4Facts {
  std::int64_t matrices = 0;  // in the checkpoint
  std::int64_t checked = 0;
  std::int64_t lossless =
      0;  // every scale a power of two and equal within pairs of 16-blocks (specification 4.3)
  std::int64_t not_power_of_two = 0;
  std::int64_t unequal_pairs = 0;
  std::string example;  // the first matrix that is not lossless, with why
};
struct HyperConnectionFacts {
  std::int64_t tensors = 0;
  std::int64_t values = 0;
  std::int64_t not_bf16 = 0;  // values whose low 16 bits are not zero (specification Q3)
};
struct HashTableFacts {
  std::int64_t tables = 0;
  std::int64_t rows = 0;
  std::int64_t rows_with_duplicates = 0;  // specification Q11
  std::int64_t ids_out_of_range = 0;
  std::string example;
};

struct BackendVerdict {
  std::string backend;  // "cpu", "cuda"
  bool built = false;   // part of this binary
  bool loads = false;
  std::string reason;
};

enum class ValueCheck : std::uint8_t {
  kNone,    // headers only
  kSample,  // scales of a few experts per layer; hyper-connections and hash tables whole
  kFull,    // every scale byte
};

struct Inspection {
  std::string label;
  std::string path;
  Identification identification;
  std::string verdict;  // one sentence: what this is
  std::optional<ModelConfig> config;
  std::vector<std::string> problems;  // what keeps it from being used, or contradicts itself
  std::vector<std::string> notes;     // what is odd but harmless
  std::vector<std::string> being_written;

  std::size_t num_shards = 0;
  Tally tensors;
  std::map<std::string, Tally> dtypes;
  std::vector<ModuleFacts> modules;  // in Module order, backbone then draft; empty ones left out
  Audit audit;
  std::optional<std::uint64_t> index_total_size;
  std::uint64_t file_bytes = 0;                  // 0 for headers alone
  std::optional<std::uint64_t> free_disk_bytes;  // where the checkpoint lies

  std::optional<Nvfp4Facts> nvfp4;
  std::optional<HyperConnectionFacts> hyper_connections;
  std::optional<HashTableFacts> hash_tables;
  std::string
      quantization_layout;  // which generation of ModelOpt metadata: "none", "current", "early", "both files"
  std::vector<BackendVerdict> backends;
  // Hex digits. `fingerprint` identifies content and is what a server of this checkpoint reports; it needs
  // data. `header_fingerprint` covers names, dtypes and shapes alone.
  std::string fingerprint;
  std::string header_fingerprint;
};

struct InspectOptions {
  ValueCheck values = ValueCheck::kSample;
  std::vector<std::string> built_backends = {"cpu"};  // as pivot --version lists them
};

Inspection inspect(const Subject& subject, const InspectOptions& options);

// ---- parts, separately testable ----

// What a config alone says about variant and formats: the verdict where there are no headers.
std::string variant_from_config(const ModelConfig& config, std::string_view config_json);

Audit audit_tensors(const ModelConfig& config, const Identification& identification,
                    const TensorTable& table);
std::string header_fingerprint(const TensorTable& table);
std::string quantization_layout(const std::optional<std::string>& config_text,
                                const std::optional<std::string>& hf_quant_text);

// Checks of values; the checkpoint must be sound.
Nvfp4Facts check_nvfp4(const Checkpoint& checkpoint, ValueCheck depth);
HyperConnectionFacts check_hyper_connections(const Checkpoint& checkpoint);
HashTableFacts check_hash_tables(const Checkpoint& checkpoint, std::int64_t num_experts);

// True where `scale` bytes (E4M3 per 16 columns, `columns` of them a row) and the second-level scale are what
// a lossless cast writes: powers of two, equal in pairs. All-zero blocks carry the smallest scale and are not
// asked for (specification 4.3).
struct Nvfp4ScaleVerdict {
  std::int64_t not_power_of_two = 0;
  std::int64_t unequal_pairs = 0;
};
Nvfp4ScaleVerdict check_nvfp4_scales(const std::uint8_t* scales, const std::uint8_t* codes, std::int64_t rows,
                                     std::int64_t columns, float global_scale);

}  // namespace pivot
