// Single operators of the oracle against the golden operator vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/reference/cache_rows.h"
#include "ops/cpu/reference/compressor.h"
#include "ops/cpu/reference/expert.h"
#include "ops/cpu/reference/hyper_connection.h"
#include "ops/cpu/reference/indexer.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/norm.h"
#include "ops/cpu/reference/rope.h"
#include "ops/cpu/reference/router.h"
#include "ops/cpu/reference/sparse_attention.h"
#include "ops/rope.h"
#include "support/golden_compare.h"
#include "support/golden_file.h"
#include "support/test_data.h"

namespace pivot::reference {
namespace {

using test::expect_bf16_close;
using test::expect_bits_equal;
using test::expect_close;
using test::GoldenFile;
using test::GoldenWeights;

class OpsGolden : public testing::Test {
 protected:
  void SetUp() override {
    PIVOT_NEED_DATA(file, "goldens/data/ops.safetensors");
    PIVOT_NEED_DATA(folder, "goldens/native");
    golden_ = std::make_unique<GoldenFile>(file);
    weights_ = std::make_unique<GoldenWeights>(folder);
    Result<ModelConfig> config = load_model_config(folder);
    ASSERT_TRUE(config.has_value()) << config.error().to_string();
    config_ = *config;
    compress_frequencies_ = rope_frequencies(config_.rope_compress, config_.qk_rope_head_dim);
  }

  std::vector<float> floats(const std::string& name) const { return golden_->floats(name); }

  std::unique_ptr<GoldenFile> golden_;
  std::unique_ptr<GoldenWeights> weights_;
  ModelConfig config_;
  std::vector<float> compress_frequencies_;
  ThreadPool pool_{1};
  Rounding bf16_;
};

TEST_F(OpsGolden, ValueTables) {
  std::vector<float> e4m3 = floats("table.e4m3");
  // The golden table holds 0 for the two NaN codes.
  EXPECT_TRUE(std::isnan(kE4m3Values[0x7f]) && std::isnan(kE4m3Values[0xff]));
  e4m3[0x7f] = kE4m3Values[0x7f];
  e4m3[0xff] = kE4m3Values[0xff];
  expect_bits_equal(kE4m3Values, e4m3, "e4m3");
  expect_bits_equal({kE2m1Values, 16}, floats("table.e2m1"), "e2m1");
}

TEST_F(OpsGolden, ActivationQuantisers) {
  const std::vector<float> x = floats("act_quant128.x");
  std::vector<std::uint8_t> codes(x.size()), scales(x.size() / 128);
  quantize_e4m3(x, 128, codes.data(), scales.data());
  EXPECT_EQ(codes, golden_->bytes("act_quant128.q"));
  EXPECT_EQ(scales, golden_->bytes("act_quant128.s"));

  std::vector<float> y = floats("act_quant64_inplace.x");
  quantize_dequantize_e4m3(y, 64);
  expect_bits_equal(y, floats("act_quant64_inplace.y"), "act_quant64");

  std::vector<float> z = floats("fp4_act_quant.x");
  std::vector<std::uint8_t> nibbles(z.size() / 2), scales4(z.size() / 32);
  quantize_e2m1(z, 32, nibbles.data(), scales4.data());
  EXPECT_EQ(scales4, golden_->bytes("fp4_act_quant.s_e8m0"));
  const std::vector<float> q = floats("fp4_act_quant.q_f32");
  for (std::size_t i = 0; i < q.size(); ++i)
    ASSERT_EQ(
        e2m1_to_float(static_cast<std::uint8_t>(i % 2 == 0 ? nibbles[i / 2] & 15 : nibbles[i / 2] >> 4)),
        q[i]);
  quantize_dequantize_e2m1(z, 32);
  expect_bits_equal(z, floats("fp4_act_quant.y"), "fp4_act_quant");
}

TEST_F(OpsGolden, Nvfp4Activations) {
  std::vector<float> x = floats("nvfp4_act.x");
  quantize_dequantize_nvfp4(x, floats("nvfp4_act.gscale").at(0));
  const std::vector<float> expected = floats("nvfp4_act.dequant");
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], expected[i]) << i;
}

