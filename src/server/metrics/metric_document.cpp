// The table as JSON and as docs/metrics.md.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "server/metrics/metric_table.h"

namespace pivot {
namespace {

std::string label_text(const LabelSpec& label) {
  if (label.values.empty()) return fmt::format("`{}`", label.name);
  std::string values;
  for (const std::string_view value : label.values) {
    if (!values.empty()) values += ", ";
    values += value;
  }
  return fmt::format("`{}`: {}", label.name, values);
}

std::string buckets_text(std::span<const double> buckets) {
  std::string text;
  for (const double bound : buckets) text += fmt::format("{}{:g}", text.empty() ? "" : " ", bound);
  return text;
}

}  // namespace

std::string metric_table_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MetricSpec& spec : metric_table()) {
    nlohmann::ordered_json entry;
    entry["section"] = spec.section;
    entry["name"] = spec.name;
    entry["type"] = to_string(spec.type);
    entry["unit"] = spec.unit;
    entry["labels"] = nlohmann::ordered_json::array();
    for (const LabelSpec& label : spec.labels) {
      nlohmann::ordered_json one;
      one["name"] = label.name;
      one["values"] = nlohmann::ordered_json::array();
      for (const std::string_view value : label.values) one["values"].push_back(value);
      entry["labels"].push_back(std::move(one));
    }
    entry["buckets"] = nlohmann::ordered_json::array();
    for (const double bound : spec.buckets) entry["buckets"].push_back(bound);
    entry["help"] = spec.help;
    list.push_back(std::move(entry));
  }
  nlohmann::ordered_json document;
  document["metrics"] = std::move(list);
  return document.dump(2);
}

std::string metric_table_markdown() {
  std::string text =
      "# Metrics\n\n"
      "What `pivot serve` answers at `/metrics` (Prometheus text format 0.0.4). Made from the table in\n"
      "`src/server/metrics/metric_table.cpp` by `pivot metrics`; a test compares the two.\n\n"
      "Base units everywhere: seconds, bytes, tokens. Every label has a fixed set of values, listed here; "
      "labels\n"
      "without a list belong to identity series and are set once, at start. A histogram also has `_sum` and\n"
      "`_count`. `deploy/prometheus/pivot-aliases.rules.yml` gives the figures vLLM's and SGLang's names.\n";
  std::string_view section;
  for (const MetricSpec& spec : metric_table()) {
    if (spec.section != section) {
      section = spec.section;
      std::string title(section);
      title[0] = static_cast<char>(title[0] - 'a' + 'A');
      text += fmt::format("\n## {}\n", section == "http" ? "HTTP" : title);
    }
    text += fmt::format("\n### {}\n\n{}{}{}. {}\n", spec.name, to_string(spec.type),
                        spec.unit.empty() ? "" : ", ", spec.unit, spec.help);
    if (!spec.labels.empty()) text += "\n";
    for (const LabelSpec& label : spec.labels) text += fmt::format("- {}\n", label_text(label));
    if (!spec.buckets.empty()) text += fmt::format("\nBuckets: {}\n", buckets_text(spec.buckets));
  }
  return text;
}

}  // namespace pivot
