#include "ops/parity_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "numeric/formats.h"
#include "numeric/quantize.h"

namespace pivot::test {
namespace {

using Storage = std::vector<std::shared_ptr<std::vector<std::byte>>>;

template <class T>
const T* keep(Storage& storage, std::span<const T> values) {
  const auto source = std::as_bytes(values);
  auto bytes = std::make_shared<std::vector<std::byte>>(source.begin(), source.end());
  storage.push_back(bytes);
  return reinterpret_cast<const T*>(bytes->data());
}

FloatSpan keep_floats(Storage& storage, const std::vector<float>& values) {
  return {keep<float>(storage, values), values.size()};
}

std::vector<float> around_one(Random& random, std::int64_t count) {
  std::vector<float> values = normals(random, count, 0.1f, false);
  for (float& value : values) value = round_bf16(1.0f + value);
  return values;
}

struct Builder {
  Random random;
  Storage storage;
  const ModelConfig& config;
  Formats formats;

  Matrix dense(std::int64_t rows, std::int64_t cols) {
    return random_matrix(random, formats.dense, formats.dense_scale, rows, cols, storage);
  }
  Matrix bf16(std::int64_t rows, std::int64_t cols) {
    return random_matrix(random, MatrixFormat::kBF16, ScaleFormat::kNone, rows, cols, storage);
  }
  ExpertWeights expert(MatrixFormat format, ScaleFormat scale) {
    const std::int64_t d = config.hidden_size, inner = config.moe_intermediate_size;
    return {random_matrix(random, format, scale, inner, d, storage),
            random_matrix(random, format, scale, inner, d, storage),
            random_matrix(random, format, scale, d, inner, storage)};
  }
  FloatSpan floats(std::int64_t count, float deviation) {
    return keep_floats(storage, normals(random, count, deviation, false));
  }
  FloatSpan norm(std::int64_t count) { return keep_floats(storage, around_one(random, count)); }