TEST_F(OpsGolden, Hadamard) {
  for (const std::size_t size : {std::size_t{64}, std::size_t{128}}) {
    const std::string name = "hadamard" + std::to_string(size);
    std::vector<float> x = floats(name + ".x");
    for (std::size_t i = 0; i < x.size(); i += size) hadamard({x.data() + i, size});
    bf16_.apply(x.data(), static_cast<std::int64_t>(x.size()));
    expect_bf16_close(x, floats(name + ".y"), 1, name);
  }
}

TEST_F(OpsGolden, LinearLayers) {
  const std::vector<float> x = floats("fp8_gemm.x");
  const LinearInput input = fp8_input(x.data(), 5, 256);
  expect_bits_equal(input.values, floats("fp8_gemm.xq"), "codes");
  expect_bits_equal(input.scales, floats("fp8_gemm.xs"), "scales");
  const std::pair<const char*, const char*> cases[] = {
      {"fp8_gemm.y(layers.0.attn.wq_a)", "layers.0.attn.wq_a"},
      {"fp8_gemm.y(layers.0.attn.wo_b)", "layers.0.attn.wo_b"},
      {"fp4_gemm.y(layers.0.ffn.experts.0.w1)", "layers.0.ffn.experts.0.w1"}};
  for (const auto& [name, weight] : cases)
    expect_bf16_close(linear(weights_->matrix(weight), input, bf16_, pool_), floats(name), 1, name);
}

TEST_F(OpsGolden, Experts) {
  const LayerWeights layer = weights_->layer(config_, 0);
  const float limit = static_cast<float>(config_.swiglu_limit);
  const std::vector<float> route = floats("expert.route_w");
  const std::vector<float> x = floats("expert.x");
  const std::vector<float> x_clamp = floats("expert.x_clamp");
  const auto run = [&](const ExpertWeights& expert, const std::vector<float>& in, const float* weights) {
    return expert_forward(expert, ActQuant::kFp8, in.data(), 5, weights, limit, bf16_, pool_);
  };
  // One flipped FP8 rounding of v moves a whole row slightly; the README allows 1 ulp rarely.
  EXPECT_LT(test::relative_l2(run(layer.ffn.experts[0], x, route.data()),
                              floats("expert.y(layers.0.ffn.experts.0)")),
            1e-3);
  EXPECT_LT(test::relative_l2(run(layer.ffn.shared, x, nullptr),
                              floats("expert.y_noweight(layers.0.ffn.shared_experts)")),
            1e-3);
  EXPECT_LT(test::relative_l2(run(layer.ffn.experts[0], x_clamp, route.data()),
                              floats("expert.y_clamp(layers.0.ffn.experts.0)")),
            1e-3);
}

