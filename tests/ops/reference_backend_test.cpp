// The back-end's ops outside attention and experts, against the same steps written out here, and degenerate
// batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "ops/cpu/reference/backend.h"
#include "ops/cpu/reference/hyper_connection.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/norm.h"
#include "ops/layer_rig.h"
#include "ops/random_layer.h"

namespace pivot::reference {
namespace {

class ReferenceOps : public testing::Test {
 protected:
  const ModelConfig& config() const { return layer_->config; }
  std::int64_t width() const { return config().hidden_size; }

  std::unique_ptr<test::RandomLayer> layer_ = test::make_random_layer({});
  test::RandomMatrices& make_ = layer_->storage;
  std::unique_ptr<Backend> backend_ = make_reference_backend(2);
  LayerContext context_{&layer_->config, 0, 4, nullptr};
  ThreadPool pool_{1};
};

TEST_F(ReferenceOps, EmbedCopiesTheRowIntoEveryStream) {
  const Matrix embed = make_.bf16(64, width());
  const std::vector<std::int32_t> ids = {5, 63, 0};
  StepBatch batch;
  batch.num_tokens = 3;
  batch.token_ids = ids.data();
  std::vector<float> h(static_cast<std::size_t>(3 * 4 * width())), row(static_cast<std::size_t>(width()));
  backend_->embed(batch, {embed, 4, h.data()});
  for (std::int64_t t = 0; t < 3; ++t) {
    dequantize_row(embed, ids[static_cast<std::size_t>(t)], row.data());
    for (std::int64_t s = 0; s < 4; ++s)
      EXPECT_TRUE(std::equal(row.begin(), row.end(), h.begin() + (t * 4 + s) * width()));
  }
}

TEST_F(ReferenceOps, SeamFinishesOneSublayerAndStartsTheNext) {
  const std::int64_t cols = 4 * width();
  const std::vector<float> h0 = make_.activations(3 * cols), o = make_.activations(3 * width());
  StepBatch batch;
  batch.num_tokens = 3;
  HcSeamParams p;
  std::vector<float> h = h0, post(12), comb(48), x(static_cast<std::size_t>(3 * width()));
  p.hc = &layer_->weights.attn_hc;
  p.norm = layer_->weights.attn_norm;
  p.h = h.data();
  p.post = post.data();
  p.comb = comb.data();
  p.x = x.data();
  backend_->hc_seam(context_, {}, batch, p);
  EXPECT_EQ(h, h0);  // no sublayer has ended
  const std::vector<float> first_post = post, first_comb = comb;

  p.hc = &layer_->weights.ffn_hc;
  p.norm = layer_->weights.ffn_norm;
  p.sublayer_out = o.data();
  backend_->hc_seam(context_, {}, batch, p);
  std::vector<float> expected = h0;
  for (std::int64_t t = 0; t < 3; ++t)
    hc_post(expected.data() + t * cols, o.data() + t * width(), first_post.data() + t * 4,
            first_comb.data() + t * 16, 4, width(), Rounding{});
  EXPECT_EQ(h, expected);
  const std::vector<float> mixes =
      hc_mixes(expected.data(), 3, cols, layer_->weights.ffn_hc.fn, 1e-6f, HcPrecision::kF32, pool_);
  for (std::int64_t t = 0; t < 3; ++t) {
    float pre[4], next_post[4], next_comb[16];
    hc_coefficients(mixes.data() + t * 24, layer_->weights.ffn_hc.scale, layer_->weights.ffn_hc.base, 4, 20,
                    1e-6f, pre, next_post, next_comb);
    EXPECT_TRUE(std::equal(next_post, next_post + 4, post.begin() + t * 4));
    EXPECT_TRUE(std::equal(next_comb, next_comb + 16, comb.begin() + t * 16));
    std::vector<float> y(static_cast<std::size_t>(width()));
    hc_pre(expected.data() + t * cols, pre, 4, width(), Rounding{}, y.data());
    rms_norm(y.data(), layer_->weights.ffn_norm.data(), width(), 1e-6f, Rounding{}, y.data());
    EXPECT_TRUE(std::equal(y.begin(), y.end(), x.begin() + t * width()));
  }
}

TEST_F(ReferenceOps, MhcKnobRoundsBothOperands) {
  const std::int64_t cols = 4 * width();
  const std::vector<float> h = make_.activations(2 * cols);
  const FloatSpan fn = layer_->weights.attn_hc.fn;
  const std::vector<float> exact = hc_mixes(h.data(), 2, cols, fn, 1e-6f, HcPrecision::kF32, pool_);
  for (const HcPrecision precision : {HcPrecision::kTf32, HcPrecision::kBf16}) {
    std::vector<float> rounded(fn.begin(), fn.end());
    for (float& value : rounded) value = round_hc_operand(value, precision);
    const std::vector<float> mixes = hc_mixes(h.data(), 2, cols, fn, 1e-6f, precision, pool_);
    EXPECT_EQ(mixes,
              hc_mixes(h.data(), 2, cols, rounded, 1e-6f, HcPrecision::kF32, pool_));  // h is BF16 already
    EXPECT_NE(mixes, exact);
  }
}

TEST_F(ReferenceOps, HeadTakesTheChosenRows) {
  const std::int64_t cols = 4 * width();
  const HyperHeadWeights head{make_.vector(4 * cols, 0.0f, 0.05f), make_.vector(4, 0.0f, 0.5f),
                              make_.vector(1, 1.0f, 0.1f)};
  const FloatSpan norm = make_.vector(width(), 1.0f, 0.1f);
  const std::vector<float> h0 = make_.activations(3 * cols), o = make_.activations(3 * width());
  const std::vector<float> post = make_.activations(12), comb = make_.activations(48);
  std::vector<float> h = h0, x(static_cast<std::size_t>(2 * width()));
  const std::vector<std::int32_t> rows = {2, 0};
  StepBatch batch;
  batch.num_tokens = 3;
  backend_->hc_head(config(), {}, batch,
                    {&head, norm, h.data(), o.data(), post.data(), comb.data(), 2, rows.data(), x.data()});
  std::vector<float> expected = h0;
  for (std::int64_t t = 0; t < 3; ++t)
    hc_post(expected.data() + t * cols, o.data() + t * width(), post.data() + t * 4, comb.data() + t * 16, 4,
            width(), Rounding{});
  EXPECT_EQ(h, expected);
  for (std::size_t i = 0; i < 2; ++i) {
    const float* u = expected.data() + rows[i] * cols;
    const std::vector<float> mixes = hc_mixes(u, 1, cols, head.fn, 1e-6f, HcPrecision::kF32, pool_);
    float pre[4];
    hc_pre_weights(mixes.data(), head.scale[0], head.base.data(), 4, 1e-6f, pre);
    std::vector<float> y(static_cast<std::size_t>(width()));
    hc_pre(u, pre, 4, width(), Rounding{}, y.data());
    rms_norm(y.data(), norm.data(), width(), 1e-6f, Rounding{}, y.data());
    EXPECT_TRUE(std::equal(y.begin(), y.end(), x.begin() + static_cast<std::ptrdiff_t>(i) * width()));
  }
}

TEST_F(ReferenceOps, LogitsAreUnrounded) {
  const Matrix head = make_.bf16(70, width());
  const std::vector<float> x = make_.activations(2 * width());
  std::vector<float> logits(140), row(static_cast<std::size_t>(width()));
  backend_->logits({}, {head, x.data(), 2, logits.data()});
  bool finer_than_bf16 = false;
  for (std::int64_t n = 0; n < 70; ++n) {
    dequantize_row(head, n, row.data());
    for (std::int64_t t = 0; t < 2; ++t) {
      double sum = 0, size = 0;
      for (std::int64_t k = 0; k < width(); ++k) {
        const double product = static_cast<double>(row[static_cast<std::size_t>(k)]) *
                               x[static_cast<std::size_t>(t * width() + k)];
        sum += product;
        size += std::fabs(product);
      }
      const float actual = logits[static_cast<std::size_t>(t * 70 + n)];
      EXPECT_NEAR(actual, sum, 1e-5 * size);
      finer_than_bf16 = finer_than_bf16 || actual != round_bf16(actual);
    }
  }
  EXPECT_TRUE(finer_than_bf16);
}

TEST_F(ReferenceOps, RmsNormRoundsOnce) {
  const std::vector<float> x = make_.activations(300);
  const FloatSpan w = make_.vector(300, 1.0f, 0.2f);
  std::vector<float> y(300), exact(300);
  rms_norm(x.data(), w.data(), 300, 1e-6f, Rounding{}, y.data());
  rms_norm(x.data(), w.data(), 300, 1e-6f, Rounding(Activations::kF32), exact.data());
  double square = 0;
  for (const float value : x) square += static_cast<double>(value) * value;
  for (std::size_t i = 0; i < 300; ++i) {
    EXPECT_NEAR(exact[i], x[i] * w[i] / std::sqrt(square / 300 + 1e-6), 1e-5);
    EXPECT_EQ(y[i], round_bf16(exact[i]));
  }
}

TEST_F(ReferenceOps, EmptyStepsAndEmptySpansChangeNothing) {
  for (const int ratio : {0, 4, 128}) {
    test::RandomLayerOptions options;
    options.ratio = ratio;
    const auto layer = test::make_random_layer(options);
    test::RigOptions two;
    two.sequences = 2;
    test::LayerRig rig(*backend_, layer->config, layer->weights, 0, two);
    const std::vector<float> x = layer->storage.activations(9 * width());
    rig.attention({{0, 9}}, x);
    const std::vector<std::uint8_t> before = rig.state_bytes(0);
    EXPECT_TRUE(rig.attention({}, {}).out.empty());
    rig.attention({{0, 0}, {1, 0}}, {});
    EXPECT_EQ(rig.state_bytes(0), before) << ratio;
    // An empty span beside a full one.
    const test::AttentionStep beside = rig.attention({{0, 0}, {1, 9}}, x);
    EXPECT_EQ(rig.state_bytes(0), before) << ratio;
    EXPECT_EQ(rig.state_bytes(1), before) << ratio;
    EXPECT_EQ(beside.out.size(), x.size());
  }
  StepBatch none;
  backend_->route(context_, {}, none, {&layer_->weights.ffn, nullptr, nullptr, nullptr, nullptr});
  backend_->moe(context_, {}, none, {&layer_->weights.ffn, nullptr, nullptr, nullptr, nullptr});
}

}  // namespace
}  // namespace pivot::reference
