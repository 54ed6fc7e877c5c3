#include "checkpoint/diff/diff_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/report/units.h"

namespace pivot {

namespace {

using nlohmann::ordered_json;
using report::Align;
using report::Cell;
using report::format_bytes;
using report::format_count;
using report::format_number;
using report::format_percent;
using report::Table;
using report::Tone;

constexpr std::size_t kWorstShown = 15;

std::string group_name(const DifferenceGroup& group) {
  return (group.draft ? "draft: " : "") + std::string(module_name(group.module));
}

std::string decibel(const ErrorSums& sums) {
  return sums.squared_error == 0 ? "exact" : fmt::format("{:.1f} dB", sums.snr_db());
}

Tone tone_of(Difference difference) {
  switch (difference) {
    case Difference::kIdentical:
    case Difference::kReencoded:
      return Tone::kGood;
    case Difference::kNotReached:
      return Tone::kMuted;
    case Difference::kOnlyA:
    case Difference::kOnlyB:
      return Tone::kWarning;
    default:
      return Tone::kBad;
  }
}

void add_counts(report::Document& document, const DiffReport& diff) {
  Table table;
  table.columns = {{"result", Align::kLeft}, {"tensors", Align::kRight}};
  for (int d = 0; d < kNumDifferences; ++d) {
    const std::int64_t count = diff.counts[static_cast<std::size_t>(d)];
    if (count > 0)
      table.rows.push_back({{to_string(static_cast<Difference>(d)), tone_of(static_cast<Difference>(d))},
                            format_count(count)});
  }
  document.add(std::move(table));
}

void add_modules(report::Document& document, const DiffReport& diff) {
  document.heading("By module");
  Table table;
  table.columns = {
      {"module", Align::kLeft},     {"tensors", Align::kRight},   {"result", Align::kLeft},
      {"max error", Align::kRight}, {"rms error", Align::kRight}, {"relative", Align::kRight},
      {"SNR", Align::kRight},       {"cosine", Align::kRight},    {"changed codes", Align::kRight}};
  for (const DifferenceGroup& group : diff.modules) {
    std::string kinds;
    Tone tone = Tone::kGood;
    for (int d = 0; d < kNumDifferences; ++d) {
      const std::int64_t count = group.counts[static_cast<std::size_t>(d)];
      if (count == 0) continue;
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", format_count(count),
                           to_string(static_cast<Difference>(d)));
      if (!same_values(static_cast<Difference>(d))) tone = tone_of(static_cast<Difference>(d));
    }
    std::vector<Cell> row = {group_name(group), format_count(group.tensors()), {kinds, tone}};
    if (group.sums.squared_error > 0) {
      const ErrorSums& sums = group.sums;
      row.insert(row.end(),
                 {format_number(sums.max_error), format_number(sums.rms_error()),
                  format_percent(sums.relative_error()), decibel(sums), fmt::format("{:.6f}", sums.cosine()),
                  sums.codes_comparable ? format_percent(static_cast<double>(sums.changed_codes) /
                                                         static_cast<double>(sums.elements))
                                        : "-"});
    }
    table.rows.push_back(std::move(row));
  }
  document.add(std::move(table));
}

// Relative error by block and module, for those modules that differ at all.
void add_heatmap(report::Document& document, const DiffReport& diff) {
  std::set<int> modules;
  std::int32_t last_block = -1;
  for (const DifferenceGroup& group : diff.blocks) {
    if (group.draft || group.block < 0) continue;
    last_block = std::max(last_block, group.block);
    if (group.sums.squared_error > 0) modules.insert(static_cast<int>(group.module));
  }
  if (modules.empty()) return;
  report::Heatmap map{"Relative error by layer and module", "%", {}, {}, {}, 0.0, std::nullopt};
  for (const int module : modules) map.column_labels.emplace_back(module_name(static_cast<Module>(module)));
  for (std::int32_t block = 0; block <= last_block; ++block) {
    map.row_labels.push_back(fmt::format("layer {}", block));
    for (const int module : modules) {
      const auto found =
          std::find_if(diff.blocks.begin(), diff.blocks.end(), [&](const DifferenceGroup& group) {
            return !group.draft && group.block == block && static_cast<int>(group.module) == module;
          });
      map.values.push_back(found == diff.blocks.end() ? std::nan("") : 100 * found->sums.relative_error());
    }
  }
  document.add(std::move(map));
}

void add_worst(report::Document& document, const DiffReport& diff) {
  std::vector<const TensorDifference*> worst;
  for (const TensorDifference& tensor : diff.tensors)
    if (!same_values(tensor.difference) && tensor.difference != Difference::kNotReached)
      worst.push_back(&tensor);
  if (worst.empty()) return;
  std::stable_sort(worst.begin(), worst.end(), [](const TensorDifference* a, const TensorDifference* b) {
    return a->sums.relative_error() > b->sums.relative_error();
  });
  document.heading("Largest differences");
  Table table;
  table.columns = {{"tensor", Align::kLeft},     {"A", Align::kLeft},
                   {"B", Align::kLeft},          {"result", Align::kLeft},
                   {"max error", Align::kRight}, {"relative", Align::kRight},
                   {"SNR", Align::kRight},       {"changed codes", Align::kRight}};
  for (std::size_t i = 0; i < std::min(worst.size(), kWorstShown); ++i) {
    const TensorDifference& one = *worst[i];
    std::vector<Cell> row = {
        one.name, one.stored_a, one.stored_b, {to_string(one.difference), tone_of(one.difference)}};
    if (one.sums.elements > 0 && one.sums.squared_error > 0)
      row.insert(row.end(),
                 {format_number(one.sums.max_error), format_percent(one.sums.relative_error()),
                  decibel(one.sums), one.sums.codes_comparable ? format_count(one.sums.changed_codes) : "-"});
    table.rows.push_back(std::move(row));
  }
  if (worst.size() > kWorstShown)
    table.caption = fmt::format("{} of {} (--json lists all)", kWorstShown,
                                format_count(static_cast<std::int64_t>(worst.size())));
  document.add(std::move(table));
}

ordered_json sums_json(const ErrorSums& sums) {
  // JSON has no infinity: an exact tensor has a null SNR.
  const double snr = sums.snr_db();
  return {{"elements", sums.elements},
          {"changed_values", sums.changed_values},
          {"changed_codes", sums.codes_comparable ? ordered_json(sums.changed_codes) : ordered_json(nullptr)},
          {"max_error", sums.max_error},
          {"rms_error", sums.rms_error()},
          {"relative_error", std::isfinite(sums.relative_error()) ? ordered_json(sums.relative_error())
                                                                  : ordered_json(nullptr)},
          {"snr_db", std::isfinite(snr) ? ordered_json(snr) : ordered_json(nullptr)},
          {"cosine", sums.squared_error > 0 ? sums.cosine() : 1.0}};
}

ordered_json counts_json(const std::array<std::int64_t, kNumDifferences>& counts) {
  ordered_json json = ordered_json::object();
  for (int d = 0; d < kNumDifferences; ++d)
    if (counts[static_cast<std::size_t>(d)] > 0)
      json[to_string(static_cast<Difference>(d))] = counts[static_cast<std::size_t>(d)];
  return json;
}

ordered_json group_json(const DifferenceGroup& group) {
  ordered_json json = {{"module", module_name(group.module)},
                       {"draft", group.draft},
                       {"block", group.block < 0 ? ordered_json(nullptr) : ordered_json(group.block)},
                       {"same_values", group.same()},
                       {"counts", counts_json(group.counts)},
                       {"errors", sums_json(group.sums)}};
  json["worst"] = group.worst.empty() ? ordered_json(nullptr) : ordered_json(group.worst);
  return json;
}

}  // namespace