TEST_F(OpsGolden, HyperConnections) {
  const LayerWeights layer = weights_->layer(config_, 0);
  const std::vector<float> mixes = floats("sinkhorn.mixes");
  const float eps = static_cast<float>(config_.hc_eps);
  std::vector<float> pre(16 * 4), post(16 * 4), comb(16 * 16);
  for (std::size_t t = 0; t < 16; ++t)
    hc_coefficients(mixes.data() + t * 24, layer.attn_hc.scale, layer.attn_hc.base, 4, 20, eps, &pre[t * 4],
                    &post[t * 4], &comb[t * 16]);
  expect_close(pre, floats("sinkhorn.pre"), 1e-5, "pre");
  expect_close(post, floats("sinkhorn.post"), 1e-5, "post");
  expect_close(comb, floats("sinkhorn.comb"), 1e-5, "comb");

  std::vector<float> h = floats("hc.h");
  const float norm_eps = static_cast<float>(config_.rms_norm_eps);
  const std::vector<float> m =
      hc_mixes(h.data(), 6, 1024, layer.attn_hc.fn, norm_eps, HcPrecision::kF32, pool_);
  std::vector<float> y(6 * 256), normed(6 * 256), p(6 * 4), q(6 * 4), c(6 * 16);
  for (std::size_t t = 0; t < 6; ++t) {
    hc_coefficients(m.data() + t * 24, layer.attn_hc.scale, layer.attn_hc.base, 4, 20, eps, &p[t * 4],
                    &q[t * 4], &c[t * 16]);
    hc_pre(h.data() + t * 1024, &p[t * 4], 4, 256, bf16_, &y[t * 256]);
    rms_norm(&y[t * 256], layer.attn_norm.data(), 256, norm_eps, bf16_, &normed[t * 256]);
  }
  expect_bf16_close(y, floats("hc.pre_y(layers.0.attn)"), 1, "hc.pre_y");
  expect_close(q, floats("hc.post"), 1e-5, "hc.post");
  expect_close(c, floats("hc.comb"), 1e-5, "hc.comb");
  expect_bf16_close(normed, floats("hc.norm_y(layers.0.attn_norm)"), 1, "hc.norm_y");

  const HyperHeadWeights head = weights_->hyper_head();
  const std::vector<float> hm = hc_mixes(h.data(), 6, 1024, head.fn, norm_eps, HcPrecision::kF32, pool_);
  for (std::size_t t = 0; t < 6; ++t) {
    hc_pre_weights(hm.data() + t * 4, head.scale[0], head.base.data(), 4, eps, &p[t * 4]);
    hc_pre(h.data() + t * 1024, &p[t * 4], 4, 256, bf16_, &y[t * 256]);
  }
  expect_bf16_close(y, floats("hc.head_y"), 1, "hc.head_y");

  const std::vector<float> f = floats("hc.f"), golden_post = floats("hc.post"),
                           golden_comb = floats("hc.comb");
  for (std::size_t t = 0; t < 6; ++t)
    hc_post(h.data() + t * 1024, f.data() + t * 256, golden_post.data() + t * 4, golden_comb.data() + t * 16,
            4, 256, bf16_);
  expect_bf16_close(h, floats("hc.post_y"), 1, "hc.post_y");
}

TEST_F(OpsGolden, RotaryTables) {
  RopeConfig real = config_.rope_compress;
  real.original_max_position_embeddings = 65536;
  const std::pair<const char*, RopeConfig> cases[] = {{"rope.main_10000", config_.rope_main},
                                                      {"rope.tiny_yarn", config_.rope_compress},
                                                      {"rope.real_yarn", real}};
  const std::vector<std::int32_t> positions = golden_->ints("rope.pos");
  for (const auto& [name, rope] : cases) {
    const std::vector<float> frequencies = rope_frequencies(rope, 64);
    const std::vector<double> exact = golden_->doubles(std::string(name) + ".freqs_f64");
    for (std::size_t i = 0; i < 32; ++i) ASSERT_NEAR(frequencies[i] / exact[i], 1.0, 3e-7) << name << i;
    const std::vector<float> cos = floats(std::string(name) + ".cos"),
                             sin = floats(std::string(name) + ".sin");
    double low_error = 0, high_error = 0;
    for (std::size_t p = 0; p < positions.size(); ++p) {
      const RopeAngles angles(frequencies.data(), 32, positions[p]);
      for (std::size_t i = 0; i < 32; ++i) {
        const double error = std::max(std::fabs(static_cast<double>(angles.cos[i]) - cos[p * 32 + i]),
                                      std::fabs(static_cast<double>(angles.sin[i]) - sin[p * 32 + i]));
        (positions[p] < 1000 ? low_error : high_error) =
            std::max(positions[p] < 1000 ? low_error : high_error, error);
      }
    }
    EXPECT_LT(low_error, 1e-5) << name;
    std::printf("%s: error below 1000 %.2e, above %.2e (last position %d)\n", name, low_error, high_error,
                positions.back());
  }
}

TEST_F(OpsGolden, RotationAndItsInverse) {
  const std::vector<float> x = floats("rope.apply.x");  // [5, 2, 64], positions 10..14 or 10
  for (const bool inverse : {false, true}) {
    std::vector<float> y = x;
    for (std::size_t t = 0; t < 5; ++t) {
      const RopeAngles angles(compress_frequencies_.data(), 32, 10 + static_cast<std::int32_t>(t));
      for (std::size_t h = 0; h < 2; ++h) rotate(y.data() + (t * 2 + h) * 64, angles, inverse, bf16_);
    }
    expect_bf16_close(y, floats(inverse ? "rope.apply.inv_pos10_tiny_yarn" : "rope.apply.y_pos10_tiny_yarn"),
                      1, "rope");
  }
}

