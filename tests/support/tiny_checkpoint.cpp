#include "support/tiny_checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/schema.h"
#include "numeric/formats.h"

namespace pivot::test {
namespace {

constexpr int kDsparkStages = 3;
constexpr int kDsparkBlock = 5;
constexpr int kDsparkRank = 16;
constexpr float kExpertInputScale = 0.002f;  // NVFP4 activations: about amax 5 / (6*448)

// Deterministic on every platform, unlike the standard distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

std::uint64_t seed_for(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull ^ (seed * 0x9e3779b97f4a7c15ull);
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

using Bytes = std::vector<std::byte>;

struct OutputTensor {
  std::string name;
  DType dtype;
  Shape shape;
  Bytes bytes;
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

Bytes bf16_bytes(const std::vector<float>& values) {
  std::vector<std::uint16_t> codes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) codes[i] = to_bf16(values[i]).bits;
  return bytes_of(codes);
}

// A matrix on one of the two native grids, and its exact values.
struct Quantized {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;  // E8M0
  std::vector<float> values;
};

Quantized quantize_fp8(const std::vector<float>& master, std::int64_t rows, std::int64_t cols) {
  const std::int64_t scale_rows = (rows + 127) / 128;
  const std::int64_t scale_cols = (cols + 127) / 128;
  Quantized q{rows, cols, std::vector<std::uint8_t>(master.size()),
              std::vector<std::uint8_t>(static_cast<std::size_t>(scale_rows * scale_cols)),
              std::vector<float>(master.size())};
  for (std::int64_t block_row = 0; block_row < scale_rows; ++block_row) {
    for (std::int64_t block_col = 0; block_col < scale_cols; ++block_col) {
      float amax = 0.0f;
      auto for_block = [&](auto&& visit) {
        for (std::int64_t r = block_row * 128; r < std::min(rows, block_row * 128 + 128); ++r) {
          for (std::int64_t c = block_col * 128; c < std::min(cols, block_col * 128 + 128); ++c) {
            visit(static_cast<std::size_t>(r * cols + c));
          }
        }
      };
      for_block([&](std::size_t i) { amax = std::max(amax, std::abs(master[i])); });
      const std::uint8_t scale = fp8_group_scale(amax);
      q.scales[static_cast<std::size_t>(block_row * scale_cols + block_col)] = scale;
      for_block([&](std::size_t i) {
        q.codes[i] = float_to_e4m3(master[i] / e8m0_to_float(scale));
        q.values[i] = e4m3_to_float(q.codes[i]) * e8m0_to_float(scale);
      });
    }
  }
  return q;
}

Quantized quantize_fp4(const std::vector<float>& master, std::int64_t rows, std::int64_t cols) {
  Quantized q{rows, cols, std::vector<std::uint8_t>(master.size() / 2),
              std::vector<std::uint8_t>(master.size() / 32), std::vector<float>(master.size())};
  for (std::size_t group = 0; group < q.scales.size(); ++group) {
    float amax = 0.0f;
    for (std::size_t i = group * 32; i < group * 32 + 32; ++i) amax = std::max(amax, std::abs(master[i]));
    const float scale = e8m0_to_float(q.scales[group] = fp4_group_scale(amax));
    for (std::size_t i = group * 32; i < group * 32 + 32; ++i) {
      const std::uint8_t code = float_to_e2m1(master[i] / scale);
      q.codes[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? code : q.codes[i / 2] | (code << 4));
      q.values[i] = e2m1_to_float(code) * scale;
    }
  }
  return q;
}

Bytes f32_scale_bytes(const std::vector<std::uint8_t>& e8m0) {
  std::vector<float> scales(e8m0.size());
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = e8m0_to_float(e8m0[i]);
  return bytes_of(scales);
}

std::string stem_of(std::string_view name) {
  constexpr std::string_view kSuffix = ".weight";
  PIVOT_CHECK(name.size() > kSuffix.size() && name.substr(name.size() - kSuffix.size()) == kSuffix, "{}",
              name);
  return std::string(name.substr(0, name.size() - kSuffix.size()));
}

class Writer {
 public:
  explicit Writer(const TinyOptions& options) : options_(options) {}

  std::vector<OutputTensor> write(const ModelConfig& config) {
    const HeadKind head = options_.head == TinyHead::kMtp      ? HeadKind::kMtp
                          : options_.head == TinyHead::kDspark ? HeadKind::kDspark
                                                               : HeadKind::kNone;
    PIVOT_CHECK(options_.names == TinyNames::kNative || head == HeadKind::kNone,
                "transformers naming has no draft heads");
    for (const SchemaTensor& tensor : expand_schema(config, head, kDsparkStages)) write_tensor(tensor);
    if (options_.mtp_copies && head == HeadKind::kMtp) {
      add_copy("embed.weight", "mtp.0.emb.tok_emb.weight");
      add_copy("head.weight", "mtp.0.head.weight");
    }
    return std::move(tensors_);
  }

 private:
  std::vector<float> master(const SchemaTensor& tensor) const;
  void write_tensor(const SchemaTensor& tensor);
  void write_id_table(const SchemaTensor& tensor, const std::string& name);
  void write_dense(const SchemaTensor& tensor, const std::string& name);
  void write_expert(const SchemaTensor& tensor, const std::string& name);
  void write_nvfp4(const SchemaTensor& tensor, const std::string& stem, const Quantized& q);
  void write_fused(const SchemaTensor& tensor, const Quantized& fp4);
  Quantized expert_fp4(const SchemaTensor& tensor) const {
    return quantize_fp4(master(tensor), tensor.shape[0], tensor.shape[1]);
  }
  std::string scale_name(const std::string& stem) const {
    return stem + (options_.names == TinyNames::kNative ? ".scale" : ".weight_scale_inv");
  }
  void add(std::string name, DType dtype, Shape shape, Bytes bytes) {
    tensors_.push_back({std::move(name), dtype, std::move(shape), std::move(bytes)});
  }
  void add_fp8(const std::string& name, const std::string& scale, const Quantized& q, bool f32_scales) {
    add(name, DType::kF8E4M3, {q.rows, q.cols}, bytes_of(q.codes));
    const Shape shape = {(q.rows + 127) / 128, (q.cols + 127) / 128};
    if (f32_scales) {
      add(scale, DType::kF32, shape, f32_scale_bytes(q.scales));
    } else {
      add(scale, DType::kF8E8M0, shape, bytes_of(q.scales));
    }
  }
  void add_copy(std::string_view from, std::string to) {
    const auto source =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == from; });
    OutputTensor copy = *source;
    copy.name = std::move(to);
    tensors_.push_back(std::move(copy));
  }

