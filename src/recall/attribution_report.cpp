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

}  // namespace

report::Document attribution_document(const RunFacts& facts, const Attribution& a) {
  report::Document document;
  document.title = fmt::format("Where {} loses recall", facts.model);
  document.subtitle = fmt::format("{} cases on {}, knobs: {}", a.cases, facts.device, facts.knobs);
  const bool bad = a.verdict.kind != VerdictKind::kClean;
  document.heading("Verdict");
  document.paragraph(a.verdict.sentence, bad ? report::Tone::kBad : report::Tone::kGood);
  report::Table table;
  table.caption = fmt::format("The same {} cases; as it is: {} right", a.cases, a.right);
  table.columns = {{"alternative"},
                   {"right", Align::kRight},
                   {"only now right", Align::kRight},
                   {"only before right", Align::kRight},
                   {"points  [95 %]", Align::kRight},
                   {"p (Holm)", Align::kRight}};
  for (const VariantResult& v : a.variants) {
    if (!v.unsupported.empty()) {
      table.rows.push_back({v.variant.name, {"not run: " + v.unsupported, report::Tone::kMuted}});
      continue;
    }
    table.rows.push_back({v.variant.name, std::to_string(v.right), std::to_string(v.pairs.only_second),
                          std::to_string(v.pairs.only_first),
                          fmt::format("{:+.1f}  [{:+.1f}, {:+.1f}]", 100 * v.pairs.difference(),
                                      100 * v.gain.low, 100 * v.gain.high),
                          fmt::format("{:.4f}", v.p_holm)});
  }
  document.add(std::move(table));
  if (a.skipped > 0)
    document.paragraph(
        fmt::format("{} more alternatives were not run: {} --every-variant runs them.", a.skipped,
                    a.right == a.cases ? "every answer is right, so none can get one back."
                                       : "the cause is settled."),
        report::Tone::kMuted);
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
         {report::format_count(c.different), c.different > 0 ? report::Tone::kBad : report::Tone::kPlain},
         report::format_number(c.worst),
         c.different > 0 ? fmt::format("layer {}, at {}", c.layer, c.position) : ""});
  }
  document.add(std::move(parts));
  document.heading("Ruled out");
  report::Items items;
  for (const std::string& line : a.verdict.ruled_out)
    items.items.push_back({"", line, "", report::Tone::kPlain});
  document.add(std::move(items));
  document.paragraph(
      "McNemar's exact test on the same cases, Holm's correction over the alternatives, Newcombe's paired "
      "intervals. Ruled out means: no significant gain on these cases; the interval says how large a gain "
      "could still hide.");
  return document;
}

std::string attribution_json(const RunFacts& facts, const Attribution& a) {
  nlohmann::ordered_json json;
  json["model"] = facts.model;
  json["device"] = facts.device;
  json["knobs"] = facts.knobs;
  json["cases"] = a.cases;
  json["right"] = a.right;
  json["restored_right"] = a.restored_right;
  json["alternatives_not_needed"] = a.skipped;
  json["verdict"] = {{"kind", to_string(a.verdict.kind)},    {"component", a.verdict.component},
                     {"points_lost", a.verdict.points_lost}, {"low", a.verdict.points.low},
                     {"high", a.verdict.points.high},        {"p", a.verdict.p},
                     {"sentence", a.verdict.sentence},       {"ruled_out", a.verdict.ruled_out}};
  json["alternatives"] = nlohmann::ordered_json::array();
  for (const VariantResult& v : a.variants)
    json["alternatives"].push_back({{"name", v.variant.name},
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
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace pivot::recall