  HyperConnectionWeights hyper_connection() {
    const std::int64_t s = config.hc_mult, rows = (2 + s) * s;
    return {floats(rows * s * config.hidden_size, 0.03f), floats(rows, 0.5f),
            keep_floats(storage, {0.7f, 0.9f, 1.1f}), false};
  }
  CompressorWeights compressor(int ratio, std::int64_t width) {
    const std::int64_t series = ratio == 4 ? 2 : 1;
    return {ratio,
            width,
            bf16(series * width, config.hidden_size),
            bf16(series * width, config.hidden_size),
            floats(ratio * series * width, 0.5f),
            norm(width)};
  }
  AttentionWeights attention(int ratio) {
    const ModelConfig& c = config;
    const std::int64_t q = c.num_attention_heads * c.head_dim;
    AttentionWeights w;
    w.wq_a = dense(c.q_lora_rank, c.hidden_size);
    w.q_norm = norm(c.q_lora_rank);
    w.wq_b = dense(q, c.q_lora_rank);
    w.wkv = dense(c.head_dim, c.hidden_size);
    w.kv_norm = norm(c.head_dim);
    w.attn_sink = floats(c.num_attention_heads, 1.0f);
    w.wo_a = dense(c.o_groups * c.o_lora_rank, q / c.o_groups);
    w.wo_b = dense(c.hidden_size, c.o_groups * c.o_lora_rank);
    if (ratio != 0) w.compressor = compressor(ratio, c.head_dim);
    if (ratio == 4)
      w.indexer = IndexerWeights{dense(c.index_n_heads * c.index_head_dim, c.q_lora_rank),
                                 bf16(c.index_n_heads, c.hidden_size), compressor(4, c.index_head_dim)};
    return w;
  }
  MoeWeights moe(bool hash_routed) {
    MoeWeights w;
    w.gate = bf16(config.n_routed_experts, config.hidden_size);
    if (hash_routed) {
      std::vector<std::int32_t> table;
      std::vector<std::int32_t> ids(static_cast<std::size_t>(config.n_routed_experts));
      std::iota(ids.begin(), ids.end(), 0);
      for (std::int64_t v = 0; v < config.vocab_size; ++v) {
        std::shuffle(ids.begin(), ids.end(), random);
        table.insert(table.end(), ids.begin(), ids.begin() + config.num_experts_per_tok);
      }
      w.tid2eid = {keep<std::int32_t>(storage, table), table.size()};
    } else {
      w.bias = floats(config.n_routed_experts, 0.2f);
    }
    const ScaleFormat scale = formats.experts == MatrixFormat::kFP4     ? ScaleFormat::kE8M0
                              : formats.experts == MatrixFormat::kNVFP4 ? ScaleFormat::kE4M3
                                                                        : formats.dense_scale;
    for (std::int64_t e = 0; e < config.n_routed_experts; ++e)
      w.experts.push_back(expert(formats.experts, scale));
    w.shared = expert(formats.dense, formats.dense_scale);
    return w;
  }
};

}  // namespace

ModelConfig model_config(const ModelOptions& options) {
  ModelConfig c;
  c.vocab_size = 160;
  c.hidden_size = options.hidden_size;
  c.num_hidden_layers = 1;
  c.compress_ratios = {options.ratio};
  c.num_attention_heads = 8;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 128;
  c.o_groups = 2;
  c.o_lora_rank = 128;
  c.sliding_window = 128;
  c.rope_compress = {160000.0, 16.0, 4096, 32.0, 1.0};
  c.max_position_embeddings = 65536;
  c.index_n_heads = 8;
  c.index_head_dim = 128;
  c.index_topk = options.index_topk;
  c.n_routed_experts = 16;
  c.num_experts_per_tok = 4;
  c.n_shared_experts = 1;
  c.moe_intermediate_size = 128;
  c.num_hash_layers = options.hash_routed ? 1 : 0;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 10.0;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.rms_norm_eps = 1e-6;
  return c;
}

std::vector<float> normals(Random& random, std::int64_t count, float deviation, bool bf16) {
  // The sum of six uniform values in [-1, 1) has variance 2; std::normal_distribution takes ten times as
  // long.
  const float factor = deviation / std::sqrt(2.0f) * 0x1p-15f;
  const auto half = [](std::uint32_t bits) {
    return static_cast<float>(static_cast<std::int32_t>(bits & 0xffffu) - 32768);
  };
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    float sum = 0.0f;
    for (int i = 0; i < 3; ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      sum += half(bits) + half(bits >> 16);
    }
    value = bf16 ? round_bf16(sum * factor) : sum * factor;
  }
  return values;
}

std::vector<Formats> all_formats() {
  return {{MatrixFormat::kFP8, ScaleFormat::kE8M0, MatrixFormat::kFP4, "native"},
          {MatrixFormat::kFP8, ScaleFormat::kE8M0, MatrixFormat::kNVFP4, "nvfp4"},
          {MatrixFormat::kFP8, ScaleFormat::kF32, MatrixFormat::kFP8, "fp8_f32"},
          {MatrixFormat::kBF16, ScaleFormat::kNone, MatrixFormat::kBF16, "bf16"}};
}