  const TinyOptions& options_;
  std::vector<OutputTensor> tensors_;
};

// Values before quantisation. They depend on the seed and the native name only, so every format holds the
// same ones.
std::vector<float> Writer::master(const SchemaTensor& tensor) const {
  std::int64_t count = 1;
  for (std::int64_t extent : tensor.shape) count *= extent;
  const double fan_in = std::sqrt(static_cast<double>(tensor.shape.back()));
  double mean = 0.0;
  double deviation = 1.0 / fan_in;
  switch (tensor.row->slot) {
    case Slot::kEmbed:
      deviation = 1.0;
      break;
    case Slot::kHead:
      deviation = 3.0 / fan_in;
      break;  // logits of standard deviation 3
    case Slot::kHcAttnBase:
    case Slot::kHcFfnBase:
    case Slot::kHcHeadBase:
    case Slot::kDraftHcHeadBase:
    case Slot::kCompressorApe:
    case Slot::kIndexerCompressorApe:
      deviation = 0.5;
      break;
    case Slot::kHcAttnScale:
    case Slot::kHcFfnScale:
    case Slot::kHcHeadScale:
    case Slot::kDraftHcHeadScale:
      mean = 1.0;
      deviation = 0.1;
      break;
    case Slot::kAttnSink:
      deviation = 1.0;
      break;
    case Slot::kGateBias:
      deviation = 0.1;
      break;
    default:
      break;
  }
  if (tensor.row->kind == TensorKind::kNormVector) {
    mean = 1.0;
    deviation = 0.1;
  }
  Random random(seed_for(options_.seed, tensor_name(tensor, NameStyle::kNative)));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(mean + deviation * random.normal());
  return values;
}

void Writer::write_id_table(const SchemaTensor& tensor, const std::string& name) {
  Random random(seed_for(options_.seed, tensor_name(tensor, NameStyle::kNative)));
  const auto per_row = static_cast<std::size_t>(tensor.shape[1]);
  std::vector<std::int64_t> ids;
  for (std::int64_t token = 0; token < tensor.shape[0]; ++token) {
    const std::size_t row = ids.size();
    while (ids.size() < row + per_row) {
      const auto id =
          static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(options_.n_routed_experts));
      if (std::find(ids.begin() + static_cast<std::ptrdiff_t>(row), ids.end(), id) == ids.end())
        ids.push_back(id);
    }
  }
  add(name, DType::kI64, tensor.shape, bytes_of(ids));
}

