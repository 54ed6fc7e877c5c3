#include <nlohmann/json.hpp>

#include "base/report/units.h"
#include "recall/attribution.h"

namespace pivot::recall {
namespace {

using report::Align;

std::string_view to_string(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::kClean:
      return "clean";
    case VerdictKind::kPart:
      return "part";
    case VerdictKind::kHarmless:
      return "harmless";
    case VerdictKind::kSetting:
      return "setting";
    case VerdictKind::kUnexplained:
      return "unexplained";
    case VerdictKind::kModel:
      return "model";
  }
  return "";
}

report::Tone tone_of(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::kClean:
      return report::Tone::kGood;
    case VerdictKind::kSetting:
    case VerdictKind::kModel:
      return report::Tone::kWarning;
    case VerdictKind::kPart:
    case VerdictKind::kHarmless:
    case VerdictKind::kUnexplained:
      break;
  }
  return report::Tone::kBad;
}

std::string_view to_string(Suspect suspect) {
  static constexpr std::string_view kNames[] = {"restore",      "backend",      "selection",  "exact index",
                                                "key format",   "topk",         "fewer topk", "row format",
                                                "expert input", "expert bytes", "steps"};
  return kNames[static_cast<std::size_t>(suspect)];
}

void add_list(report::Document& document, const std::string& heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  document.heading(heading);
  report::Items items;
  for (const std::string& line : lines) items.items.push_back({"", line, "", report::Tone::kPlain});
  document.add(std::move(items));
}

// The selection as it is, against an exact index and against the attention itself.
void add_selection(report::Document& document, const Attribution& a) {
  report::Table table;
  table.caption = "The selection as it is: agreement with an exact index, and attention that it keeps";
  table.columns = {{"layer", Align::kRight},
                   {"queries", Align::kRight},
                   {"overlap", Align::kRight},
                   {"of entries' attention", Align::kRight},
                   {"of all attention", Align::kRight},
                   {"all facts selected", Align::kRight}};
  for (const LayerFidelity& f : a.fidelity)
    if (f.limited > 0)
      table.rows.push_back({std::to_string(f.layer), report::format_count(f.queries),
                            fmt::format("{:.3f}", f.overlap), fmt::format("{:.3f}", f.entry_mass),
                            fmt::format("{:.3f}", f.total_mass), fmt::format("{:.3f}", f.fact_selected)});
  if (!table.rows.empty()) document.add(std::move(table));
}

}  // namespace

report::Document attribution_document(const RunFacts& facts, const Attribution& a) {
  report::Document document;
  document.title = fmt::format("Where {} loses recall", facts.model);
  document.subtitle =
      fmt::format("{} cases ({}) on {}, knobs: {}", a.cases, facts.asked, facts.device, facts.knobs);
  if (!a.unreached.empty())
    document.paragraph(
        fmt::format("PARTIAL: stopped before {} of {} alternatives; the verdict is of the others.",
                    a.unreached.size(),
                    a.unreached.size() + a.variants.size() + static_cast<std::size_t>(a.skipped)),
        report::Tone::kWarning);
  document.heading("Verdict");
  document.paragraph(a.verdict.sentence, tone_of(a.verdict.kind));
  if (!a.verdict.advice.empty()) document.paragraph(a.verdict.advice);
  add_list(document, "What it rests on", a.verdict.evidence);
  add_list(document, "Ruled out", a.verdict.ruled_out);
  add_list(document, "Not settled", a.verdict.open);
  document.heading("Alternatives");
  report::Table table;
  table.caption = fmt::format("The same {} cases; as it is, {} are right", a.cases, a.right);
  table.columns = {{"alternative"},
                   {"right", Align::kRight},
                   {"only now", Align::kRight},
                   {"only before", Align::kRight},
                   {"points  [95 %]", Align::kRight},
                   {"p", Align::kRight},
                   {"p (Holm)", Align::kRight}};
  for (const VariantResult& v : a.variants) {
    if (!v.unsupported.empty()) {
      table.rows.push_back({v.variant.name, {"not run: " + v.unsupported, report::Tone::kMuted}});
      continue;
    }
    const bool tried = v.variant.suspect != Suspect::kFewerTopk;
    table.rows.push_back({v.variant.name, std::to_string(v.right), std::to_string(v.pairs.only_second),
                          std::to_string(v.pairs.only_first),
                          fmt::format("{:+.1f}  [{:+.1f}, {:+.1f}]", 100 * v.pairs.difference(),
                                      100 * v.gain.low, 100 * v.gain.high),
                          fmt::format("{:.4f}", v.p), tried ? fmt::format("{:.4f}", v.p_holm) : ""});
  }
  document.add(std::move(table));
  if (a.skipped > 0)
    document.paragraph(
        fmt::format("{} more alternatives were not run: {} --every-variant runs them.", a.skipped,
                    a.right == a.cases ? "every answer is right, so none can get one back."
                                       : "the cause is settled."),
        report::Tone::kMuted);
  document.heading("Parts");
  report::Table parts;
  parts.caption = "Each part against the oracle, on the same activations";
  parts.columns = {{"part"},
                   {"compared", Align::kRight},
                   {"different", Align::kRight},
                   {"largest difference", Align::kRight},
                   {"first"}};
  for (int i = 0; i < kNumParts; ++i) {
    const AuditCount& c = a.audit[static_cast<std::size_t>(i)];
    if (c.checked == 0) continue;
    parts.rows.push_back(
        {std::string(recall::to_string(static_cast<Part>(i))),
         report::format_count(c.checked),
         {report::format_count(c.different), differs(c) ? report::Tone::kBad : report::Tone::kPlain},
         fmt::format("{:.3f}", c.worst),
         c.different > 0 ? fmt::format("layer {}, at {}", c.layer, c.position) : ""});
  }
  document.add(std::move(parts));
  add_selection(document, a);
  document.paragraph(
      "McNemar's exact test on the same cases, Holm's correction over the alternatives, Newcombe's paired "
      "intervals. The lists give the corrected p of what gets answers back and the uncorrected one of what "
      "does not. Ruled out means: no significant gain on these cases; the interval says how large a gain "
      "could still hide.");
  return document;
}

