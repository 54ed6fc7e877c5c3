// Weights without a checkpoint: their size, their sharing, and that no code of theirs is a NaN.
#include "checkpoint/synthesis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "checkpoint/flash_config.h"
#include "checkpoint/weight_shapes.h"
#include "numeric/formats.h"

namespace pivot {
namespace {

ModelConfig small_config(std::int64_t layers) {
  ModelConfig c = flash_config(layers);
  c.vocab_size = 300;
  c.hidden_size = 256;
  c.num_attention_heads = 4;
  c.head_dim = 128;
  c.q_lora_rank = 128;
  c.o_groups = 2;
  c.o_lora_rank = 128;
  c.index_n_heads = 4;
  c.n_routed_experts = 6;
  c.num_experts_per_tok = 4;
  c.moe_intermediate_size = 128;
  return c;
}

std::shared_ptr<const ModelWeights> made(const ModelConfig& config, const SynthesisOptions& options,
                                         int threads = 2, MatrixFormat experts = MatrixFormat::kFP4) {
  auto weights = synthesize_weights(shape_weights(config, experts), options, threads);
  EXPECT_TRUE(weights);
  return *weights;
}

TEST(Synthesis, WholeFlashTakesWhatItsCheckpointDoes) {
  // 156.02 GB of the published backbone, with padding to 64 bytes.
  const auto bytes = static_cast<double>(synthesized_bytes(shape_weights(flash_config()), {}));
  EXPECT_NEAR(bytes * 1e-9, 156.02, 0.05);
}

TEST(Synthesis, SharedPartsTakeNoMemory) {
  const ModelWeights shapes = shape_weights(flash_config(4));
  SynthesisOptions one_expert;
  one_expert.resident_experts = 1;
  const std::int64_t expert = 3 * (4194304 + 262144);
  EXPECT_EQ(synthesized_bytes(shapes, {}) - synthesized_bytes(shapes, one_expert), 4 * 255 * expert);
  SynthesisOptions shared = one_expert;
  shared.shared_embedding = true;
  EXPECT_EQ(synthesized_bytes(shapes, one_expert) - synthesized_bytes(shapes, shared),
            std::int64_t{129280} * 4096 * 2);
}

TEST(Synthesis, LayersShareWhatTheyDoNotOwn) {
  ModelConfig config = small_config(4);
  config.compress_ratios = {4, 128, 4, 4};
  SynthesisOptions options;
  options.own_parts = kPartOutput | kPartRouter;
  options.resident_experts = 2;
  const auto w = made(config, options);
  const LayerWeights &first = w->layers[0], &other = w->layers[1], &third = w->layers[2];
  EXPECT_EQ(third.attn.wq_a.codes, first.attn.wq_a.codes);
  EXPECT_EQ(third.attn.indexer->wq_b.codes, first.attn.indexer->wq_b.codes);
  EXPECT_EQ(third.attn.compressor->wkv.codes, first.attn.compressor->wkv.codes);
  EXPECT_EQ(third.ffn.shared.w1.codes, first.ffn.shared.w1.codes);
  EXPECT_EQ(third.attn_hc.fn.data(), first.attn_hc.fn.data());
  EXPECT_NE(third.attn.wo_a.codes, first.attn.wo_a.codes);
  EXPECT_NE(third.ffn.gate.codes, first.ffn.gate.codes);
  EXPECT_NE(other.attn.wq_a.codes, first.attn.wq_a.codes);  // of another ratio
  EXPECT_EQ(first.ffn.experts[4].w2.codes, first.ffn.experts[0].w2.codes);
  EXPECT_EQ(first.ffn.experts[5].w2.codes, first.ffn.experts[1].w2.codes);
  EXPECT_NE(first.ffn.experts[1].w2.codes, first.ffn.experts[0].w2.codes);
}

TEST(Synthesis, ContentDoesNotDependOnThreads) {
  const ModelConfig config = small_config(3);
  const auto one = made(config, {}, 1), three = made(config, {}, 3);
  const Matrix &a = one->layers[2].attn.wo_b, &b = three->layers[2].attn.wo_b;
  EXPECT_EQ(std::memcmp(a.codes, b.codes, static_cast<std::size_t>(a.code_bytes())), 0);
  SynthesisOptions other;
  other.seed = 2;
  const auto different = made(config, other, 1);
  EXPECT_NE(
      std::memcmp(a.codes, different->layers[2].attn.wo_b.codes, static_cast<std::size_t>(a.code_bytes())),
      0);
}

TEST(Synthesis, CodesAreFiniteAndProductsOfUnitSize) {
  for (const MatrixFormat format : {MatrixFormat::kFP4, MatrixFormat::kNVFP4, MatrixFormat::kFP8}) {
    const auto w = made(small_config(3), {}, 2, format);
    const Matrix& m = w->layers[0].ffn.experts[3].w1;
    double squares = 0;
    for (std::int64_t r = 0; r < m.rows; ++r)
      for (std::int64_t c = 0; c < m.cols; ++c) {
        const std::int64_t at = r * m.cols + c;
        const auto byte = [](const std::byte* p, std::int64_t i) { return static_cast<std::uint8_t>(p[i]); };
        double value = 0;
        if (format == MatrixFormat::kFP8) {
          value = e4m3_to_float(byte(m.codes, at)) *
                  e8m0_to_float(byte(m.scales, r / 128 * (m.cols / 128) + c / 128));
        } else {
          const std::uint8_t two = byte(m.codes, at / 2);
          value = kE2m1Values[c % 2 == 0 ? two & 15 : two >> 4];
          value *= format == MatrixFormat::kFP4 ? e8m0_to_float(byte(m.scales, at / 32))
                                                : e4m3_to_float(byte(m.scales, at / 16)) * m.global_scale;
        }
        ASSERT_TRUE(std::isfinite(value));
        squares += value * value;
      }
    const double rms = std::sqrt(squares / static_cast<double>(m.rows));  // of an output, for unit inputs
    EXPECT_GT(rms, 0.3) << to_string(format);
    EXPECT_LT(rms, 3.0) << to_string(format);
  }
}

TEST(Synthesis, HashTablesHoldDifferentExperts) {
  const ModelConfig config = small_config(2);
  const auto w = made(config, {});
  const auto& table = w->layers[0].ffn.tid2eid;
  ASSERT_EQ(table.size(), 300u * 4);
  for (std::size_t row = 0; row < 300; ++row) {
    const std::set<std::int32_t> ids(table.begin() + static_cast<std::ptrdiff_t>(4 * row),
                                     table.begin() + static_cast<std::ptrdiff_t>(4 * row + 4));
    EXPECT_EQ(ids.size(), 4u);
    EXPECT_GE(*ids.begin(), 0);
    EXPECT_LT(*ids.rbegin(), 6);
  }
}

TEST(Synthesis, MoreResidentExpertsThanThereAreAreRefused) {
  SynthesisOptions options;
  options.resident_experts = 7;
  const auto weights = synthesize_weights(shape_weights(small_config(1)), options, 1);
  ASSERT_FALSE(weights);
  EXPECT_EQ(weights.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pivot