void Writer::write_dense(const SchemaTensor& tensor, const std::string& name) {
  const Quantized q = quantize_fp8(master(tensor), tensor.shape[0], tensor.shape[1]);
  if (options_.format == TinyFormat::kBf16)
    return add(name, DType::kBF16, tensor.shape, bf16_bytes(q.values));
  add_fp8(name, scale_name(stem_of(name)), q, options_.format == TinyFormat::kFp8F32);
}

// ModelOpt's lossless cast (specification 4.3): codes copied, scales 2^k re-encoded as 2^(k-kmax+8) *
// 2^(kmax-8).
void Writer::write_nvfp4(const SchemaTensor& tensor, const std::string& stem, const Quantized& q) {
  std::uint8_t kmax = *std::max_element(q.scales.begin(), q.scales.end());
  if (tensor.row->slot != Slot::kExpertW2) {  // w1 and w3 share the global scale
    for (const SchemaRow& row : schema_rows()) {
      if (row.slot != Slot::kExpertW1 && row.slot != Slot::kExpertW3) continue;
      SchemaTensor sibling = tensor;
      sibling.row = &row;
      const Quantized other = expert_fp4(sibling);
      kmax = std::max(kmax, *std::max_element(other.scales.begin(), other.scales.end()));
    }
  }
  std::vector<std::uint8_t> scales;
  for (std::uint8_t k : q.scales) {
    const float scale = std::ldexp(1.0f, k - kmax + 8);
    PIVOT_CHECK(e4m3_to_float(float_to_e4m3(scale)) == scale, "exponents too far apart for a lossless cast");
    scales.insert(scales.end(), 2, float_to_e4m3(scale));
  }
  const bool compressed = options_.format == TinyFormat::kNvfp4Compressed;
  const float global = std::ldexp(1.0f, kmax - 127 - 8);
  add(stem + (compressed ? ".weight_packed" : ".weight"), DType::kU8, {q.rows, q.cols / 2},
      bytes_of(q.codes));
  add(stem + ".weight_scale", DType::kF8E4M3, {q.rows, q.cols / 16}, bytes_of(scales));
  if (compressed) {
    add(stem + ".weight_global_scale", DType::kF32, {1}, bytes_of(std::vector<float>{1.0f / global}));
    add(stem + ".input_global_scale", DType::kF32, {1},
        bytes_of(std::vector<float>{1.0f / kExpertInputScale}));
  } else {
    add(stem + ".weight_scale_2", DType::kF32, {}, bytes_of(std::vector<float>{global}));
    add(stem + ".input_scale", DType::kF32, {}, bytes_of(std::vector<float>{kExpertInputScale}));
  }
}

Quantized fp8_of_fp4(const Quantized& fp4) {
  const Quantized q = quantize_fp8(fp4.values, fp4.rows, fp4.cols);
  PIVOT_CHECK(q.values == fp4.values, "FP4 exponents too far apart for a lossless FP8 twin");
  return q;
}

// Appends one expert's matrix to the fused tensor of its layer: [E, 2I, d] (gate rows, up rows) and [E, d,
// I]. Rows come in schema order w1, w3, w2 per expert, which is exactly the fused order of either tensor.
void Writer::write_fused(const SchemaTensor& tensor, const Quantized& fp4) {
  const bool down = tensor.row->slot == Slot::kExpertW2;
  const std::string name = "model.layers." + std::to_string(tensor.block) + ".mlp.experts." +
                           (down ? "down_proj" : "gate_up_proj");
  auto append = [&](const std::string& target, DType dtype, std::int64_t rows, std::int64_t cols,
                    Bytes bytes) {
    auto found =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == target; });
    if (found == tensors_.end()) {
      add(target, dtype, {options_.n_routed_experts, down ? rows : 2 * rows, cols}, std::move(bytes));
    } else {
      found->bytes.insert(found->bytes.end(), bytes.begin(), bytes.end());
    }
  };
  if (options_.format == TinyFormat::kBf16)
    return append(name, DType::kBF16, fp4.rows, fp4.cols, bf16_bytes(fp4.values));
  const Quantized q = fp8_of_fp4(fp4);
  PIVOT_CHECK(q.rows % 128 == 0, "fused FP8 experts need whole scale blocks");
  append(name, DType::kF8E4M3, q.rows, q.cols, bytes_of(q.codes));
  const bool f32 = options_.format == TinyFormat::kFp8F32;
  append(name + "_scale_inv", f32 ? DType::kF32 : DType::kF8E8M0, q.rows / 128, (q.cols + 127) / 128,
         f32 ? f32_scale_bytes(q.scales) : bytes_of(q.scales));
}

