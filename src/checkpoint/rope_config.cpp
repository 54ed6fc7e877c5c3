#include "checkpoint/rope_config.h"

#include <optional>
#include <string>
#include <tuple>

#include "checkpoint/config_reader.h"

namespace pivot {
namespace {

constexpr double kMaxTheta = 1e12;

// "type" and "rope_type" are the same key in two spellings.
std::optional<std::string> read_rope_type(ConfigReader& reader) {
  const auto type = reader.string("type");
  const auto rope_type = reader.string("rope_type");
  if (type && rope_type && *type != *rope_type) {
    reader.problems().add(
        ErrorCode::kInvalidData,
        "keys \"{}\" ({}) and \"{}\" ({}) contradict each other; keep the one that is right",
        reader.full_name("type"), quote_name(*type), reader.full_name("rope_type"), quote_name(*rope_type));
    return std::nullopt;
  }
  return rope_type ? rope_type : type;
}

// Keys of generic YaRN code that would change the amplitude or the ramp (specification 2.3: there is no
// amplitude factor). Neutral values are accepted, others cannot be honoured and must not be ignored.
void refuse_amplitude_keys(ConfigReader& reader) {
  for (std::string_view key : {"mscale", "mscale_all_dim", "attention_factor"}) {
    const nlohmann::json* value = reader.find(key);
    const double neutral = key == "attention_factor" ? 1.0 : 0.0;
    if (value == nullptr || (value->is_number() && value->get<double>() == neutral)) continue;
    reader.problems().add(
        ErrorCode::kUnsupported,
        "key \"{}\" is {}; DeepSeek-V4 has no amplitude factor in its rotary embedding, so remove it",
        reader.full_name(key), shown(*value));
  }
  reader.require_equal_if_present("truncate", true, "the correction range is rounded to whole frequencies");
}

// A YaRN object; nullopt after a problem.
std::optional<RopeConfig> read_yarn(const nlohmann::json& object, const std::string& prefix,
                                    Problems& problems) {
  const std::size_t before = problems.count();
  ConfigReader reader(object, prefix, problems);
  const auto type = read_rope_type(reader);
  if (problems.count() != before) return std::nullopt;
  if (!type) {
    problems.add(ErrorCode::kInvalidData, "key \"{}\" (or \"rope_type\") is missing; \"yarn\" was wanted",
                 reader.full_name("type"));
    return std::nullopt;
  }
  if (*type != "yarn") {
    problems.add(
        ErrorCode::kUnsupported,
        "key \"{}\" is {}; only \"yarn\" is supported for the compressed layers, so correct the spelling",
        reader.full_name(reader.find("rope_type") != nullptr ? "rope_type" : "type"), quote_name(*type));
    return std::nullopt;
  }
  RopeConfig rope;
  rope.factor = reader.number("factor", 0.0, 1e6);
  rope.original_max_position_embeddings = reader.integer("original_max_position_embeddings", 1, 1 << 30);
  rope.beta_fast = reader.number("beta_fast", 0.0, 1e6);
  rope.beta_slow = reader.number("beta_slow", 0.0, 1e6);
  if (problems.count() == before && rope.beta_fast <= rope.beta_slow) {
    problems.add(ErrorCode::kInvalidData, "key \"{}\" ({}) must be above \"{}\" ({})",
                 reader.full_name("beta_fast"), rope.beta_fast, reader.full_name("beta_slow"),
                 rope.beta_slow);
  }
  refuse_amplitude_keys(reader);
  if (problems.count() != before) return std::nullopt;
  return rope;
}

struct Thetas {
  std::optional<double> main;
  std::optional<double> compress;
};

struct RopeParameters {
  Thetas theta;
  std::optional<RopeConfig> compress;
};

std::optional<double> optional_theta(ConfigReader& reader, std::string_view key) {
  if (reader.find(key) == nullptr) return std::nullopt;
  const double theta = reader.number(key, 1.0, kMaxTheta);
  return theta == 0.0 ? std::nullopt : std::optional<double>(theta);
}

RopeParameters read_rope_parameters(const nlohmann::json& parameters, Problems& problems) {
  RopeParameters result;
  const nlohmann::json* parts[2] = {nullptr, nullptr};
  const char* const names[2] = {"main", "compress"};
  for (int i = 0; i < 2; ++i) {
    if (parameters.is_object()) {
      const auto found = parameters.find(names[i]);
      if (found != parameters.end() && found->is_object()) parts[i] = &*found;
    }
    if (parts[i] == nullptr) {
      problems.add(
          ErrorCode::kInvalidData,
          "key \"rope_parameters.{}\" is missing or no object; rope_parameters must hold \"main\" (layers of "
          "ratio 0) and \"compress\" (layers of ratio 4 and 128)",
          names[i]);
    }
  }
  if (parts[0] != nullptr) {
    ConfigReader reader(*parts[0], "rope_parameters.main.", problems);
    const auto type = read_rope_type(reader);
    if (type && *type != "default") {
      problems.add(ErrorCode::kUnsupported,
                   "key \"rope_parameters.main.rope_type\" is {}; only \"default\" is supported: layers of "
                   "ratio 0 have "
                   "plain rotary embedding",
                   quote_name(*type));
    }
    result.theta.main = optional_theta(reader, "rope_theta");
  }
  if (parts[1] != nullptr) {
    ConfigReader reader(*parts[1], "rope_parameters.compress.", problems);
    result.theta.compress = optional_theta(reader, "rope_theta");
    result.compress = read_yarn(*parts[1], "rope_parameters.compress.", problems);
  }
  return result;
}

double agreed_theta(std::string_view flat_key, std::optional<double> flat, std::string_view nested_key,
                    std::optional<double> nested, Problems& problems) {
  if (flat && nested && *flat != *nested) {
    problems.add(ErrorCode::kInvalidData,
                 "keys \"{}\" ({}) and \"{}\" ({}) contradict each other; keep the one that is right",
                 flat_key, *flat, nested_key, *nested);
  }
  if (!flat && !nested) {
    problems.add(ErrorCode::kInvalidData,
                 "key \"{}\" is missing or out of range; it decides the numerics and is never guessed, so "
                 "take it from "
                 "the model's published config.json",
                 flat_key);
    return 0.0;
  }
  return flat ? *flat : *nested;
}

auto yarn_key(const RopeConfig& rope) {
  return std::make_tuple(rope.factor, rope.original_max_position_embeddings, rope.beta_fast, rope.beta_slow);
}

}  // namespace

void read_rope_config(const nlohmann::json& config, bool has_compressed_layers, RopeConfig& main,
                      RopeConfig& compress, Problems& problems) {
  ConfigReader reader(config, "", problems);
  const std::size_t before = problems.count();
  Thetas flat;
  flat.main = optional_theta(reader, "rope_theta");
  flat.compress = optional_theta(reader, "compress_rope_theta");

  std::optional<RopeConfig> scaling;
  const nlohmann::json* rope_scaling = reader.find("rope_scaling");
  if (rope_scaling != nullptr) {
    if (!rope_scaling->is_object()) {
      problems.add(ErrorCode::kInvalidData, "key \"rope_scaling\" is {}; an object was wanted",
                   shown(*rope_scaling));
    } else {
      scaling = read_yarn(*rope_scaling, "rope_scaling.", problems);
    }
  }
  RopeParameters nested;
  const nlohmann::json* rope_parameters = reader.find("rope_parameters");
  if (rope_parameters != nullptr) nested = read_rope_parameters(*rope_parameters, problems);

  if (scaling && nested.compress && yarn_key(*scaling) != yarn_key(*nested.compress)) {
    problems.add(
        ErrorCode::kInvalidData,
        "keys \"rope_scaling\" and \"rope_parameters.compress\" contradict each other; keep the one that is "
        "right");
  }
  if (rope_scaling == nullptr && rope_parameters == nullptr && has_compressed_layers) {
    problems.add(
        ErrorCode::kInvalidData,
        "key \"rope_scaling\" is missing (and so is \"rope_parameters\"); layers of ratio 4 and 128 need "
        "YaRN "
        "and would forget long contexts without it, so take it from the model's published config.json");
  }
  main = RopeConfig{};
  compress = scaling ? *scaling : nested.compress.value_or(RopeConfig{});
  if (problems.count() != before) return;  // a theta that failed above would be reported twice below
  main.theta =
      agreed_theta("rope_theta", flat.main, "rope_parameters.main.rope_theta", nested.theta.main, problems);
  if (has_compressed_layers || flat.compress || nested.theta.compress) {
    compress.theta = agreed_theta("compress_rope_theta", flat.compress, "rope_parameters.compress.rope_theta",
                                  nested.theta.compress, problems);
  }
}

}  // namespace pivot