Matrix random_matrix(Random& random, MatrixFormat format, ScaleFormat scale_format, std::int64_t rows,
                     std::int64_t cols, Storage& storage) {
  Matrix m;
  m.format = format;
  m.scale_format = scale_format;
  m.rows = rows;
  m.cols = cols;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
  const std::int64_t count = rows * cols;
  std::uniform_int_distribution<int> spread(-2, 1);
  // Scales near the power of two that makes codes of deviation `code_deviation` come out right.
  const auto scale_exponent = [&](float code_deviation) {
    return static_cast<int>(std::lround(std::log2(deviation / code_deviation))) + spread(random);
  };
  switch (format) {
    case MatrixFormat::kF32:
      m.codes =
          reinterpret_cast<const std::byte*>(keep<float>(storage, normals(random, count, deviation, false)));
      return m;
    case MatrixFormat::kBF16: {
      std::vector<std::uint16_t> codes;
      for (const float value : normals(random, count, deviation)) codes.push_back(to_bf16(value).bits);
      m.codes = reinterpret_cast<const std::byte*>(keep<std::uint16_t>(storage, codes));
      return m;
    }
    case MatrixFormat::kFP8: {
      std::vector<std::uint8_t> codes;
      for (const float value : normals(random, count, 100.0f, false)) codes.push_back(float_to_e4m3(value));
      m.codes = reinterpret_cast<const std::byte*>(keep<std::uint8_t>(storage, codes));
      const std::int64_t blocks = (rows + 127) / 128 * ((cols + 127) / 128);
      std::vector<std::uint8_t> bytes;
      std::vector<float> scales;
      for (std::int64_t i = 0; i < blocks; ++i) {
        const int exponent = scale_exponent(100.0f);
        bytes.push_back(static_cast<std::uint8_t>(exponent + 127));
        scales.push_back(std::ldexp(1.0f + 0.07f * static_cast<float>(i % 11), exponent));
      }
      m.scales = scale_format == ScaleFormat::kF32
                     ? reinterpret_cast<const std::byte*>(keep<float>(storage, scales))
                     : reinterpret_cast<const std::byte*>(keep<std::uint8_t>(storage, bytes));
      return m;
    }
    case MatrixFormat::kFP4:
    case MatrixFormat::kNVFP4: {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(count / 2));
      for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random());
      m.codes = reinterpret_cast<const std::byte*>(keep<std::uint8_t>(storage, codes));
      std::vector<std::uint8_t> scales;
      if (format == MatrixFormat::kFP4) {
        for (std::int64_t i = 0; i < count / kFp4GroupCols; ++i)
          scales.push_back(static_cast<std::uint8_t>(scale_exponent(2.7f) + 127));
      } else {
        for (const float value : normals(random, count / kNvfp4GroupCols, 60.0f, false))
          scales.push_back(float_to_e4m3(std::fabs(value)));
        m.global_scale = deviation / 60.0f / 2.7f;
        m.input_scale = 0.002f;
      }
      m.scales = reinterpret_cast<const std::byte*>(keep<std::uint8_t>(storage, scales));
      return m;
    }
  }
  return m;
}

std::shared_ptr<const ModelWeights> random_model(const ModelOptions& options) {
  auto weights = std::make_shared<ModelWeights>();
  weights->config = model_config(options);
  Builder builder{Random(options.seed), {}, weights->config, options.formats};
  const ModelConfig& c = weights->config;
  weights->embed = builder.bf16(c.vocab_size, c.hidden_size);
  weights->head = builder.bf16(c.vocab_size, c.hidden_size);
  weights->norm = builder.norm(c.hidden_size);
  weights->hc_head = {builder.floats(c.hc_mult * c.hc_mult * c.hidden_size, 0.03f),
                      builder.floats(c.hc_mult, 0.5f), keep_floats(builder.storage, {0.8f})};
  LayerWeights layer;
  layer.attn_norm = builder.norm(c.hidden_size);
  layer.ffn_norm = builder.norm(c.hidden_size);
  layer.attn_hc = builder.hyper_connection();
  layer.ffn_hc = builder.hyper_connection();
  layer.attn = builder.attention(options.ratio);
  layer.ffn = builder.moe(options.hash_routed);
  weights->layers.push_back(std::move(layer));
  weights->storage = std::make_shared<Storage>(std::move(builder.storage));
  return weights;
}

RowLayout kv_layout(const ModelConfig& config, const Knobs& knobs) {
  const auto dim = static_cast<std::int32_t>(config.head_dim);
  if (knobs.activations == Activations::kF32) return f32_layout(dim);
  if (knobs.kv == KvPrecision::kBf16 || knobs.kv_layout == KvLayout::kWide) return bf16_layout(dim);
  return kv_packed_layout(dim, static_cast<std::int32_t>(config.qk_rope_head_dim));
}

RowLayout index_layout(const ModelConfig& config, const Knobs& knobs) {
  const auto dim = static_cast<std::int32_t>(config.index_head_dim);
  if (knobs.index_keys == IndexPrecision::kFp4) return index_fp4_layout(dim);
  if (knobs.index_keys == IndexPrecision::kFp8) return index_fp8_layout(dim);
  return knobs.activations == Activations::kF32 ? f32_layout(dim) : bf16_layout(dim);
}

