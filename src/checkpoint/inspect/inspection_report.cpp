#include "checkpoint/inspect/inspection_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/report/units.h"
#include "tensor/matrix.h"

namespace pivot {

namespace {

using report::Align;
using report::Cell;
using report::Document;
using report::format_bytes;
using report::format_count;
using report::format_percent;
using report::Table;
using report::Tone;

constexpr std::size_t kNamesShown = 12;

Cell bytes_cell(std::int64_t bytes) { return {format_bytes(static_cast<double>(bytes))}; }

void add_names(Document& document, const std::string& title, const std::vector<std::string>& names,
               Tone tone) {
  if (names.empty()) return;
  report::Items items;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); ++i)
    items.items.push_back({"", names[i], "", tone});
  if (names.size() > kNamesShown)
    items.items.push_back({"",
                           fmt::format("and {} more (--json lists all)",
                                       format_count(static_cast<std::int64_t>(names.size() - kNamesShown))),
                           "", Tone::kMuted});
  document.paragraph(fmt::format("{} ({}):", title, format_count(static_cast<std::int64_t>(names.size()))));
  document.add(std::move(items));
}

void add_summary(Document& document, const Inspection& inspection) {
  const Identification& id = inspection.identification;
  Table table;
  table.columns = {{"fact", Align::kLeft}, {"value", Align::kLeft}};
  const auto row = [&](std::string fact, Cell value) {
    table.rows.push_back({Cell(std::move(fact)), std::move(value)});
  };
  row("verdict",
      {inspection.verdict, id.supported && inspection.problems.empty() ? Tone::kGood : Tone::kWarning});
  row("confidence", to_string(id.confidence));
  row("family", id.family);
  if (!id.variant.empty()) row("variant", id.variant);
  if (inspection.tensors.tensors > 0) {
    row("routed experts",
        fmt::format("{}{}", to_string(id.expert_format), id.mixed_expert_formats ? ", and others" : ""));
    row("dense matrices", fmt::format("FP8 with {} scales", to_string(id.dense_scale)));
    row("draft head", id.head == HeadKind::kNone
                          ? std::string("none")
                          : fmt::format("{}, {} stage{}", id.head == HeadKind::kMtp ? "MTP" : "DSpark",
                                        id.draft_stages, id.draft_stages == 1 ? "" : "s"));
    row("layers x experts", fmt::format("{} x {}", id.layers, id.experts_per_layer));
    row("shards", fmt::format("{}", inspection.num_shards));
    row("tensors", format_count(inspection.tensors.tensors));
    row("data", fmt::format("{} bytes = {}", format_count(inspection.tensors.bytes),
                            format_bytes(static_cast<double>(inspection.tensors.bytes))));
  }
  if (inspection.file_bytes > 0)
    row("files", fmt::format("{} bytes", format_count(static_cast<std::int64_t>(inspection.file_bytes))));
  if (inspection.free_disk_bytes)
    row("free on that disk", format_bytes(static_cast<double>(*inspection.free_disk_bytes)));
  row("quantisation metadata", inspection.quantization_layout);
  if (!inspection.fingerprint.empty()) row("fingerprint", inspection.fingerprint);
  if (!inspection.header_fingerprint.empty()) row("header fingerprint", inspection.header_fingerprint);
  document.add(std::move(table));
}

void add_modules(Document& document, const Inspection& inspection) {
  if (inspection.modules.empty()) return;
  document.heading("Modules");
  Table table;
  table.columns = {{"module", Align::kLeft}, {"stored as", Align::kLeft}, {"tensors", Align::kRight},
                   {"bytes", Align::kRight}, {"size", Align::kRight},     {"share", Align::kRight}};
  report::BarChart chart{"Bytes by module", "GiB", {}, {{"bytes", {}}}, std::nullopt, ""};
  for (const ModuleFacts& facts : inspection.modules) {
    std::string stored;
    for (const auto& [dtype, tally] : facts.dtypes) stored += (stored.empty() ? "" : ", ") + dtype;
    const std::string name = (facts.draft ? "draft: " : "") + std::string(module_name(facts.module));
    table.rows.push_back({name, stored, format_count(facts.tally.tensors), format_count(facts.tally.bytes),
                          bytes_cell(facts.tally.bytes),
                          format_percent(static_cast<double>(facts.tally.bytes) /
                                         static_cast<double>(inspection.tensors.bytes))});
    chart.categories.push_back(name);
    chart.series[0].values.push_back(static_cast<double>(facts.tally.bytes) / (1 << 30));
  }
  document.add(std::move(table));
  document.heading("Element types");
  Table dtypes;
  dtypes.columns = {
      {"dtype", Align::kLeft}, {"tensors", Align::kRight}, {"bytes", Align::kRight}, {"size", Align::kRight}};
  for (const auto& [dtype, tally] : inspection.dtypes)
    dtypes.rows.push_back(
        {dtype, format_count(tally.tensors), format_count(tally.bytes), bytes_cell(tally.bytes)});
  document.add(std::move(dtypes));
  document.add(std::move(chart));
}