report::Document diff_document(const DiffReport& diff) {
  report::Document document;
  document.title = "Difference of two checkpoints";
  document.subtitle = fmt::format("A: {}   B: {}", diff.label_a, diff.label_b);
  document.heading("Verdict");
  document.paragraph(diff.verdict() + ".", diff.same() ? Tone::kGood : Tone::kWarning);
  if (!diff.complete)
    document.paragraph(
        "This report is partial: the comparison was interrupted, and tensors that were not reached are "
        "counted as such.",
        Tone::kBad);
  if (diff.other_input_scales > 0)
    document.paragraph(fmt::format("{} NVFP4 activation scales (input_scale) differ; they matter only to "
                                   "engines that quantise activations to FP4.",
                                   format_count(diff.other_input_scales)),
                       Tone::kWarning);
  document.paragraph(
      fmt::format("{} read in {} ({}/s).", format_bytes(static_cast<double>(diff.bytes_read)),
                  report::format_seconds(diff.seconds),
                  format_bytes(diff.seconds > 0 ? static_cast<double>(diff.bytes_read) / diff.seconds : 0)),
      Tone::kMuted);
  add_counts(document, diff);
  add_modules(document, diff);
  add_heatmap(document, diff);
  add_worst(document, diff);
  return document;
}

std::string diff_json(const DiffReport& diff, bool every_tensor) {
  ordered_json json;
  json["schema"] = "pivot.diff/1";
  json["a"] = diff.label_a;
  json["b"] = diff.label_b;
  json["complete"] = diff.complete;
  json["same_values"] = diff.same();
  json["verdict"] = diff.verdict();
  json["counts"] = counts_json(diff.counts);
  json["other_input_scales"] = diff.other_input_scales;
  json["bytes_read"] = diff.bytes_read;
  json["seconds"] = diff.seconds;
  json["modules"] = ordered_json::array();
  for (const DifferenceGroup& group : diff.modules) json["modules"].push_back(group_json(group));
  json["blocks"] = ordered_json::array();
  for (const DifferenceGroup& group : diff.blocks) json["blocks"].push_back(group_json(group));
  json["tensors"] = ordered_json::array();
  for (const TensorDifference& one : diff.tensors) {
    if (!every_tensor && one.difference == Difference::kIdentical) continue;
    ordered_json entry = {{"name", one.name},
                          {"module", module_name(one.module)},
                          {"result", to_string(one.difference)},
                          {"a", one.stored_a},
                          {"b", one.stored_b}};
    if (one.sums.elements > 0) entry["errors"] = sums_json(one.sums);
    json["tensors"].push_back(std::move(entry));
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace pivot
