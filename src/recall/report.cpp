#include "recall/report.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/report/units.h"
#include "recall/statistics.h"

namespace pivot::recall {
namespace {

using report::Align;

constexpr std::size_t kListedCases = 12;
constexpr std::size_t kQuotedColumns = 400;  // of what a server says

struct Tally {
  std::int64_t right = 0, cases = 0;
  double similarity = 0, found = 0;
  void add(const CaseResult& r) {
    right += r.score.exact ? 1 : 0;
    ++cases;
    similarity += r.score.similarity;
    found += r.score.found;
  }
  double rate() const {
    return cases == 0 ? std::numeric_limits<double>::quiet_NaN()
                      : static_cast<double>(right) / static_cast<double>(cases);
  }
  double mean(double sum) const { return cases == 0 ? 0 : sum / static_cast<double>(cases); }
};

report::Cell rate_cell(const Tally& tally) {
  const Interval interval = wilson_interval(tally.right, tally.cases);
  const report::Tone tone = tally.right == tally.cases ? report::Tone::kGood
                            : interval.high < 0.9      ? report::Tone::kBad
                                                       : report::Tone::kWarning;
  return {fmt::format("{:.3f} [{:.2f}, {:.2f}]", tally.rate(), interval.low, interval.high), tone};
}

template <class Key>
void tally_table(report::Document& document, const std::string& caption, const std::string& title,
                 const std::vector<CaseResult>& results, const Key& key_of) {
  if (results.empty()) return;
  std::map<std::pair<Task, std::int64_t>, std::pair<std::string, Tally>> rows;
  for (const CaseResult& r : results) {
    const auto [order, label] = key_of(r);
    auto& row = rows[{r.spec.task, order}];
    row.first = label;
    row.second.add(r);
  }
  report::Table table;
  table.caption = caption;
  table.columns = {{"task"},
                   {title, Align::kRight},
                   {"cases", Align::kRight},
                   {"right", Align::kRight},
                   {"recall [95 %]", Align::kRight},
                   {"parts found", Align::kRight},
                   {"similarity", Align::kRight}};
  for (const auto& [key, row] : rows) {
    const Tally& t = row.second;
    table.rows.push_back({std::string(to_string(key.first)), row.first, std::to_string(t.cases),
                          std::to_string(t.right), rate_cell(t), fmt::format("{:.3f}", t.mean(t.found)),
                          fmt::format("{:.3f}", t.mean(t.similarity))});
  }
  document.add(std::move(table));
}

void heatmaps(report::Document& document, const std::vector<CaseResult>& results) {
  std::map<Task, std::map<std::pair<double, std::int64_t>, Tally>> maps;
  std::map<Task, std::pair<std::set<double>, std::set<std::int64_t>>> axes;
  for (const CaseResult& r : results) {
    maps[r.spec.task][{r.spec.depth, r.spec.length_tokens}].add(r);
    axes[r.spec.task].first.insert(r.spec.depth);
    axes[r.spec.task].second.insert(r.spec.length_tokens);
  }
  for (const auto& [task, cells] : maps) {
    report::Heatmap map;
    map.title = fmt::format("{}: recall by prompt length (tokens) and depth of the fact", to_string(task));
    map.unit = "recall";
    map.low = 0, map.high = 1;
    for (const std::int64_t length : axes[task].second) map.column_labels.push_back(std::to_string(length));
    for (const double depth : axes[task].first) {
      map.row_labels.push_back(fmt::format("{:.0f} %", 100 * depth));
      for (const std::int64_t length : axes[task].second) {
        const auto found = cells.find({depth, length});
        map.values.push_back(found == cells.end() ? std::numeric_limits<double>::quiet_NaN()
                                                  : found->second.rate());
      }
    }
    document.add(std::move(map));
  }
}

struct FidelityTally {
  std::int64_t cases = 0, limited = 0, queries = 0, worst_rank = -1;
  double overlap = 0, worst_overlap = 1, entry_mass = 0, total_mass = 0, margin = 0, selected = 0;
};

// By a property of the case (its length, the depth of its fact) and the layer.
template <class Property>
using FidelityTallies = std::map<std::pair<Property, std::int32_t>, FidelityTally>;

template <class Property>
FidelityTallies<Property> tally_fidelity(const std::vector<CaseResult>& results,
                                         Property CaseSpec::*property) {
  FidelityTallies<Property> tallies;
  for (const CaseResult& r : results)
    for (const LayerFidelity& f : r.fidelity) {
      FidelityTally& t = tallies[{r.spec.*property, f.layer}];
      const auto n = static_cast<double>(f.queries);
      ++t.cases;
      t.queries += f.queries, t.limited += f.limited;
      t.overlap += n * f.overlap, t.entry_mass += n * f.entry_mass, t.total_mass += n * f.total_mass,
          t.selected += n * f.fact_selected;
      t.margin += static_cast<double>(f.limited) * f.margin;
      t.worst_overlap = std::min(t.worst_overlap, f.worst_overlap);
      t.worst_rank = std::max(t.worst_rank, f.fact_rank);
    }
  for (auto& [key, t] : tallies) {
    const auto n = static_cast<double>(std::max<std::int64_t>(1, t.queries));
    t.overlap /= n, t.entry_mass /= n, t.total_mass /= n, t.selected /= n;
    t.margin /= static_cast<double>(std::max<std::int64_t>(1, t.limited));
  }
  return tallies;
}

template <class Property, class Label>
void fidelity_table(report::Document& document, const std::string& caption, const std::string& title,
                    const FidelityTallies<Property>& tallies, const Label& label) {
  report::Table table;
  table.caption = caption;
  table.columns = {
      {title, Align::kRight},         {"layer", Align::kRight},        {"queries", Align::kRight},
      {"limited", Align::kRight},     {"overlap", Align::kRight},      {"worst", Align::kRight},
      {"entry mass", Align::kRight},  {"total mass", Align::kRight},   {"margin", Align::kRight},
      {"fact's rank", Align::kRight}, {"fact selected", Align::kRight}};
  for (const auto& [key, t] : tallies)
    table.rows.push_back({label(key.first), std::to_string(key.second), std::to_string(t.queries),
                          std::to_string(t.limited), fmt::format("{:.4f}", t.overlap),
                          fmt::format("{:.3f}", t.worst_overlap), fmt::format("{:.4f}", t.entry_mass),
                          fmt::format("{:.4f}", t.total_mass), fmt::format("{:.4f}", t.margin),
                          t.worst_rank < 0 ? "-" : std::to_string(t.worst_rank),
                          fmt::format("{:.3f}", t.selected)});
  document.add(std::move(table));
}

void fidelity_section(report::Document& document, const std::vector<CaseResult>& results) {
  const auto by_length = tally_fidelity(results, &CaseSpec::length_tokens);
  if (by_length.empty()) return;
  document.heading("Fidelity of the selection");
  document.paragraph(
      "Compared with an index in fp32 without any rounding, on the same activations. Overlap: share of the "
      "exact top-k that was selected. Mass: attention probability "
      "that went to selected entries, of all entries' and of everything's. Margin: exact score at the cut "
      "minus the next, in deviations of the scores. Rank: of the best "
      "entry that holds the fact, where the value is predicted (0 is first; the worst over the cases).");
  fidelity_table(document, "By length", "tokens", by_length,
                 [](std::int64_t length) { return std::to_string(length); });
  fidelity_table(document, "By depth of the fact", "depth", tally_fidelity(results, &CaseSpec::depth),
                 [](double depth) { return fmt::format("{:.0f} %", 100 * depth); });
}

// One object per key; `name` is that of the property.
template <class Property>
nlohmann::ordered_json fidelity_json(const char* name, const FidelityTallies<Property>& tallies) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& [key, t] : tallies)
    rows.push_back({{name, key.first},
                    {"layer", key.second},
                    {"queries", t.queries},
                    {"limited", t.limited},
                    {"overlap", t.overlap},
                    {"worst_overlap", t.worst_overlap},
                    {"entry_mass", t.entry_mass},
                    {"total_mass", t.total_mass},
                    {"margin", t.margin},
                    {"fact_rank", t.worst_rank},
                    {"fact_selected", t.selected}});
  return rows;
}

