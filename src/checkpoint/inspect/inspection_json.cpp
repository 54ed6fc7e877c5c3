#include <nlohmann/json.hpp>

#include "checkpoint/inspect/inspection_report.h"

namespace pivot {

namespace {

using nlohmann::ordered_json;

ordered_json tally_json(const Tally& tally) { return {{"tensors", tally.tensors}, {"bytes", tally.bytes}}; }

ordered_json dtypes_json(const std::map<std::string, Tally>& dtypes) {
  ordered_json json = ordered_json::object();
  for (const auto& [dtype, tally] : dtypes) json[dtype] = tally_json(tally);
  return json;
}

ordered_json histogram_json(const ExpertHistogram& histogram) {
  ordered_json json = ordered_json::object();
  for (std::size_t i = 0; i < histogram.size(); ++i)
    if (histogram[i] > 0) json[to_string(static_cast<ExpertFormat>(i))] = histogram[i];
  return json;
}

ordered_json values_json(const Inspection& inspection) {
  ordered_json json = ordered_json::object();
  if (inspection.nvfp4) {
    const Nvfp4Facts& facts = *inspection.nvfp4;
    json["nvfp4"] = {{"matrices", facts.matrices},           {"checked", facts.checked},
                     {"lossless", facts.lossless},           {"not_power_of_two", facts.not_power_of_two},
                     {"unequal_pairs", facts.unequal_pairs}, {"example", facts.example}};
  }
  if (inspection.hyper_connections) {
    const HyperConnectionFacts& facts = *inspection.hyper_connections;
    json["hyper_connections"] = {
        {"tensors", facts.tensors}, {"values", facts.values}, {"not_bf16", facts.not_bf16}};
  }
  if (inspection.hash_tables) {
    const HashTableFacts& facts = *inspection.hash_tables;
    json["hash_tables"] = {{"tables", facts.tables},
                           {"rows", facts.rows},
                           {"rows_with_duplicates", facts.rows_with_duplicates},
                           {"ids_out_of_range", facts.ids_out_of_range}};
  }
  return json;
}

ordered_json to_json(const Inspection& inspection) {
  const Identification& id = inspection.identification;
  ordered_json json;
  json["schema"] = "pivot.inspect/1";
  json["label"] = inspection.label;
  json["path"] = inspection.path;
  json["verdict"] = inspection.verdict;
  json["usable"] = id.supported && inspection.problems.empty();
  json["identification"] = {
      {"family", id.family},
      {"variant", id.variant},
      {"confidence", to_string(id.confidence)},
      {"refusal", id.refusal},
      {"name_style", id.style ? ordered_json(to_string(*id.style)) : ordered_json(nullptr)},
      {"expert_format", to_string(id.expert_format)},
      {"backbone_experts", histogram_json(id.backbone_experts)},
      {"draft_experts", histogram_json(id.draft_experts)},
      {"dense_scale", to_string(id.dense_scale)},
      {"draft_head", to_string(id.head)},
      {"draft_stages", id.draft_stages},
      {"layers", id.layers},
      {"experts_per_layer", id.experts_per_layer},
      {"pruned", id.pruned},
      {"evidence", id.evidence}};
  json["problems"] = inspection.problems;
  json["notes"] = inspection.notes;
  json["being_written"] = inspection.being_written;
  json["shards"] = inspection.num_shards;
  json["tensors"] = inspection.tensors.tensors;
  json["data_bytes"] = inspection.tensors.bytes;
  json["file_bytes"] =
      inspection.file_bytes > 0 ? ordered_json(inspection.file_bytes) : ordered_json(nullptr);
  json["index_total_size"] =
      inspection.index_total_size ? ordered_json(*inspection.index_total_size) : ordered_json(nullptr);
  json["free_disk_bytes"] =
      inspection.free_disk_bytes ? ordered_json(*inspection.free_disk_bytes) : ordered_json(nullptr);
  json["dtypes"] = dtypes_json(inspection.dtypes);
  json["modules"] = ordered_json::array();
  for (const ModuleFacts& facts : inspection.modules)
    json["modules"].push_back({{"module", module_name(facts.module)},
                               {"draft", facts.draft},
                               {"tensors", facts.tally.tensors},
                               {"bytes", facts.tally.bytes},
                               {"dtypes", dtypes_json(facts.dtypes)}});
  const Audit& audit = inspection.audit;
  json["audit"] = {{"done", audit.done},
                   {"expected", audit.expected},
                   {"found", audit.found},
                   {"missing", audit.missing},
                   {"extra", audit.extra},
                   {"different", audit.different},
                   {"duplicates", audit.duplicates}};
  json["values"] = values_json(inspection);
  json["quantization_layout"] = inspection.quantization_layout;
  json["fingerprint"] =
      inspection.fingerprint.empty() ? ordered_json(nullptr) : ordered_json(inspection.fingerprint);
  json["header_fingerprint"] = inspection.header_fingerprint.empty()
                                   ? ordered_json(nullptr)
                                   : ordered_json(inspection.header_fingerprint);
  json["backends"] = ordered_json::array();
  for (const BackendVerdict& verdict : inspection.backends)
    json["backends"].push_back({{"backend", verdict.backend},
                                {"built", verdict.built},
                                {"loads", verdict.loads},
                                {"reason", verdict.reason}});
  return json;
}

// Names come from files: bytes that are not UTF-8 are replaced instead of thrown over.
std::string dump(const ordered_json& json) {
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string inspection_json(const Inspection& inspection) { return dump(to_json(inspection)); }

std::string listing_json(const std::string& folder, std::span<const Inspection> inspections) {
  ordered_json json;
  json["schema"] = "pivot.inspect-listing/1";
  json["folder"] = folder;
  json["checkpoints"] = ordered_json::array();
  for (const Inspection& one : inspections) json["checkpoints"].push_back(to_json(one));
  return dump(json);
}

}  // namespace pivot