std::string attribution_json(const RunFacts& facts, const Attribution& a) {
  nlohmann::ordered_json json;
  json["model"] = facts.model;
  json["device"] = facts.device;
  json["knobs"] = facts.knobs;
  json["asked"] = facts.asked;
  json["cases"] = a.cases;
  json["right"] = a.right;
  json["restored_right"] = a.restored_right;
  json["alternatives_not_needed"] = a.skipped;
  json["partial"] = !a.unreached.empty();
  json["alternatives_not_reached"] = a.unreached;
  json["verdict"] = {{"kind", to_string(a.verdict.kind)},
                     {"component", a.verdict.component},
                     {"points_lost", a.verdict.points_lost},
                     {"low", a.verdict.points.low},
                     {"high", a.verdict.points.high},
                     {"p", a.verdict.p},
                     {"sentence", a.verdict.sentence},
                     {"advice", a.verdict.advice},
                     {"evidence", a.verdict.evidence},
                     {"ruled_out", a.verdict.ruled_out},
                     {"open", a.verdict.open}};
  json["alternatives"] = nlohmann::ordered_json::array();
  for (const VariantResult& v : a.variants)
    json["alternatives"].push_back({{"name", v.variant.name},
                                    {"suspect", to_string(v.variant.suspect)},
                                    {"knobs", describe(v.variant.knobs)},
                                    {"not_run", v.unsupported},
                                    {"right", v.right},
                                    {"only_now_right", v.pairs.only_second},
                                    {"only_before_right", v.pairs.only_first},
                                    {"p", v.p},
                                    {"p_holm", v.p_holm},
                                    {"low", 100 * v.gain.low},
                                    {"high", 100 * v.gain.high}});
  json["parts"] = nlohmann::ordered_json::array();
  for (int i = 0; i < kNumParts; ++i) {
    const AuditCount& c = a.audit[static_cast<std::size_t>(i)];
    json["parts"].push_back({{"part", recall::to_string(static_cast<Part>(i))},
                             {"compared", c.checked},
                             {"different", c.different},
                             {"worst", c.worst},
                             {"layer", c.layer},
                             {"at", c.position}});
  }
  json["selection"] = nlohmann::ordered_json::array();
  for (const LayerFidelity& f : a.fidelity)
    json["selection"].push_back({{"layer", f.layer},
                                 {"queries", f.queries},
                                 {"limited", f.limited},
                                 {"overlap", f.overlap},
                                 {"entry_mass", f.entry_mass},
                                 {"total_mass", f.total_mass},
                                 {"fact_selected", f.fact_selected}});
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace pivot::recall