void Writer::write_expert(const SchemaTensor& tensor, const std::string& name) {
  const Quantized q = expert_fp4(tensor);
  const std::string stem = stem_of(name);
  if (options_.names == TinyNames::kTransformers) return write_fused(tensor, q);
  switch (options_.format) {
    case TinyFormat::kBf16:
      return add(name, DType::kBF16, tensor.shape, bf16_bytes(q.values));
    case TinyFormat::kFp8E8m0:
      return add_fp8(name, scale_name(stem), fp8_of_fp4(q), false);
    case TinyFormat::kFp8F32:
      return add_fp8(name, scale_name(stem), fp8_of_fp4(q), true);
    case TinyFormat::kNvfp4:
    case TinyFormat::kNvfp4Compressed:
      if (!tensor.draft) return write_nvfp4(tensor, stem, q);
      break;
    case TinyFormat::kNative:
      break;
  }
  add(name, DType::kI8, {q.rows, q.cols / 2}, bytes_of(q.codes));
  add(scale_name(stem), DType::kF8E8M0, {q.rows, q.cols / 32}, bytes_of(q.scales));
}

void Writer::write_tensor(const SchemaTensor& tensor) {
  const std::string name = tensor_name(
      tensor, options_.names == TinyNames::kNative ? NameStyle::kNative : NameStyle::kTransformers);
  switch (tensor.row->kind) {
    case TensorKind::kNormVector:
    case TensorKind::kPlain:
      return add(name, DType::kBF16, tensor.shape, bf16_bytes(master(tensor)));
    case TensorKind::kF32Vector:
    case TensorKind::kF32Strict:
      return add(name, DType::kF32, tensor.shape, bytes_of(master(tensor)));
    case TensorKind::kIdTable:
      return write_id_table(tensor, name);
    case TensorKind::kDense:
      return write_dense(tensor, name);
    case TensorKind::kExpert:
      return write_expert(tensor, name);
  }
}

template <class T>
T must(Result<T> result) {
  PIVOT_CHECK(result.has_value(), "{}", result.error().to_string());
  return std::move(*result);
}
void must(Result<> result) { PIVOT_CHECK(result.has_value(), "{}", result.error().to_string()); }

void write_shard(const std::filesystem::path& path, std::span<const OutputTensor> tensors) {
  std::vector<TensorDeclaration> declarations;
  for (const OutputTensor& tensor : tensors)
    declarations.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer = must(SafetensorsWriter::create(path, std::move(declarations)));
  for (const OutputTensor& tensor : tensors) must(writer.append(tensor.name, tensor.bytes));
  must(writer.finish());
}

nlohmann::json quantization_json(TinyFormat format) {
  nlohmann::json fp8 = {{"quant_method", "fp8"},
                        {"fmt", "e4m3"},
                        {"scale_fmt", "ue8m0"},
                        {"activation_scheme", "dynamic"},
                        {"weight_block_size", {128, 128}}};
  if (format == TinyFormat::kNvfp4) {
    fp8["moe_quant_algo"] = "NVFP4";
    fp8["quant_algo"] = "MIXED_PRECISION";
    fp8["group_size"] = 16;
    fp8["producer"] = {{"name", "modelopt"}, {"version", "test"}};
  }
  if (format == TinyFormat::kNvfp4Compressed) {
    return {{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}};
  }
  return fp8;
}

}  // namespace