std::vector<CaseResult> answered_of(const std::vector<CaseResult>& results) {
  std::vector<CaseResult> answered;
  std::copy_if(results.begin(), results.end(), std::back_inserter(answered),
               [](const CaseResult& r) { return r.failure.empty(); });
  return answered;
}

// What a server did not answer, and what it said of itself that cannot be.
void server_tables(report::Document& document, const std::vector<CaseResult>& all) {
  const auto list = [&](const std::string& heading, const std::string& column, const auto& text_of) {
    report::Table table;
    table.columns = {{"case"}, {column}};
    std::size_t count = 0;
    for (const CaseResult& r : all)
      if (!text_of(r).empty() && ++count <= kListedCases)
        table.rows.push_back({r.id, report::truncate(text_of(r), kQuotedColumns)});
    if (count == 0) return;
    document.heading(heading);
    if (count > kListedCases) table.caption = fmt::format("The first {} of {}", kListedCases, count);
    document.add(std::move(table));
  };
  list("Cases without an answer, left out of every figure", "why",
       [](const CaseResult& r) -> const std::string& { return r.failure; });
  list("What the server says of its answers and cannot be", "remark",
       [](const CaseResult& r) -> const std::string& { return r.remarks; });
}

}  // namespace

report::Document run_document(const RunFacts& facts, const std::vector<CaseResult>& all) {
  const std::vector<CaseResult> results = answered_of(all);
  report::Document document;
  document.title = fmt::format("Recall of {}", facts.model);
  document.subtitle =
      fmt::format("{} cases on {}, knobs: {}, wording: {}, text: {} ({} tokens), {}", results.size(),
                  facts.device, facts.knobs, facts.wording, facts.text,
                  report::format_count(facts.text_tokens), report::format_seconds(facts.seconds));
  if (facts.partial)
    document.paragraph(fmt::format("PARTIAL: stopped after {} of {} cases; the figures below are of these.",
                                   all.size(), facts.wanted_cases),
                       report::Tone::kWarning);
  if (results.size() < all.size())
    document.paragraph(results.empty()
                           ? fmt::format("None of {} cases got an answer; there is no figure.", all.size())
                           : fmt::format("{} of {} cases got no answer; the figures below are of the others.",
                                         all.size() - results.size(), all.size()),
                       results.empty() ? report::Tone::kBad : report::Tone::kWarning);
  if (!results.empty()) {
    Tally sum;
    for (const CaseResult& r : results) sum.add(r);
    const report::Cell rate = rate_cell(sum);
    document.paragraph(
        fmt::format("{} of {} answers are right: recall {}, 95 % interval.", sum.right, sum.cases, rate.text),
        rate.tone);
  }
  tally_table(document, "By length", "tokens", results, [](const CaseResult& r) {
    return std::pair(r.spec.length_tokens, std::to_string(r.spec.length_tokens));
  });
  heatmaps(document, results);
  if (std::any_of(results.begin(), results.end(), [](const CaseResult& r) { return r.spec.residue >= 0; }))
    tally_table(document, "By prompt length modulo", "residue", results, [](const CaseResult& r) {
      return std::pair(r.spec.modulus * 1000 + r.spec.residue,
                       fmt::format("{} mod {}", r.spec.residue, r.spec.modulus));
    });
  fidelity_section(document, results);
  const auto wrong =
      std::count_if(results.begin(), results.end(), [](const CaseResult& r) { return !r.score.exact; });
  if (wrong > 0) {
    document.heading("Wrong answers");
    report::Table table;
    table.columns = {{"case"}, {"wanted"}, {"answer"}};
    for (const CaseResult& r : results) {
      if (r.score.exact || table.rows.size() >= kListedCases) continue;
      std::string wanted;
      for (const std::string& value : r.expected) wanted += (wanted.empty() ? "" : ", ") + value;
      table.rows.push_back({r.id, wanted, report::truncate(r.answer, 80)});
    }
    if (wrong > static_cast<std::int64_t>(table.rows.size()))
      table.caption = fmt::format("The first {} of {}", table.rows.size(), wrong);
    document.add(std::move(table));
  }
  server_tables(document, all);
  document.heading("What this says, and what it does not");
  document.paragraph(
      "Synthetic questions about planted facts, greedy answers, exact comparison. A high figure shows that "
      "the facts can be read at these lengths and places by this engine; it says nothing about "
      "reasoning over a text, about other wordings, or about another model. Intervals are Wilson's, 95 %, "
      "for independent cases.");
  return document;
}