std::string StepCase::name() const {
  std::string name;
  for (const SequenceSpan& span : spans)
    name += (name.empty() ? "" : ", ") + std::to_string(span.num_tokens) + " at " +
            std::to_string(span.start_position);
  return name;
}

StepCase make_step(const ModelConfig& config, const Knobs& knobs, std::span<const Share> shares,
                   std::uint32_t seed) {
  StepCase step;
  Random random(seed);
  const int ratio = config.compress_ratios[0];
  step.kv = kv_layout(config, knobs);
  step.index_key = index_layout(config, knobs);
  step.page_rows = ratio == 128 ? 2 : 64;
  step.state_rows = ratio == 128 ? 128 : 8;
  const auto head_dim = static_cast<std::int32_t>(config.head_dim);
  const auto index_dim = static_cast<std::int32_t>(config.index_head_dim);
  step.state_width = ratio == 4 ? 2 * head_dim : head_dim;
  step.index_width = 2 * index_dim;
  const auto count = static_cast<std::int32_t>(shares.size());
  std::int32_t longest = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const Share& share = shares[static_cast<std::size_t>(i)];
    // Slots and table rows in reverse, so that mixing them up with the span index shows.
    step.spans.push_back({step.num_tokens(), share.tokens, share.start, count - 1 - i, (i + 1) % count});
    longest = std::max(longest, share.start + share.tokens);
    for (std::int32_t t = 0; t < share.tokens; ++t) {
      step.positions.push_back(share.start + t);
      step.span_of.push_back(i);
      step.token_ids.push_back(
          static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(config.vocab_size)));
    }
  }
  step.slot_bytes = step.kv.page_bytes(step.ring_rows);
  step.rings.resize(static_cast<std::size_t>(count * step.slot_bytes));
  const std::int32_t entries = ratio == 0 ? 0 : longest / ratio;
  step.table_stride = entries / step.page_rows + 1;
  const std::int32_t pages = count * step.table_stride + 1;
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  step.page_table.assign(order.begin(), order.end() - 1);
  step.page_bytes = step.kv.page_bytes(step.page_rows);
  step.index_page_bytes = step.index_key.page_bytes(step.page_rows);
  step.pages.resize(static_cast<std::size_t>(ratio == 0 ? 0 : pages * step.page_bytes));
  step.index_pages.resize(static_cast<std::size_t>(ratio != 4 ? 0 : pages * step.index_page_bytes));
  const std::int64_t state_floats = std::int64_t{2} * step.state_rows * step.state_width;
  const std::int64_t index_floats = std::int64_t{2} * 8 * step.index_width;
  step.states = normals(random, ratio == 0 ? 0 : count * state_floats, 1.0f, false);
  step.index_states = normals(random, ratio != 4 ? 0 : count * index_floats, 1.0f, false);

  const auto fill = [&](const RowLayout& layout, std::byte* page, std::int32_t row, std::int32_t page_rows) {
    const std::vector<float> values = normals(random, layout.width);
    pack_row(layout, values.data(), page + layout.data_offset(row),
             page + layout.scale_offset(row, page_rows));
  };
  for (const SequenceSpan& span : step.spans) {
    for (std::int32_t p = std::max(0, span.start_position - step.ring_rows); p < span.start_position; ++p)
      fill(step.kv, step.rings.data() + span.slot * step.slot_bytes, p % step.ring_rows, step.ring_rows);
    // Entries of the step itself too: latent() would have written them before attention() reads them.
    for (std::int32_t j = 0; ratio != 0 && j < (span.start_position + span.num_tokens) / ratio; ++j) {
      const std::int32_t page =
          step.page_table[static_cast<std::size_t>(span.table * step.table_stride + j / step.page_rows)];
      fill(step.kv, step.pages.data() + page * step.page_bytes, j % step.page_rows, step.page_rows);
      if (ratio == 4)
        fill(step.index_key, step.index_pages.data() + page * step.index_page_bytes, j % step.page_rows,
             step.page_rows);
    }
  }
  return step;
}

}  // namespace pivot::test