void add_audit(Document& document, const Inspection& inspection) {
  const Audit& audit = inspection.audit;
  if (!audit.done) return;
  document.heading("Tensors expected and found");
  document.paragraph(
      fmt::format("{} expected by config and formats, {} found: {} missing, {} extra, {} of another dtype or "
                  "shape, {} copies under mtp.* that are not read.",
                  format_count(audit.expected), format_count(audit.found), audit.missing.size(),
                  audit.extra.size(), audit.different.size(), audit.duplicates.size()),
      audit.clean() ? Tone::kGood : Tone::kBad);
  add_names(document, "missing", audit.missing, Tone::kBad);
  add_names(document, "extra", audit.extra, Tone::kBad);
  add_names(document, "different", audit.different, Tone::kBad);
  add_names(document, "copies", audit.duplicates, Tone::kMuted);
}

void add_values(Document& document, const Inspection& inspection) {
  if (!inspection.hyper_connections) {
    if (inspection.tensors.tensors > 0 && inspection.identification.family.starts_with("DeepSeek-V4"))
      document.paragraph(
          "The values were not looked at (headers only, a fault, or --values none): lossless cast, "
          "hyper-connections and hash tables are open.",
          Tone::kMuted);
    return;
  }
  document.heading("Values");
  report::Items items;
  if (inspection.nvfp4) {
    const Nvfp4Facts& facts = *inspection.nvfp4;
    const bool lossless = facts.checked > 0 && facts.lossless == facts.checked;
    items.items.push_back(
        {"NVFP4 cast",
         lossless ? fmt::format("lossless in all {} matrices looked at (of {}): every scale is a power of "
                                "two and both halves of each 32 agree",
                                format_count(facts.checked), format_count(facts.matrices))
                  : fmt::format("NOT lossless: {} of {} matrices looked at (of {}) could come from a "
                                "lossless cast; {} scales are no power of two, {} pairs differ; first: {}",
                                format_count(facts.lossless), format_count(facts.checked),
                                format_count(facts.matrices), format_count(facts.not_power_of_two),
                                format_count(facts.unequal_pairs), facts.example),
         "", lossless ? Tone::kGood : Tone::kWarning});
  }
  const HyperConnectionFacts& hyper = *inspection.hyper_connections;
  items.items.push_back(
      {"hyper-connections",
       hyper.not_bf16 == 0
           ? fmt::format("all {} values of {} matrices are BF16-representable: a BF16 product is exact",
                         format_count(hyper.values), hyper.tensors)
           : fmt::format("{} of {} values are not BF16-representable: a BF16 or TF32 product for mHC loses "
                         "precision; keep fp32 (or split)",
                         format_count(hyper.not_bf16), format_count(hyper.values)),
       "", hyper.not_bf16 == 0 ? Tone::kGood : Tone::kWarning});
  const HashTableFacts& tables = *inspection.hash_tables;
  if (tables.tables > 0)
    items.items.push_back(
        {"hash tables",
         fmt::format("{} tables, {} rows, {} with an expert twice, {} ids out of range", tables.tables,
                     format_count(tables.rows), tables.rows_with_duplicates, tables.ids_out_of_range),
         "", tables.rows_with_duplicates + tables.ids_out_of_range == 0 ? Tone::kGood : Tone::kBad});
  document.add(std::move(items));
}

void add_list(Document& document, const std::string& title, const std::vector<std::string>& lines,
              Tone tone) {
  if (lines.empty()) return;
  document.heading(title);
  report::Items items;
  for (const std::string& line : lines) items.items.push_back({"", line, "", tone});
  document.add(std::move(items));
}

}  // namespace

Document inspection_document(const Inspection& inspection) {
  Document document;
  document.title = "Inspection of " + inspection.label;
  document.subtitle = inspection.path;
  add_summary(document, inspection);
  add_list(document, "Problems", inspection.problems, Tone::kBad);
  if (!inspection.identification.supported && !inspection.identification.refusal.empty() &&
      inspection.tensors.tensors > 0)
    add_list(document, "Why pivot does not run it", {inspection.identification.refusal}, Tone::kBad);
  add_list(document, "Worth knowing", inspection.notes, Tone::kWarning);
  add_list(document, "Being written", inspection.being_written, Tone::kWarning);
  add_list(document, "Evidence", inspection.identification.evidence, Tone::kPlain);
  add_modules(document, inspection);
  add_audit(document, inspection);
  add_values(document, inspection);
  document.heading("Back-ends");
  Table table;
  table.columns = {{"back-end", Align::kLeft}, {"loads it", Align::kLeft}, {"why", Align::kLeft}};
  for (const BackendVerdict& verdict : inspection.backends)
    table.rows.push_back({verdict.backend,
                          {verdict.loads ? "yes" : "no", verdict.loads ? Tone::kGood : Tone::kBad},
                          verdict.reason});
  document.add(std::move(table));
  return document;
}

Document listing_document(const std::string& folder, std::span<const Inspection> inspections) {
  Document document;
  document.title = "Checkpoints in " + folder;
  Table table;
  table.columns = {{"checkpoint", Align::kLeft}, {"verdict", Align::kLeft}, {"confidence", Align::kLeft},
                   {"tensors", Align::kRight},   {"size", Align::kRight},   {"problems", Align::kRight},
                   {"fingerprint", Align::kLeft}};
  for (const Inspection& one : inspections) {
    const bool good = one.identification.supported && one.problems.empty();
    table.rows.push_back({one.label,
                          {one.verdict, good ? Tone::kGood : Tone::kWarning},
                          to_string(one.identification.confidence),
                          format_count(one.tensors.tensors),
                          bytes_cell(one.tensors.bytes),
                          format_count(static_cast<std::int64_t>(one.problems.size())),
                          one.fingerprint});
  }
  document.add(std::move(table));
  return document;
}

}  // namespace pivot