TEST_F(OpsGolden, Router) {
  const std::vector<float> sx = floats("sqrtsoftplus.x"), sy = floats("sqrtsoftplus.y");
  for (std::size_t i = 0; i < sx.size(); ++i)
    ASSERT_NEAR(sqrt_softplus(sx[i]), sy[i], 1e-6 * std::max(1.0f, sy[i])) << sx[i];

  const RouterRule rule{3, true, 1.5f};
  const LayerWeights learned = weights_->layer(config_, 3);
  const std::vector<float> x = floats("router.x");
  const std::vector<float> z = linear(learned.ffn.gate, plain_input(x.data(), 16, 256), pool_);
  const std::vector<float> scores = floats("router.scores");
  for (std::size_t i = 0; i < scores.size(); ++i) ASSERT_NEAR(sqrt_softplus(z[i]), scores[i], 1e-5);
  const std::vector<std::int32_t> golden_ids = golden_->ints("router.ids(layers.3.ffn.gate)");
  const std::vector<float> golden_weights = floats("router.w");
  for (std::size_t t = 0; t < 16; ++t) {
    std::int32_t ids[3];
    float weights[3];
    route_token({z.data() + t * 8, 8}, learned.ffn.bias, {}, rule, ids, weights);
    test::expect_same_routing(golden_ids.data() + t * 3, golden_weights.data() + t * 3, ids, weights, 3,
                              1e-5);
  }

  const LayerWeights hashed = weights_->layer(config_, 0);
  const std::vector<float> hz = linear(hashed.ffn.gate, plain_input(x.data(), 4, 256), pool_);
  const std::vector<std::int32_t> tokens = golden_->ints("router.hash_tokens");
  const std::vector<std::int32_t> hash_ids = golden_->ints("router.hash_ids(layers.0.ffn.gate)");
  const std::vector<float> hash_weights = floats("router.hash_w");
  for (std::size_t t = 0; t < 4; ++t) {
    std::int32_t ids[3];
    float weights[3];
    const float margin = route_token({hz.data() + t * 8, 8}, {},
                                     hashed.ffn.tid2eid.subspan(static_cast<std::size_t>(tokens[t]) * 3, 3),
                                     rule, ids, weights);
    EXPECT_TRUE(std::isinf(margin));
    test::expect_same_routing(hash_ids.data() + t * 3, hash_weights.data() + t * 3, ids, weights, 3, 1e-5);
  }
}

TEST_F(OpsGolden, Compressors) {
  struct Case {
    const char* name;
    int layer;
    bool index;
  };
  for (const Case& c : {Case{"compressor.r4", 2, false}, Case{"compressor.r4_index", 2, true},
                        Case{"compressor.r128", 3, false}}) {
    const LayerWeights layer = weights_->layer(config_, c.layer);
    const CompressorWeights& w = c.index ? layer.attn.indexer->compressor : *layer.attn.compressor;
    const std::vector<float> x = floats(std::string(c.name) + ".x");
    const auto tokens = static_cast<std::int32_t>(x.size() / 256);
    const LinearInput input = plain_input(x.data(), tokens, 256);
    const std::vector<float> k = linear(w.wkv, input, pool_), s = linear(w.wgate, input, pool_);
    const auto width = static_cast<std::int32_t>(compressor_series(w.ratio) * w.width);
    const std::int32_t ring_rows = static_cast<std::int32_t>(compressor_series(w.ratio)) * w.ratio;
    std::vector<float> ring(static_cast<std::size_t>(ring_rows * 2 * width), std::nanf(""));
    const CompressorStateView state{ring.data(), static_cast<std::int64_t>(ring.size()), ring_rows, width};
    std::vector<float> rows;
    for (std::int32_t p = 0; p < tokens; ++p) {
      compressor_store(w, state, 0, p, k.data() + p * width, s.data() + p * width);
      if ((p + 1) % w.ratio != 0) continue;
      std::vector<float> row(static_cast<std::size_t>(w.width));
      compressor_pool(w, state, 0, p / w.ratio, row.data());
      compressor_finish(w, compress_frequencies_.data(), 64, p / w.ratio, 1e-6f, bf16_, row.data());
      if (c.index) {
        hadamard(row);
        bf16_.apply(row.data(), w.width);
        round_index(row.data(), static_cast<std::int32_t>(w.width), IndexPrecision::kFp4);
      } else {
        round_kv(row.data(), static_cast<std::int32_t>(w.width), 64, KvPrecision::kFp8, nullptr);
      }
      rows.insert(rows.end(), row.begin(), row.end());
    }
    // A last-bit difference of the pooled value can flip a rounding to FP8 or FP4; almost all values are
    // equal.
    for (const char* which : {".rows_prefill", ".rows_stepwise"}) {
      const std::vector<float> expected = floats(std::string(c.name) + which);
      ASSERT_EQ(rows.size(), expected.size());
      EXPECT_GT(test::equal_share(rows, expected), 0.99) << c.name << which;
      EXPECT_LT(test::relative_l2(rows, expected), 0.01) << c.name << which;
    }
  }
}