std::string tiny_config_json(const TinyOptions& o) {
  nlohmann::json config = {
      {"architectures", {"DeepseekV4ForCausalLM"}},
      {"model_type", "deepseek_v4"},
      {"vocab_size", o.vocab_size},
      {"hidden_size", o.hidden_size},
      {"num_hidden_layers", o.compress_ratios.size()},
      {"num_attention_heads", o.num_attention_heads},
      {"num_key_value_heads", 1},
      {"head_dim", o.head_dim},
      {"qk_rope_head_dim", o.qk_rope_head_dim},
      {"q_lora_rank", o.q_lora_rank},
      {"o_groups", o.o_groups},
      {"o_lora_rank", o.o_lora_rank},
      {"sliding_window", o.sliding_window},
      {"max_position_embeddings", o.max_position_embeddings},
      {"index_n_heads", o.index_n_heads},
      {"index_head_dim", o.index_head_dim},
      {"index_topk", o.index_topk},
      {"n_routed_experts", o.n_routed_experts},
      {"num_experts_per_tok", o.num_experts_per_tok},
      {"n_shared_experts", 1},
      {"moe_intermediate_size", o.moe_intermediate_size},
      {"num_hash_layers", o.num_hash_layers},
      {"norm_topk_prob", true},
      {"scoring_func", "sqrtsoftplus"},
      {"topk_method", "noaux_tc"},
      {"routed_scaling_factor", 1.5},
      {"swiglu_limit", o.swiglu_limit},
      {"hc_mult", 4},
      {"hc_sinkhorn_iters", 20},
      {"hc_eps", 1e-6},
      {"rms_norm_eps", 1e-6},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", false},
      {"bos_token_id", 0},
      {"eos_token_id", 1},
      {"num_nextn_predict_layers", o.head == TinyHead::kNone ? 0 : 1},
  };
  std::vector<int> ratios = o.compress_ratios;
  ratios.insert(ratios.end(),
                o.head == TinyHead::kDspark ? kDsparkStages
                : o.head == TinyHead::kMtp  ? 1
                                            : 0,
                0);
  config["compress_ratios"] = ratios;
  nlohmann::json yarn = {{"factor", 16},
                         {"original_max_position_embeddings", o.original_max_position_embeddings},
                         {"beta_fast", 32},
                         {"beta_slow", 1}};
  if (o.names == TinyNames::kTransformers) {
    yarn["rope_type"] = "yarn";
    yarn["rope_theta"] = 160000;
    config["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", 10000}}},
                                 {"compress", yarn}};
  } else {
    yarn["type"] = "yarn";
    config["rope_theta"] = 10000;
    config["compress_rope_theta"] = 160000;
    config["rope_scaling"] = yarn;
  }
  if (o.format != TinyFormat::kBf16) {
    config["quantization_config"] = quantization_json(o.format);
    config["expert_dtype"] =
        o.format == TinyFormat::kFp8E8m0 || o.format == TinyFormat::kFp8F32 ? "fp8" : "fp4";
  }
  if (o.head == TinyHead::kDspark) {
    config["dspark_block_size"] = kDsparkBlock;
    config["dspark_markov_rank"] = kDsparkRank;
    config["dspark_noise_token_id"] = o.vocab_size - 1;
    std::vector<int> targets;
    const int layers = static_cast<int>(o.compress_ratios.size());
    for (int layer = std::max(0, layers - 3); layer < layers; ++layer) targets.push_back(layer);
    config["dspark_target_layer_ids"] = targets;
  }
  return config.dump(2);
}

void write_tiny_checkpoint(const std::filesystem::path& folder, const TinyOptions& options) {
  std::filesystem::create_directories(folder);
  const std::string config_json = tiny_config_json(options);
  const ModelConfig config = must(parse_model_config(config_json, "tiny config"));
  must(write_file(folder / "config.json", config_json));
  const std::vector<OutputTensor> tensors = Writer(options).write(config);
  if (options.num_shards <= 1) return write_shard(folder / "model.safetensors", tensors);
  nlohmann::json weight_map = nlohmann::json::object();
  std::uint64_t total = 0;
  const auto shards = static_cast<std::size_t>(options.num_shards);
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    const std::size_t begin = tensors.size() * shard / shards;
    const std::size_t end = tensors.size() * (shard + 1) / shards;
    write_shard(folder / file, std::span(tensors).subspan(begin, end - begin));
    for (std::size_t i = begin; i < end; ++i) {
      weight_map[tensors[i].name] = file;
      total += tensors[i].bytes.size();
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  must(write_file(folder / "model.safetensors.index.json", index.dump()));
}

}  // namespace pivot::test
