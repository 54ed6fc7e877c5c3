#include "ops/random_layer.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "numeric/formats.h"

namespace pivot::test {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// E8M0 byte of the power of two nearest below `value`.
std::uint8_t e8m0_of(double value) { return static_cast<std::uint8_t>(127 + std::ilogb(value)); }

}  // namespace

std::byte* RandomMatrices::bytes(std::int64_t count) {
  storage_.push_back(std::make_unique<std::vector<std::byte>>(static_cast<std::size_t>(count)));
  return storage_.back()->data();
}

Matrix RandomMatrices::bf16(std::int64_t rows, std::int64_t cols) {
  Matrix matrix;
  matrix.format = MatrixFormat::kBF16;
  matrix.rows = rows;
  matrix.cols = cols;
  std::byte* codes = bytes(matrix.code_bytes());
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(cols)));
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::uint16_t code = to_bf16(normal(random_)).bits;
    std::memcpy(codes + 2 * i, &code, 2);
  }
  matrix.codes = codes;
  return matrix;
}

Matrix RandomMatrices::fp8(std::int64_t rows, std::int64_t cols, ScaleFormat scale_format) {
  Matrix matrix;
  matrix.format = MatrixFormat::kFP8;
  matrix.scale_format = scale_format;
  matrix.rows = rows;
  matrix.cols = cols;
  std::byte* codes = bytes(matrix.code_bytes());
  std::normal_distribution<float> normal(0.0f, 64.0f);
  for (std::int64_t i = 0; i < rows * cols; ++i) codes[i] = std::byte{float_to_e4m3(normal(random_))};
  std::byte* scales = bytes(matrix.scale_bytes());
  const double unit = 1.0 / 64.0 / std::sqrt(static_cast<double>(cols));
  const std::int64_t blocks = ceil_div(rows, kFp8BlockRows) * ceil_div(cols, kFp8BlockCols);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const double scale = unit * std::exp2(static_cast<double>(random_() % 3));
    if (scale_format == ScaleFormat::kF32) {
      const float value = static_cast<float>(scale * 1.37);  // not a power of two
      std::memcpy(scales + 4 * i, &value, 4);
    } else {
      scales[i] = std::byte{e8m0_of(scale)};
    }
  }
  matrix.codes = codes;
  matrix.scales = scales;
  return matrix;
}

Matrix RandomMatrices::fp4(std::int64_t rows, std::int64_t cols) {
  Matrix matrix;
  matrix.format = MatrixFormat::kFP4;
  matrix.scale_format = ScaleFormat::kE8M0;
  matrix.rows = rows;
  matrix.cols = cols;
  std::byte* codes = bytes(matrix.code_bytes());
  for (std::int64_t i = 0; i < matrix.code_bytes(); ++i) codes[i] = static_cast<std::byte>(random_() & 0xffu);
  std::byte* scales = bytes(matrix.scale_bytes());
  const double unit = 0.5 / std::sqrt(static_cast<double>(cols));
  for (std::int64_t i = 0; i < matrix.scale_bytes(); ++i)
    scales[i] = std::byte{e8m0_of(unit * std::exp2(static_cast<double>(random_() % 3)))};
  matrix.codes = codes;
  matrix.scales = scales;
  return matrix;
}

Matrix RandomMatrices::nvfp4(std::int64_t rows, std::int64_t cols, float global_scale, float input_scale) {
  Matrix matrix = fp4(rows, cols);
  matrix.format = MatrixFormat::kNVFP4;
  matrix.scale_format = ScaleFormat::kE4M3;
  matrix.global_scale = global_scale;
  matrix.input_scale = input_scale;
  std::byte* scales = bytes(matrix.scale_bytes());
  std::uniform_real_distribution<float> uniform(0.2f, 1.0f);
  for (std::int64_t i = 0; i < matrix.scale_bytes(); ++i)
    scales[i] =
        std::byte{float_to_e4m3(uniform(random_) / std::sqrt(static_cast<float>(cols)) / global_scale)};
  matrix.scales = scales;
  return matrix;
}

FloatSpan RandomMatrices::vector(std::int64_t count, float mean, float deviation) {
  vectors_.push_back(std::make_unique<std::vector<float>>());
  std::normal_distribution<float> normal(mean, deviation);
  for (std::int64_t i = 0; i < count; ++i) vectors_.back()->push_back(normal(random_));
  return *vectors_.back();
}

std::vector<float> RandomMatrices::activations(std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = round_bf16(normal(random_));
  return x;
}