std::string run_json(const RunFacts& facts, const std::vector<CaseResult>& all) {
  const std::vector<CaseResult> results = answered_of(all);
  nlohmann::ordered_json json;
  json["model"] = facts.model;
  json["device"] = facts.device;
  json["knobs"] = facts.knobs;
  json["wording"] = facts.wording;
  json["text"] = facts.text;
  json["text_tokens"] = facts.text_tokens;
  json["partial"] = facts.partial;
  json["wanted_cases"] = facts.wanted_cases;
  json["unanswered_cases"] = all.size() - results.size();
  json["seconds"] = facts.seconds;
  std::map<Task, Tally> tasks;
  for (const CaseResult& r : results) tasks[r.spec.task].add(r);
  json["tasks"] = nlohmann::ordered_json::array();
  for (const auto& [task, t] : tasks) {
    const Interval interval = wilson_interval(t.right, t.cases);
    json["tasks"].push_back({{"task", to_string(task)},
                             {"cases", t.cases},
                             {"right", t.right},
                             {"recall", t.rate()},
                             {"low", interval.low},
                             {"high", interval.high},
                             {"found", t.mean(t.found)},
                             {"similarity", t.mean(t.similarity)}});
  }
  json["fidelity"] = fidelity_json("length", tally_fidelity(results, &CaseSpec::length_tokens));
  json["fidelity_by_depth"] = fidelity_json("depth", tally_fidelity(results, &CaseSpec::depth));
  json["cases"] = nlohmann::ordered_json::array();
  for (const CaseResult& r : all) json["cases"].push_back(nlohmann::ordered_json::parse(to_json(r)));
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace pivot::recall
