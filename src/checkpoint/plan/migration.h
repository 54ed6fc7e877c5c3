// The migration report: from the checkpoint that is served (A) to another one (B), in four layers.
//
//   feasibility   what of an existing deployment carries over, and why
//   efficacy      which parts differ numerically, and therefore which complaints a move can and cannot cure
//   practicality  sizes, times, memory, steps, the way back
//   open facts    what is still unknown, and the one command that settles it
// Every statement says what it rests on: measured, computed, a public fact with its reference, or an
// assumption.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/report/document.h"
#include "checkpoint/inspect/inspection.h"
#include "checkpoint/plan/module_comparison.h"
#include "checkpoint/plan/plan.h"

namespace pivot {

enum class Basis : std::uint8_t { kMeasured, kComputed, kPublicFact, kAssumption };
const char* to_string(Basis basis);  // "measured", "computed", "public fact", "assumption"

struct Source {
  Basis basis = Basis::kAssumption;
  std::string reference;  // what was measured, the formula's place, the public thread, or why it is assumed
};

struct Statement {
  std::string text;
  Source source;
};

enum class Port : std::uint8_t { kUnchanged, kWithChanges, kNo };
const char* to_string(Port port);  // "ports unchanged", ...
struct PortItem {
  std::string what;
  Port port = Port::kUnchanged;
  std::string why;
  Source source;
};

enum class Cure : std::uint8_t { kYes, kPartly, kNotByItself, kNo };
const char* to_string(Cure cure);  // "yes", "partly", "not by itself", "no"
struct Complaint {
  std::string complaint;
  Cure cure = Cure::kNo;
  std::string why;
  Source source;
};

// One number of both sides.
struct KeyFigure {
  std::string figure;
  std::string a;
  std::string b;
  Source source;
};

struct OpenFact {
  std::string question;
  std::string matters;  // what the answer decides
  std::string command;
};

// What `pivot diff --json` measured, per module.
struct MeasuredModule {
  std::string module;
  bool draft = false;
  bool same_values = false;
  std::string counts;  // "3 byte-identical, 33024 re-quantised"
  std::optional<double> snr_db;
};
struct MeasuredDiff {
  std::string verdict;
  bool complete = false;
  std::vector<MeasuredModule> modules;
};
Result<MeasuredDiff> parse_diff_json(std::string_view json, std::string_view where);

struct MigrationSide {
  Inspection inspection;
  CheckpointFormats formats;
  std::vector<StoredDeclaration> tensors;  // from headers, or computed from the config
  bool headers = false;
  bool data = false;  // on disk, with values
  std::uint64_t data_bytes = 0;
  std::optional<Plan> plan;  // nullopt where this family cannot be planned
};

struct MigrationInput {
  MigrationSide a;
  MigrationSide b;
  std::optional<MeasuredDiff> diff;
  double download_bytes_per_second = 125e6;
  bool download_rate_given = false;
  double load_bytes_per_second = 2e9;  // disk to GPU
};

// The side that a subject makes; the plan is filled where the family allows it.
Result<MigrationSide> migration_side(const Subject& subject, const InspectOptions& inspect_options,
                                     const Machine& machine, const Workload& workload,
                                     const CacheFormats& cache);

struct Migration {
  std::string label_a;
  std::string label_b;
  std::string machine;
  bool same_architecture = true;
  std::vector<Statement> summary;
  std::vector<KeyFigure> figures;
  std::vector<PortItem> feasibility;
  std::vector<Statement> components;
  std::vector<Complaint> complaints;
  std::vector<Statement> practicality;
  std::vector<std::string> steps;
  std::vector<Statement> rollback;
  std::vector<OpenFact> open_facts;
  std::vector<ModuleComparison> modules;
};

Migration make_migration(const MigrationInput& input);
report::Document migration_document(const Migration& migration, const MigrationInput& input);
std::string migration_json(const Migration& migration);  // docs/schema/migration.json

// ---- the key figures and the four layers, for make_migration ----

void add_figures(const MigrationInput& input, Migration& migration);
void add_feasibility(const MigrationInput& input, Migration& migration);
void add_efficacy(const MigrationInput& input, Migration& migration);
void add_practicality(const MigrationInput& input, Migration& migration);
void add_open_facts(const MigrationInput& input, Migration& migration);

// Small facts about a pair that several layers need.
bool is_nvfp4(ExpertFormat format);
bool same_lineage(
    const MigrationInput& input);  // both preview, or both DSpark-headed (0731 or the June DSpark release)
std::string side_name(const MigrationSide& side);

}  // namespace pivot
