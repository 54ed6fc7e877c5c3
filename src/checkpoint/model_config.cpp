#include "checkpoint/model_config.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/family.h"
#include "checkpoint/json_text.h"
#include "checkpoint/problems.h"
#include "checkpoint/rope_config.h"

namespace pivot {
namespace {

// Upper bounds far above any published model; they keep every product of two extents inside 64 bits.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 20;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxExperts = 4096;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
constexpr std::int64_t kMaxDraftStages = 16;
constexpr std::int64_t kMaxStreams = 8;

// compress_ratios: one entry per layer, then one per draft stage. Never synthesised (specification 1.1).
void read_compress_ratios(ConfigReader& reader, ModelConfig& config) {
  Problems& problems = reader.problems();
  const nlohmann::json* list = reader.find("compress_ratios");
  if (list == nullptr) {
    problems.add(ErrorCode::kInvalidData,
                 "key \"compress_ratios\" is missing; the layer schedule (0, 4 or 128 per layer) differs "
                 "between models "
                 "and is never guessed, so take it from the model's published config.json");
    return;
  }
  if (!list->is_array()) {
    problems.add(ErrorCode::kInvalidData, "key \"compress_ratios\" is {}; a list was wanted", shown(*list));
    return;
  }
  const auto length = static_cast<std::int64_t>(list->size());
  const std::int64_t layers = config.num_hidden_layers;
  if (layers > 0 && (length < layers || length > layers + kMaxDraftStages)) {
    problems.add(
        ErrorCode::kInvalidData,
        "key \"compress_ratios\" has {} entries; {} layers need {} entries, plus one per draft stage", length,
        layers, layers);
    return;
  }
  if (layers == 0) return;  // num_hidden_layers is a problem already
  for (std::int64_t i = 0; i < length; ++i) {
    const nlohmann::json& entry = (*list)[static_cast<std::size_t>(i)];
    const bool known = entry == 0 || entry == 4 || entry == 128;
    if (!known || !entry.is_number()) {
      problems.add(ErrorCode::kUnsupported,
                   "key \"compress_ratios\" entry {} is {}; only 0, 4 and 128 are supported", i,
                   shown(entry));
      continue;
    }
    const int ratio = entry.get<int>();
    if (i < layers) {
      config.compress_ratios.push_back(ratio);
    } else if (ratio != 0) {
      problems.add(
          ErrorCode::kUnsupported,
          "key \"compress_ratios\" entry {} belongs to a draft stage and is {}; draft stages have ratio 0", i,
          ratio);
    } else {
      config.draft_compress_ratios.push_back(ratio);
    }
  }
}

void read_dspark(ConfigReader& reader, ModelConfig& config) {
  Problems& problems = reader.problems();
  if (reader.find("dspark_block_size") == nullptr) return;
  config.dspark_block_size = reader.integer("dspark_block_size", 1, 64);
  config.dspark_markov_rank = reader.integer("dspark_markov_rank", 1, kMaxExtent);
  config.dspark_noise_token_id =
      reader.integer("dspark_noise_token_id", 0, std::max<std::int64_t>(config.vocab_size - 1, 0));
  const nlohmann::json* targets = reader.find("dspark_target_layer_ids");
  if (targets == nullptr || !targets->is_array() || targets->empty() || targets->size() > 64) {
    problems.add(
        ErrorCode::kInvalidData,
        "key \"dspark_target_layer_ids\" is missing or no list; DSpark needs the backbone layers it taps");
    return;
  }
  for (const nlohmann::json& entry : *targets) {
    const bool valid = entry.is_number_integer() && entry.get<std::int64_t>() >= 0 &&
                       entry.get<std::int64_t>() < config.num_hidden_layers;
    if (!valid) {
      problems.add(ErrorCode::kInvalidData, "key \"dspark_target_layer_ids\" holds {}; layers 0 to {} exist",
                   shown(entry), config.num_hidden_layers - 1);
      return;
    }
    config.dspark_target_layer_ids.push_back(entry.get<int>());
  }
}

// Words that say how weights are stored. The bytes are read by tensor dtype; these are checked because an
// unknown word means a format that nobody has taught this loader.
void check_quantization(const nlohmann::json& config, Problems& problems) {
  ConfigReader top(config, "", problems);
  top.require_one_of("expert_dtype", {"fp4", "fp8", "bf16", "bfloat16", "nvfp4"}, false);
  const nlohmann::json* quantization = top.find("quantization_config");
  if (quantization == nullptr) return;
  if (!quantization->is_object()) {
    problems.add(ErrorCode::kInvalidData, "key \"quantization_config\" is {}; an object was wanted",
                 shown(*quantization));
    return;
  }
  ConfigReader reader(*quantization, "quantization_config.", problems);
  reader.require_one_of("quant_method",
                        {"fp8", "modelopt", "modelopt_fp4", "modelopt_mixed", "compressed-tensors"}, true);
  reader.require_one_of("fmt", {"e4m3"}, false);
  reader.require_one_of("scale_fmt", {"ue8m0"}, false);
  reader.require_one_of("activation_scheme", {"dynamic"}, false);
  reader.require_equal_if_present("weight_block_size", nlohmann::json::array({128, 128}),
                                  "FP8 weights of this family have one scale per 128x128 block");
  reader.require_one_of("expert_dtype", {"fp4", "fp8", "bf16", "bfloat16", "nvfp4"}, false);
}

void check_divides(std::int64_t whole, std::string_view whole_name, std::int64_t part,
                   std::string_view part_name, Problems& problems) {
  if (whole > 0 && part > 0 && whole % part != 0) {
    problems.add(ErrorCode::kInvalidData, "key \"{}\" ({}) must be a multiple of {} ({})", whole_name, whole,
                 part_name, part);
  }
}

void check_relations(const ModelConfig& config, Problems& problems) {
  const ModelConfig& c = config;
  if (c.head_dim > 0 && c.qk_rope_head_dim > 0) {
    if (c.qk_rope_head_dim >= c.head_dim) {
      problems.add(ErrorCode::kInvalidData, "key \"qk_rope_head_dim\" ({}) must be below \"head_dim\" ({})",
                   c.qk_rope_head_dim, c.head_dim);
    } else if (c.nope_head_dim() % 64 != 0) {
      problems.add(ErrorCode::kInvalidData,
                   "\"head_dim\" - \"qk_rope_head_dim\" is {}; it must be a multiple of 64, the FP8 group of "
                   "the KV row",
                   c.nope_head_dim());
    }
  }
  if (c.qk_rope_head_dim % 2 != 0) {
    problems.add(ErrorCode::kInvalidData, "key \"qk_rope_head_dim\" ({}) must be even: dims rotate in pairs",
                 c.qk_rope_head_dim);
  }
  if (c.index_head_dim > 0) {
    if (!std::has_single_bit(static_cast<std::uint64_t>(c.index_head_dim)) || c.index_head_dim < 32) {
      problems.add(
          ErrorCode::kInvalidData,
          "key \"index_head_dim\" ({}) must be a power of two of at least 32 (Hadamard rotation, FP4 groups)",
          c.index_head_dim);
    }
    if (c.index_head_dim < c.qk_rope_head_dim) {
      problems.add(ErrorCode::kInvalidData,
                   "key \"index_head_dim\" ({}) must not be below \"qk_rope_head_dim\" ({})",
                   c.index_head_dim, c.qk_rope_head_dim);
    }
  }
  check_divides(c.num_attention_heads, "num_attention_heads", c.o_groups, "\"o_groups\"", problems);
  check_divides(c.hidden_size, "hidden_size", 32, "the FP4 group", problems);
  check_divides(c.moe_intermediate_size, "moe_intermediate_size", 32, "the FP4 group", problems);
  if (c.num_experts_per_tok > c.n_routed_experts && c.n_routed_experts > 0) {
    problems.add(ErrorCode::kInvalidData,
                 "key \"num_experts_per_tok\" ({}) is above \"n_routed_experts\" ({})", c.num_experts_per_tok,
                 c.n_routed_experts);
  }
  if (c.num_hash_layers > c.num_hidden_layers && c.num_hidden_layers > 0) {
    problems.add(ErrorCode::kInvalidData, "key \"num_hash_layers\" ({}) is above \"num_hidden_layers\" ({})",
                 c.num_hash_layers, c.num_hidden_layers);
  }
}

}  // namespace

std::optional<ModelConfig> parse_model_config(std::string_view json, Problems& problems) {
  const std::size_t before = problems.count();
  auto parsed = parse_json_object(json, "config.json");
  if (!parsed) {
    problems.add(parsed.error());
    return std::nullopt;
  }
  const ModelFamily family = model_family(*parsed);
  if (!family.supported()) {
    problems.add_sentence(ErrorCode::kUnsupported, family.refusal);
    return std::nullopt;
  }
  ConfigReader reader(*parsed, "", problems);
  ModelConfig c;
  c.vocab_size = reader.integer("vocab_size", 1, kMaxVocab);
  c.hidden_size = reader.integer("hidden_size", 1, kMaxExtent);
  c.num_hidden_layers = reader.integer("num_hidden_layers", 1, kMaxLayers);
  c.num_attention_heads = reader.integer("num_attention_heads", 1, 4096);
  c.head_dim = reader.integer("head_dim", 1, 8192);
  c.qk_rope_head_dim = reader.integer("qk_rope_head_dim", 2, 8192);
  c.q_lora_rank = reader.integer("q_lora_rank", 1, kMaxExtent);
  c.o_groups = reader.integer("o_groups", 1, 4096);
  c.o_lora_rank = reader.integer("o_lora_rank", 1, kMaxExtent);
  c.sliding_window = reader.integer("sliding_window", 1, kMaxExtent);
  c.max_position_embeddings = reader.integer("max_position_embeddings", 1, kMaxPositions);
  c.index_n_heads = reader.integer("index_n_heads", 1, 4096);
  c.index_head_dim = reader.integer("index_head_dim", 1, 8192);
  c.index_topk = reader.integer("index_topk", 1, kMaxPositions);
  c.n_routed_experts = reader.integer("n_routed_experts", 1, kMaxExperts);
  c.num_experts_per_tok = reader.integer("num_experts_per_tok", 1, kMaxExperts);
  c.n_shared_experts = reader.integer("n_shared_experts", 1, 1);
  c.moe_intermediate_size = reader.integer("moe_intermediate_size", 1, kMaxExtent);
  c.num_hash_layers = reader.integer("num_hash_layers", 0, kMaxLayers);
  c.norm_topk_prob = reader.boolean("norm_topk_prob");
  c.routed_scaling_factor = reader.number("routed_scaling_factor", 0.0, 1e6);
  c.swiglu_limit = reader.number("swiglu_limit", 0.0, 1e30);
  c.hc_mult = reader.integer("hc_mult", 1, kMaxStreams);
  c.hc_sinkhorn_iters = reader.integer("hc_sinkhorn_iters", 1, 10000);
  c.hc_eps = reader.number("hc_eps", 0.0, 1.0);
  c.rms_norm_eps = reader.number("rms_norm_eps", 0.0, 1.0);
  const std::int64_t last_id = c.vocab_size > 0 ? c.vocab_size - 1 : kMaxVocab;
  c.bos_token_id = reader.integer("bos_token_id", 0, last_id);
  c.eos_token_id = reader.integer("eos_token_id", 0, last_id);

  read_compress_ratios(reader, c);
  const bool compressed =
      std::any_of(c.compress_ratios.begin(), c.compress_ratios.end(), [](int ratio) { return ratio != 0; });
  read_rope_config(*parsed, compressed, c.rope_main, c.rope_compress, problems);
  read_dspark(reader, c);

  reader.require_one_of("scoring_func", {"sqrtsoftplus"}, true);
  reader.require_one_of("topk_method", {"noaux_tc"}, true);
  reader.require_one_of("hidden_act", {"silu"}, false);
  reader.require_equal_if_present("num_key_value_heads", 1, "all query heads share one latent");
  reader.require_equal_if_present("tie_word_embeddings", false, "the LM head has a matrix of its own");
  reader.require_equal_if_present("attention_bias", false, "projections have no bias");
  check_quantization(*parsed, problems);
  c.expert_dtype = reader.find("expert_dtype") != nullptr ? reader.string("expert_dtype") : std::nullopt;
  check_relations(c, problems);
  if (problems.count() != before) return std::nullopt;
  return c;
}

Result<ModelConfig> parse_model_config(std::string_view json, std::string_view where) {
  Problems problems;
  auto config = parse_model_config(json, problems);
  if (!config) return fail(problems.to_error(where));
  return std::move(*config);
}

Result<ModelConfig> load_model_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  auto text = read_file(path, std::size_t{16} << 20);
  if (!text) {
    if (text.error().code == ErrorCode::kNotFound) {
      return fail(
          ErrorCode::kNotFound,
          "there is no config.json in {}; a checkpoint folder was wanted, with config.json beside its "
          ".safetensors files",
          folder.string());
    }
    return fail(std::move(text).error());
  }
  return parse_model_config(*text, path.string());
}

}  // namespace pivot
