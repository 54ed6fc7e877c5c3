// Gathers the facts of a subject into an Inspection.
#include <sys/statvfs.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/fingerprint.h"
#include "checkpoint/inspect/inspection.h"
#include "checkpoint/layout.h"

namespace pivot {

namespace {

std::optional<std::uint64_t> free_bytes(const std::filesystem::path& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

void tally_tensors(const TensorTable& table, Inspection& out) {
  std::map<std::pair<int, bool>, ModuleFacts> modules;
  for (const TensorInfo& tensor : table.tensors()) {
    const auto bytes = static_cast<std::int64_t>(tensor.bytes());
    const std::string dtype(dtype_name(tensor.dtype));
    const auto add = [&](Tally& tally) {
      ++tally.tensors;
      tally.bytes += bytes;
    };
    add(out.tensors);
    add(out.dtypes[dtype]);
    std::optional<std::string> native;
    auto place = place_of(tensor.name);
    if (!place && (native = native_name_of(tensor.name))) place = place_of(*native);
    if (!place && tensor.name.find(".mlp.experts.") != std::string::npos)
      place = TensorPlace{Module::kRoutedExpert, false, 0, 0, {}};
    if (!place) continue;
    ModuleFacts& facts = modules[{static_cast<int>(place->module), place->draft}];
    facts.module = place->module;
    facts.draft = place->draft;
    add(facts.tally);
    add(facts.dtypes[dtype]);
  }
  for (const bool draft : {false, true})
    for (const auto& [key, facts] : modules)
      if (key.second == draft) out.modules.push_back(facts);
}

// A config may say one thing and the headers another; headers win, and the reader should know
// (specification 1.1, 4.6).
void find_contradictions(const nlohmann::json& json, const ModelConfig& config, Inspection& out) {
  const Identification& id = out.identification;
  const auto problem = [&](std::string text) { out.problems.push_back(std::move(text)); };
  const auto note = [&](std::string text) { out.notes.push_back(std::move(text)); };
  if (id.layers > 0 && id.layers != config.num_hidden_layers)
    problem(
        fmt::format("config.json says num_hidden_layers {}, the headers hold {} layers; fetch the config of "
                    "this checkpoint",
                    config.num_hidden_layers, id.layers));
  if (id.experts_per_layer > 0 && id.experts_per_layer != config.n_routed_experts)
    problem(
        fmt::format("config.json says n_routed_experts {}, layer 0's router has {} rows; fetch the config of "
                    "this checkpoint",
                    config.n_routed_experts, id.experts_per_layer));
  const auto declared_stages = static_cast<int>(config.draft_compress_ratios.size());
  if (id.draft_stages != declared_stages) {
    if (id.draft_stages == 0)
      note(fmt::format(
          "compress_ratios has {} draft entries but no mtp.* tensor is stored: no speculative decoding",
          declared_stages));
    else
      problem(fmt::format("compress_ratios has {} draft entries, the headers hold {} draft stages",
                          declared_stages, id.draft_stages));
  }
  if (json.contains("num_nextn_predict_layers") && json["num_nextn_predict_layers"].is_number_integer()) {
    const auto stated = json["num_nextn_predict_layers"].get<std::int64_t>();
    if (stated != id.draft_stages)
      note(fmt::format(
          "num_nextn_predict_layers is {} although {} draft stages are stored: a reader that trusts it drops "
          "{}",
          stated, id.draft_stages,
          stated < id.draft_stages ? "stages" : "nothing, but looks for stages that are not there"));
  }
  const bool fp4 = id.expert_format == ExpertFormat::kMxfp4;
  const bool fp8 = id.expert_format == ExpertFormat::kFp8E8m0 || id.expert_format == ExpertFormat::kFp8F32;
  const bool nvfp4 =
      id.expert_format == ExpertFormat::kNvfp4ModelOpt || id.expert_format == ExpertFormat::kNvfp4Compressed;
  if (!config.expert_dtype)
    note("expert_dtype is absent (an early revision); the headers say how experts are stored");
  if (config.expert_dtype &&
      ((*config.expert_dtype == "fp4" && fp8) || (*config.expert_dtype == "fp8" && (fp4 || nvfp4))))
    problem(
        fmt::format("config.json says expert_dtype \"{}\", the headers hold {} experts; a reader that trusts "
                    "the config mis-reads them",
                    *config.expert_dtype, to_string(id.expert_format)));
  const nlohmann::json quantization =
      json.contains("quantization_config") ? json["quantization_config"] : nlohmann::json();
  const bool says_nvfp4 = quantization.is_object() && quantization.contains("moe_quant_algo") &&
                          quantization["moe_quant_algo"] == "NVFP4";
  if (says_nvfp4 && !nvfp4 && id.expert_format != ExpertFormat::kUnknown)
    problem(fmt::format("config.json says moe_quant_algo NVFP4, the headers hold {} experts",
                        to_string(id.expert_format)));
  if (nvfp4 && !says_nvfp4)
    note(
        "config.json does not say NVFP4 (its quantization_config is absent or older): engines that key on it "
        "fall back to dequantising; pivot keys on dtypes");
  if (id.mixed_expert_formats)
    note("the backbone's experts are stored in more than one format; pivot decides per tensor");
  const CheckpointFormats formats = formats_of(id);
  if (id.draft_stages > 0 && formats.draft_experts != formats.experts)
    note(
        fmt::format("draft experts are {} while the backbone's are {}: a loader that picks one format for "
                    "the file mis-reads the draft head",
                    to_string(formats.draft_experts), to_string(formats.experts)));
}

// Geometry that the CUDA kernels are built for (docs/cuda.md); empty where the config fits. A server asks the
// back-end itself, which also knows the knobs.
std::string cuda_obstacle(const ModelConfig& config) {
  if (config.hc_mult != 4) return fmt::format("hc_mult is {}, its kernels are built for 4", config.hc_mult);
  if (config.head_dim != 512 && config.head_dim != 128)
    return fmt::format("head_dim is {}, its kernels are built for 512 and 128", config.head_dim);
  if (config.qk_rope_head_dim % 32 != 0)
    return fmt::format("qk_rope_head_dim is {}, no multiple of 32", config.qk_rope_head_dim);
  const bool indexed = std::count(config.compress_ratios.begin(), config.compress_ratios.end(), 4) > 0;
  if (indexed && config.index_head_dim != 128 && config.index_head_dim != 64)
    return fmt::format("index_head_dim is {}, its kernels are built for 128 and 64", config.index_head_dim);
  return {};
}

void judge_backends(const InspectOptions& options, Inspection& out) {
  const Identification& id = out.identification;
  const bool sound = id.supported && out.problems.empty();
  std::string obstacle = id.refusal;
  if (obstacle.empty() && !out.problems.empty()) obstacle = out.problems.front();
  const std::string can = fmt::format("loads {} experts and {} dense scales", to_string(id.expert_format),
                                      to_string(id.dense_scale));
  for (const char* name : {"cpu", "cuda"}) {
    BackendVerdict verdict;
    verdict.backend = name;
    verdict.built = std::find(options.built_backends.begin(), options.built_backends.end(), name) !=
                    options.built_backends.end();
    const std::string geometry =
        verdict.backend == "cuda" && out.config ? cuda_obstacle(*out.config) : std::string();
    const bool could = sound && geometry.empty();
    verdict.loads = could && verdict.built;
    verdict.reason = !sound              ? obstacle
                     : !geometry.empty() ? geometry
                     : verdict.built     ? can
                                         : can + ", but is not part of this build";
    out.backends.push_back(std::move(verdict));
  }
}

std::string verdict_of(const Subject& subject, const Inspection& out) {
  const Identification& id = out.identification;
  const bool family_known = id.family.starts_with("DeepSeek-V4") && id.refusal.empty();
  if (!subject.config_text() && !subject.has_headers())
    return "nothing to identify: neither config.json nor headers";
  if (!family_known && !id.family.empty() && !id.family.starts_with("DeepSeek-V4-") &&
      id.family != "DeepSeek-V4")
    return fmt::format("not a checkpoint that pivot runs: {}", id.refusal.empty() ? id.family : id.refusal);
  std::string text = id.family;
  if (!id.variant.empty()) text += " " + id.variant;
  if (!subject.has_headers()) return text + " (from config.json alone)";
  text +=
      fmt::format(": {} experts, {} dense scales", to_string(id.expert_format), to_string(id.dense_scale));
  if (!id.supported || !out.problems.empty()) text += "; not usable as it is";
  return text;
}

// What ModelWeights::fingerprint will be once this is loaded; empty where it cannot be.
std::string content_fingerprint(const Checkpoint& checkpoint, const Inspection& out) {
  if (!out.config) return {};
  const auto quantization = parse_quantization(checkpoint.config_text().value_or(""),
                                               checkpoint.hf_quant_text().value_or(""), "config.json");
  if (!quantization) return {};
  const auto layout = resolve_layout(*out.config, *quantization, checkpoint.table());
  return layout ? fmt::format("{:016x}", checkpoint_fingerprint(checkpoint, *layout)) : std::string();
}

void check_values(const Checkpoint& checkpoint, const InspectOptions& options, Inspection& out) {
  const Identification& id = out.identification;
  out.hyper_connections = check_hyper_connections(checkpoint);
  out.hash_tables = check_hash_tables(checkpoint, id.experts_per_layer);
  if (out.hash_tables->rows_with_duplicates > 0)
    out.problems.push_back(
        fmt::format("{} rows of the hash tables name an expert twice (first: {}); it would count double",
                    out.hash_tables->rows_with_duplicates, out.hash_tables->example));
  if (out.hash_tables->ids_out_of_range > 0)
    out.problems.push_back(fmt::format("{} ids of the hash tables name experts that do not exist",
                                       out.hash_tables->ids_out_of_range));
  if (id.expert_format == ExpertFormat::kNvfp4ModelOpt) out.nvfp4 = check_nvfp4(checkpoint, options.values);
}

}  // namespace

Inspection inspect(const Subject& subject, const InspectOptions& options) {
  Inspection out;
  out.label = subject.label();
  out.path = subject.path().string();
  out.problems = subject.problems();
  out.being_written = subject.being_written();
  out.free_disk_bytes = free_bytes(subject.path());
  out.index_total_size = subject.index_total_size();
  out.num_shards = subject.table().shards().size();
  const TensorTable& table = subject.table();
  const std::string config_text = subject.config_text().value_or("");
  out.identification = identify(config_text, table, subject.hf_quant_text().value_or(""));
  out.quantization_layout = quantization_layout(subject.config_text(), subject.hf_quant_text());
  if (!subject.config_text())
    out.problems.emplace_back(
        "config.json is missing: without it nothing can run these weights; fetch it, or name one with "
        "--config");
  tally_tensors(table, out);
  out.header_fingerprint = header_fingerprint(table);

  const nlohmann::json json = nlohmann::json::parse(config_text, nullptr, false);
  if (auto config = parse_model_config(config_text, "config.json")) {
    out.config = std::move(*config);
    if (!subject.has_headers()) {
      out.identification.variant = variant_from_config(*out.config, config_text);
      out.identification.confidence = Confidence::kLow;
      out.identification.refusal = "there are no weights here, only a config";
      out.identification.supported = false;
      out.identification.evidence = {"config.json alone; headers would decide formats and draft head"};
    } else {
      find_contradictions(json, *out.config, out);
      out.audit = audit_tensors(*out.config, out.identification, table);
    }
  } else if (subject.config_text() && json.is_object() && out.identification.refusal.empty()) {
    out.problems.push_back(config.error().to_string());
  }
  const std::uint64_t data_bytes = table.data_bytes();
  if (out.index_total_size && *out.index_total_size != data_bytes)
    out.notes.push_back(
        fmt::format("the index says total_size {}, the shards hold {} bytes: {} {} (NVFP4 exporters copy the "
                    "source's figure)",
                    *out.index_total_size, data_bytes,
                    *out.index_total_size < data_bytes ? data_bytes - *out.index_total_size
                                                       : *out.index_total_size - data_bytes,
                    *out.index_total_size < data_bytes ? "too few" : "too many"));
  if (!out.being_written.empty())
    out.notes.push_back(fmt::format("something seems to be writing here: {}", out.being_written.front()));
  if (const auto& checkpoint = subject.checkpoint()) {
    out.file_bytes = checkpoint->file_bytes();
    out.fingerprint = content_fingerprint(*checkpoint, out);
    if (options.values != ValueCheck::kNone && out.identification.style)
      check_values(*checkpoint, options, out);
  }
  judge_backends(options, out);
  out.verdict = verdict_of(subject, out);
  return out;
}

}  // namespace pivot