std::unique_ptr<RandomLayer> make_random_layer(const RandomLayerOptions& o) {
  auto layer = std::make_unique<RandomLayer>(RandomLayer{{}, {}, RandomMatrices(o.seed)});
  RandomMatrices& make = layer->storage;
  ModelConfig& c = layer->config;
  c.vocab_size = 64;
  c.hidden_size = o.hidden_size;
  c.num_hidden_layers = 1;
  c.compress_ratios = {o.ratio};
  c.num_attention_heads = o.num_attention_heads;
  c.head_dim = o.head_dim;
  c.qk_rope_head_dim = o.qk_rope_head_dim;
  c.q_lora_rank = o.q_lora_rank;
  c.o_groups = o.o_groups;
  c.o_lora_rank = o.o_lora_rank;
  c.sliding_window = o.sliding_window;
  c.rope_compress.theta = 160000.0;
  c.rope_compress.factor = 16.0;
  c.rope_compress.original_max_position_embeddings = 256;
  c.max_position_embeddings = 4096;
  c.index_n_heads = o.index_n_heads;
  c.index_head_dim = o.index_head_dim;
  c.index_topk = o.index_topk;
  c.n_routed_experts = 6;
  c.num_experts_per_tok = 2;
  c.n_shared_experts = 1;
  c.moe_intermediate_size = 64;
  c.num_hash_layers = o.hash_routed ? 1 : 0;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 4.0;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.rms_norm_eps = 1e-6;

  const std::int64_t d = c.hidden_size, streams = c.hc_mult, mixes = (2 + streams) * streams;
  const auto hyper = [&] {
    return HyperConnectionWeights{make.vector(mixes * streams * d, 0.0f, 0.05f),
                                  make.vector(mixes, 0.0f, 0.5f), make.vector(3, 1.0f, 0.1f), false};
  };
  const auto compressor = [&](std::int64_t width) {
    const std::int64_t columns = (o.ratio == 4 ? 2 : 1) * width;
    CompressorWeights w;
    w.ratio = o.ratio;
    w.width = width;
    w.wkv = make.bf16(columns, d);
    w.wgate = make.bf16(columns, d);
    w.ape = make.vector(o.ratio * columns, 0.0f, 0.5f);
    w.norm = make.vector(width, 1.0f, 0.1f);
    return w;
  };
  LayerWeights& w = layer->weights;
  w.attn_norm = make.vector(d, 1.0f, 0.1f);
  w.ffn_norm = make.vector(d, 1.0f, 0.1f);
  w.attn_hc = hyper();
  w.ffn_hc = hyper();
  w.attn.wq_a = make.fp8(c.q_lora_rank, d);
  w.attn.q_norm = make.vector(c.q_lora_rank, 1.0f, 0.1f);
  w.attn.wq_b = make.fp8(c.num_attention_heads * c.head_dim, c.q_lora_rank);
  w.attn.wkv = make.fp8(c.head_dim, d);
  w.attn.kv_norm = make.vector(c.head_dim, 1.0f, 0.1f);
  w.attn.attn_sink = make.vector(c.num_attention_heads, 0.0f, 1.0f);
  w.attn.wo_a = make.fp8(c.o_groups * c.o_lora_rank, c.num_attention_heads * c.head_dim / c.o_groups);
  w.attn.wo_b = make.fp8(d, c.o_groups * c.o_lora_rank);
  if (o.ratio != 0) w.attn.compressor = compressor(c.head_dim);
  if (o.ratio == 4)
    w.attn.indexer = IndexerWeights{make.fp8(c.index_n_heads * c.index_head_dim, c.q_lora_rank),
                                    make.bf16(c.index_n_heads, d), compressor(c.index_head_dim)};
  const auto expert = [&](auto matrix) {
    ExpertWeights e;
    e.w1 = matrix(c.moe_intermediate_size, d);
    e.w3 = matrix(c.moe_intermediate_size, d);
    e.w2 = matrix(d, c.moe_intermediate_size);
    return e;
  };
  w.ffn.gate = make.bf16(c.n_routed_experts, d);
  w.ffn.bias = make.vector(c.n_routed_experts, 0.0f, 0.2f);
  for (std::int64_t e = 0; e < c.n_routed_experts; ++e)
    w.ffn.experts.push_back(
        expert([&](std::int64_t rows, std::int64_t cols) { return make.fp4(rows, cols); }));
  w.ffn.shared = expert([&](std::int64_t rows, std::int64_t cols) { return make.fp8(rows, cols); });
  return layer;
}

}  // namespace pivot::test