TEST_F(OpsGolden, SparseAttention) {
  for (const std::string name : {"sparse_attn.real", "sparse_attn.small"}) {
    const Shape shape = golden_->view(name + ".q").shape;
    const std::int64_t tokens = shape[0], heads = shape[1], dim = shape[2];
    const std::int64_t slots = golden_->view(name + ".idx").shape[1];
    const std::vector<float> q = floats(name + ".q"), kv = floats(name + ".kv"),
                             sink = floats(name + ".sink");
    const std::vector<std::int32_t> idx = golden_->ints(name + ".idx");
    std::vector<float> o(q.size());
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<std::int32_t> valid;
      for (std::int64_t i = 0; i < slots; ++i)
        if (idx[static_cast<std::size_t>(t * slots + i)] >= 0)
          valid.push_back(idx[static_cast<std::size_t>(t * slots + i)]);
      AttentionRows rows(static_cast<std::int64_t>(valid.size()), dim);
      for (std::size_t i = 0; i < valid.size(); ++i)
        std::copy_n(kv.data() + valid[i] * dim, dim, rows.row(static_cast<std::int64_t>(i)));
      rows.build_panels();
      for (std::int64_t h = 0; h < heads; ++h)
        sparse_attention(q.data() + (t * heads + h) * dim, rows, sink[static_cast<std::size_t>(h)], scale,
                         bf16_, o.data() + (t * heads + h) * dim);
    }
    const double error = test::relative_l2(o, floats(name + ".o"));
    EXPECT_LT(error, 0.003) << name;
    std::printf("%s: relative L2 %.5f\n", name.c_str(), error);
  }
}

TEST_F(OpsGolden, IndexScores) {
  const std::vector<float> q = floats("index.q"), kv = floats("index.kv"), w = floats("index.w");
  IndexKeys keys(64, 128);
  for (std::int64_t j = 0; j < 64; ++j) keys.set(j, kv.data() + j * 128);
  std::vector<float> f32(3 * 64), rounded(3 * 64);
  for (std::size_t t = 0; t < 3; ++t) {
    index_scores(q.data() + t * 64 * 128, w.data() + t * 64, 64, keys, 64, ScorePrecision::kF32,
                 &f32[t * 64]);
    index_scores(q.data() + t * 64 * 128, w.data() + t * 64, 64, keys, 64, ScorePrecision::kBf16,
                 &rounded[t * 64]);
  }
  const std::vector<float> expected = floats("index.score_f32"), expected_bf16 = floats("index.score_bf16");
  const double largest = test::max_abs(expected);
  expect_close(f32, expected, 1e-5 * largest, "score_f32");
  EXPECT_LT(test::relative_l2(rounded, expected_bf16), 0.02);
  std::printf("index score bf16: equal share %.3f\n", test::equal_share(rounded, expected_bf16));
}

}  // namespace
}  // namespace pivot::reference
