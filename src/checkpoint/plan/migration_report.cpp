// The migration report as a document and as JSON; and the diff report read back.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/report/units.h"
#include "checkpoint/plan/migration.h"

namespace pivot {

namespace {

using nlohmann::ordered_json;
using report::Align;
using report::Cell;
using report::Document;
using report::Findings;
using report::Items;
using report::Table;
using report::Tone;

std::string source_text(const Source& source) {
  return fmt::format("{}: {}", to_string(source.basis), source.reference);
}

Tone tone_of(Port port) {
  return port == Port::kUnchanged ? Tone::kGood : port == Port::kWithChanges ? Tone::kWarning : Tone::kBad;
}
Tone tone_of(Cure cure) {
  return cure == Cure::kYes ? Tone::kGood : cure == Cure::kPartly ? Tone::kWarning : Tone::kBad;
}

report::Finding finding(const Source& source, std::string text) {
  return {"", Tone::kPlain, "", std::move(text), to_string(source.basis), source.reference};
}

void add_statements(Document& document, const std::vector<Statement>& statements) {
  Findings list;
  for (const Statement& statement : statements)
    list.findings.push_back(finding(statement.source, statement.text));
  document.add(std::move(list));
}

void add_key_figures(Document& document, const Migration& migration) {
  Table table;
  table.columns = {{"", Align::kLeft}, {"A", Align::kLeft}, {"B", Align::kLeft}, {"source", Align::kLeft}};
  for (const KeyFigure& one : migration.figures)
    table.rows.push_back({one.figure, one.a, one.b, {source_text(one.source), Tone::kMuted}});
  document.add(std::move(table));
}

// What must be worked on comes first.
void add_ports(Document& document, const Migration& migration) {
  Findings list;
  for (const Port port : {Port::kNo, Port::kWithChanges, Port::kUnchanged})
    for (const PortItem& item : migration.feasibility) {
      if (item.port != port) continue;
      report::Finding one = finding(item.source, item.why + ".");
      one.status = to_string(item.port);
      one.tone = tone_of(item.port);
      one.subject = item.what;
      list.findings.push_back(std::move(one));
    }
  document.add(std::move(list));
}

void add_complaints(Document& document, const Migration& migration) {
  Findings list;
  for (const Complaint& item : migration.complaints) {
    report::Finding one = finding(item.source, item.why + ".");
    one.status = fmt::format("cure: {}", to_string(item.cure));
    one.tone = tone_of(item.cure);
    one.subject = item.complaint;
    list.findings.push_back(std::move(one));
  }
  document.add(std::move(list));
}

void add_modules(Document& document, const Migration& migration) {
  Table table;
  table.caption = "Tensor lists side by side";
  table.columns = {{"module", Align::kLeft},  {"same", Align::kRight},   {"different", Align::kRight},
                   {"only A", Align::kRight}, {"only B", Align::kRight}, {"size A", Align::kRight},
                   {"size B", Align::kRight}};
  for (const ModuleComparison& module : migration.modules) {
    if (module.absent()) continue;
    const auto count = [](std::int64_t value) { return Cell(report::format_count(value)); };
    const auto size = [](std::int64_t bytes) {
      return Cell(report::format_bytes(static_cast<double>(bytes)));
    };
    table.rows.push_back({{fmt::format("{}{}", module.draft ? "draft: " : "", module_name(module.module)),
                           module.equal() ? Tone::kGood : Tone::kWarning},
                          count(module.same),
                          count(module.different),
                          count(module.only_a),
                          count(module.only_b),
                          size(module.bytes_a),
                          size(module.bytes_b)});
  }
  document.add(std::move(table));
}

void add_plans(Document& document, const MigrationInput& input) {
  report::BarChart memory{"Memory of the fullest GPU in the recommended layout",
                          "GiB",
                          {},
                          {{"weights", {}}, {"KV, rings and states", {}}, {"workspace, runtime", {}}},
                          std::nullopt,
                          ""};
  report::BarChart speed{
      "Roofline of the machine in the recommended layout", "tok/s", {}, {{"decode", {}}}, std::nullopt, ""};
  for (const MigrationSide* side : {&input.a, &input.b}) {
    if (!side->plan || !side->plan->recommendation) return;
    const Plan& plan = *side->plan;
    const Evaluation& best = plan.evaluations[plan.recommendation->best];
    const std::string name = fmt::format("{}: {}", side == &input.a ? "A" : "B", best.arrangement.name());
    const double gib = 1024.0 * 1024 * 1024;
    const auto fixed =
        static_cast<double>(best.memory.of(MemoryClass::kWorkspace) + best.memory.of(MemoryClass::kRuntime));
    const auto weights = static_cast<double>(best.memory.weights());
    memory.categories.push_back(name);
    memory.series[0].values.push_back(weights / gib);
    memory.series[1].values.push_back((static_cast<double>(best.memory.total()) - weights - fixed) / gib);
    memory.series[2].values.push_back(fixed / gib);
    memory.limit = plan.machine.gpu.memory_gib.value;
    memory.limit_label = plan.machine.gpu.id;
    speed.categories.push_back(name);
    speed.series[0].values.push_back(best.total_decode_tokens_per_second);
  }
  document.add(std::move(memory));
  document.add(std::move(speed));
}

ordered_json source_json(const Source& source) {
  return {{"basis", to_string(source.basis)}, {"reference", source.reference}};
}

ordered_json statements_json(const std::vector<Statement>& statements) {
  ordered_json list = ordered_json::array();
  for (const Statement& statement : statements)
    list.push_back({{"text", statement.text}, {"source", source_json(statement.source)}});
  return list;
}

}  // namespace

Document migration_document(const Migration& migration, const MigrationInput& input) {
  Document document;
  document.title = fmt::format("Migration: {} to {}", side_name(input.a), side_name(input.b));
  document.subtitle = migration.machine.empty()
                          ? std::string("every statement names its source")
                          : fmt::format("on {}; every statement names its source", migration.machine);
  document.heading("In short");
  add_statements(document, migration.summary);
  if (!migration.figures.empty()) add_key_figures(document, migration);

  document.heading("1. Feasibility: what carries over");
  add_ports(document, migration);
  if (migration.same_architecture) add_modules(document, migration);

  document.heading("2. Efficacy: what changes in numbers, and what that can cure");
  document.heading("Components", 3);
  add_statements(document, migration.components);
  if (!migration.complaints.empty()) {
    document.heading("Complaints", 3);
    add_complaints(document, migration);
  }

  if (migration.same_architecture) {
    document.heading("3. Practicality: what it takes");
    add_statements(document, migration.practicality);
    add_plans(document, input);
    document.heading("Steps", 3);
    Items steps;
    steps.numbered = true;
    for (const std::string& step : migration.steps) steps.items.push_back({"", step, "", Tone::kPlain});
    document.add(std::move(steps));
    document.heading("Way back", 3);
    add_statements(document, migration.rollback);
  }

  document.heading(migration.same_architecture ? "4. Open facts: what one command would settle"
                                               : "3. Open facts: what one command would settle");
  Table open;
  open.columns = {{"question", Align::kLeft}, {"what it decides", Align::kLeft}, {"command", Align::kLeft}};
  for (const OpenFact& fact : migration.open_facts)
    open.rows.push_back({fact.question, fact.matters, fact.command});
  document.add(std::move(open));
  return document;
}

std::string migration_json(const Migration& migration) {
  ordered_json json;
  json["schema"] = "pivot.migration/1";
  json["a"] = migration.label_a;
  json["b"] = migration.label_b;
  json["machine"] = migration.machine;
  json["same_architecture"] = migration.same_architecture;
  json["summary"] = statements_json(migration.summary);
  json["figures"] = ordered_json::array();
  for (const KeyFigure& one : migration.figures)
    json["figures"].push_back(
        {{"figure", one.figure}, {"a", one.a}, {"b", one.b}, {"source", source_json(one.source)}});
  json["feasibility"] = ordered_json::array();
  for (const PortItem& item : migration.feasibility)
    json["feasibility"].push_back({{"what", item.what},
                                   {"port", to_string(item.port)},
                                   {"why", item.why},
                                   {"source", source_json(item.source)}});
  json["components"] = statements_json(migration.components);
  json["complaints"] = ordered_json::array();
  for (const Complaint& item : migration.complaints)
    json["complaints"].push_back({{"complaint", item.complaint},
                                  {"cure", to_string(item.cure)},
                                  {"why", item.why},
                                  {"source", source_json(item.source)}});
  json["practicality"] = statements_json(migration.practicality);
  json["steps"] = migration.steps;
  json["rollback"] = statements_json(migration.rollback);
  json["open_facts"] = ordered_json::array();
  for (const OpenFact& fact : migration.open_facts)
    json["open_facts"].push_back(
        {{"question", fact.question}, {"decides", fact.matters}, {"command", fact.command}});
  json["modules"] = ordered_json::array();
  for (const ModuleComparison& module : migration.modules) {
    if (module.absent()) continue;
    json["modules"].push_back({{"module", module_name(module.module)},
                               {"draft", module.draft},
                               {"same", module.same},
                               {"different", module.different},
                               {"only_a", module.only_a},
                               {"only_b", module.only_b},
                               {"bytes_a", module.bytes_a},
                               {"bytes_b", module.bytes_b}});
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

Result<MeasuredDiff> parse_diff_json(std::string_view text, std::string_view where) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.value("schema", "") != "pivot.diff/1")
      return fail(ErrorCode::kInvalidData,
                  "{} is no report of `pivot diff --json` (\"schema\" is not \"pivot.diff/1\")", where);
    MeasuredDiff diff;
    diff.verdict = json.at("verdict").get<std::string>();
    diff.complete = json.at("complete").get<bool>();
    for (const auto& entry : json.at("modules")) {
      MeasuredModule module;
      module.module = entry.at("module").get<std::string>();
      module.draft = entry.at("draft").get<bool>();
      module.same_values = entry.at("same_values").get<bool>();
      for (const auto& [kind, count] : entry.at("counts").items())
        module.counts +=
            fmt::format("{}{} {}", module.counts.empty() ? "" : ", ", count.get<std::int64_t>(), kind);
      if (const auto& snr = entry.at("errors").at("snr_db"); snr.is_number())
        module.snr_db = snr.get<double>();
      diff.modules.push_back(std::move(module));
    }
    return diff;
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInvalidData, "{} is no report of `pivot diff --json`: {}", where, error.what());
  }
}

}  // namespace pivot
