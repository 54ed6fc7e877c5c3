#include "checkpoint/plan/migration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/report/units.h"

namespace pivot {

namespace {

std::int64_t count_ports(const Migration& migration, Port port) {
  return std::count_if(migration.feasibility.begin(), migration.feasibility.end(),
                       [&](const PortItem& item) { return item.port == port; });
}

void add_summary(const MigrationInput& input, Migration& migration) {
  const Source from_layers = {Basis::kComputed, "the layers below"};
  auto& summary = migration.summary;
  summary.push_back({fmt::format("From A, {} ({}), to B, {} ({}).", side_name(input.a),
                                 input.a.inspection.label, side_name(input.b), input.b.inspection.label),
                     {input.a.headers && input.b.headers ? Basis::kComputed : Basis::kAssumption,
                      "identification from headers and config"}});
  if (!migration.same_architecture) {
    summary.push_back({fmt::format("B cannot be served by a V4 engine: {}",
                                   input.b.inspection.identification.refusal.empty()
                                       ? input.a.inspection.identification.refusal
                                       : input.b.inspection.identification.refusal),
                       {Basis::kComputed, "identification from config"}});
    return;
  }
  if (input.b.inspection.identification.variant == "Base")
    summary.push_back(
        {"B is the pre-trained \"-Base\" model: it does not follow instructions. The base checkpoint that "
         "people mean when they leave NVFP4 is DeepSeek-V4-Flash (or -0731), FP4 + FP8.",
         {Basis::kPublicFact, "specification 1.2"}});
  summary.push_back(
      {fmt::format("{} of {} parts port unchanged, {} with changes, {} do not port.",
                   count_ports(migration, Port::kUnchanged), migration.feasibility.size(),
                   count_ports(migration, Port::kWithChanges), count_ports(migration, Port::kNo)),
       from_layers});
  const auto recall =
      std::find_if(migration.complaints.begin(), migration.complaints.end(),
                   [](const Complaint& one) { return one.complaint.find("facts are lost") == 0; });
  if (recall != migration.complaints.end())
    summary.push_back(
        {fmt::format("Will it cure the loss of facts beyond 2-4K tokens? {}: that loss is made in the index "
                     "path, which does not change. Find the fault there first; it would move along.",
                     recall->cure == Cure::kNotByItself ? "Not by itself" : "Open"),
         recall->source});
  if (input.a.formats.experts != input.b.formats.experts)
    summary.push_back({fmt::format("What it buys: experts as {} instead of {}{}.",
                                   to_string(input.b.formats.experts), to_string(input.a.formats.experts),
                                   is_nvfp4(input.a.formats.experts) && !is_nvfp4(input.b.formats.experts)
                                       ? ", with the activation precision of DeepSeek's reference"
                                       : ""),
                       {Basis::kPublicFact, "specification 4.3"}});
}

}  // namespace

const char* to_string(Basis basis) {
  switch (basis) {
    case Basis::kMeasured:
      return "measured";
    case Basis::kComputed:
      return "computed";
    case Basis::kPublicFact:
      return "public fact";
    case Basis::kAssumption:
      return "assumption";
  }
  return "";
}

const char* to_string(Port port) {
  switch (port) {
    case Port::kUnchanged:
      return "ports unchanged";
    case Port::kWithChanges:
      return "ports with changes";
    case Port::kNo:
      return "does not port";
  }
  return "";
}

const char* to_string(Cure cure) {
  switch (cure) {
    case Cure::kYes:
      return "yes";
    case Cure::kPartly:
      return "partly";
    case Cure::kNotByItself:
      return "not by itself";
    case Cure::kNo:
      return "no";
  }
  return "";
}

bool is_nvfp4(ExpertFormat format) {
  return format == ExpertFormat::kNvfp4ModelOpt || format == ExpertFormat::kNvfp4Compressed;
}

bool same_lineage(const MigrationInput& input) { return input.a.formats.head == input.b.formats.head; }

std::string side_name(const MigrationSide& side) {
  const Identification& id = side.inspection.identification;
  if (id.family.empty()) return "an unknown checkpoint";
  return id.variant.empty() ? id.family : id.family + " " + id.variant;
}

Result<MigrationSide> migration_side(const Subject& subject, const InspectOptions& inspect_options,
                                     const Machine& machine, const Workload& workload,
                                     const CacheFormats& cache) {
  MigrationSide side;
  side.inspection = inspect(subject, inspect_options);
  side.headers = subject.has_headers();
  side.data = subject.checkpoint().has_value();
  if (side.headers) {
    side.formats = formats_of(side.inspection.identification);
    side.tensors = declarations_of(subject.table());
    side.data_bytes = subject.table().data_bytes();
  } else if (side.inspection.config) {
    side.formats = guess_formats(*side.inspection.config, subject.config_text().value_or(""));
    side.tensors = stored_tensors(*side.inspection.config, side.formats);
    for (const StoredDeclaration& tensor : side.tensors)
      side.data_bytes += static_cast<std::uint64_t>(tensor.bytes());
  } else if (side.inspection.identification.refusal.empty()) {
    return fail(ErrorCode::kNotFound,
                "{} has neither headers nor a config that can be read; nothing can be said of it",
                subject.label());
  }
  if (side.inspection.config && side.inspection.problems.empty()) {
    auto plan = make_plan(subject, machine, workload, cache);
    if (plan) side.plan = std::move(*plan);
  }
  return side;
}

Migration make_migration(const MigrationInput& input) {
  Migration migration;
  migration.label_a = input.a.inspection.label;
  migration.label_b = input.b.inspection.label;
  const Plan* plan = input.b.plan ? &*input.b.plan : input.a.plan ? &*input.a.plan : nullptr;
  if (plan != nullptr)
    migration.machine = fmt::format("{} x {}", plan->machine.num_gpus, plan->machine.gpu.id);
  migration.same_architecture =
      input.a.inspection.config.has_value() && input.b.inspection.config.has_value();
  migration.modules = compare_modules(input.a.tensors, input.b.tensors);
  if (migration.same_architecture) add_figures(input, migration);
  add_feasibility(input, migration);
  add_efficacy(input, migration);
  if (migration.same_architecture) add_practicality(input, migration);
  add_open_facts(input, migration);
  add_summary(input, migration);
  return migration;
}

}  // namespace pivot
