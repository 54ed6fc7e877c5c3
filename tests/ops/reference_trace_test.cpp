// The reference back-end, op after op, against the inner tensors of golden runs: every op is fed the golden's
// own input, so that differences cannot accumulate.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/cpu/reference/backend.h"
#include "ops/layer_rig.h"
#include "ops/rope.h"
#include "support/golden_compare.h"
#include "support/golden_file.h"
#include "support/test_data.h"

namespace pivot {
namespace {

using test::AttentionStep;
using test::GoldenFile;
using test::GoldenWeights;
using test::LayerRig;

class TraceGolden : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string file_name = fmt::format("goldens/data/trace_n{:03}.safetensors", GetParam());
    PIVOT_NEED_DATA(file, file_name);
    PIVOT_NEED_DATA(folder, "goldens/native");
    golden_ = std::make_unique<GoldenFile>(file);
    weights_ = std::make_unique<GoldenWeights>(folder);
    Result<ModelConfig> config = load_model_config(folder);
    ASSERT_TRUE(config.has_value()) << config.error().to_string();
    config_ = *config;
    backend_ = make_reference_backend(1);
    if (golden_->has("rows")) {
      rows_ = golden_->ints("rows");
    } else {
      for (int i = 0; i < GetParam(); ++i) rows_.push_back(i);
    }
  }

  bool has(const std::string& name) const { return golden_->has(name); }
  std::vector<float> floats(const std::string& name) const { return golden_->floats(name); }

  // The rows of `all` [T, width] that a row-sampled golden of `count` rows keeps.
  std::vector<float> sample(const std::vector<float>& all, std::int64_t width,
                            std::size_t golden_size) const {
    if (all.size() == golden_size) return all;
    std::vector<float> kept;
    for (const std::int32_t row : rows_)
      kept.insert(kept.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
    return kept;
  }

  void check_step(const std::string& prefix, LayerRig& rig, const AttentionStep& step, int tokens, int ratio);

  std::unique_ptr<GoldenFile> golden_;
  std::unique_ptr<GoldenWeights> weights_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::int32_t> rows_;
};

void TraceGolden::check_step(const std::string& prefix, LayerRig& rig, const AttentionStep& step, int tokens,
                             int ratio) {
  const std::int64_t head_dim = config_.head_dim;
  const int end = rig.position(0);
  if (has(prefix + "q")) {
    const std::vector<float> q = floats(prefix + "q");
    const double share =
        test::equal_share(sample(step.q, config_.num_attention_heads * head_dim, q.size()), q);
    EXPECT_GT(share, 0.999) << prefix;
  }
  if (has(prefix + "index_q")) {
    const std::vector<float> q = floats(prefix + "index_q");
    EXPECT_GT(
        test::equal_share(sample(step.index_q, config_.index_n_heads * config_.index_head_dim, q.size()), q),
        0.97)
        << prefix;
  }
  // The window after the step: rows of the golden ring at slot = position mod window.
  if (has(prefix + "cache_window")) {
    const std::vector<float> ring = floats(prefix + "cache_window");
    std::vector<float> actual, expected;
    for (int p = std::max(0, end - 128); p < end; ++p) {
      const std::vector<float> row = rig.window_row(0, p);
      actual.insert(actual.end(), row.begin(), row.end());
      expected.insert(expected.end(), ring.begin() + p % 128 * head_dim,
                      ring.begin() + (p % 128 + 1) * head_dim);
    }
    EXPECT_GT(test::equal_share(actual, expected), 0.98) << prefix;
    EXPECT_LT(test::relative_l2(actual, expected), 0.01) << prefix;
  }
  const auto check_entries = [&](const std::string& name, std::int64_t width, auto row_of, double share) {
    if (!has(name)) return;
    const std::vector<float> expected = floats(name);
    std::vector<float> actual;
    const auto entries = static_cast<int>(expected.size() / static_cast<std::size_t>(width));
    EXPECT_EQ(entries, end / ratio) << name;
    for (int j = 0; j < entries; ++j) {
      const std::vector<float> row = row_of(j);
      actual.insert(actual.end(), row.begin(), row.end());
    }
    EXPECT_GT(test::equal_share(actual, expected), share) << name;
    EXPECT_LT(test::relative_l2(actual, expected), 0.02) << name;
  };
  check_entries(
      prefix + "cache_compressed", head_dim, [&](int j) { return rig.compressed_row(0, j); }, 0.98);
  check_entries(
      prefix + "cache_index", config_.index_head_dim, [&](int j) { return rig.index_row(0, j); }, 0.97);
  if (has(prefix + "state_kv")) {
    const std::int64_t width = golden_->view(prefix + "state_kv").shape[1];
    const std::vector<float> k = floats(prefix + "state_kv"), s = floats(prefix + "state_score");
    const int block = end / ratio * ratio;
    for (int p = std::max(0, block - ratio); p < end; ++p) {
      const std::vector<float> row = rig.state_row(false, 0, p);
      const int slot = p < block ? p - (block - ratio) : ratio + p - block;
      // Of the previous block only the A half is ever read again.
      const std::int64_t used = p < block ? width / 2 : width;
      const double largest = test::max_abs(row);
      test::expect_close({row.data(), static_cast<std::size_t>(used)},
                         {k.data() + slot * width, static_cast<std::size_t>(used)}, 1e-5 * largest,
                         prefix + "state_kv");
      test::expect_close({row.data() + width, static_cast<std::size_t>(used)},
                         {s.data() + slot * width, static_cast<std::size_t>(used)}, 1e-5 * largest,
                         prefix + "state_score");
    }
  }
  if (has(prefix + "index_topk_sorted")) {
    const std::vector<std::int32_t> sorted = golden_->ints(prefix + "index_topk_sorted");
    const std::size_t k = static_cast<std::size_t>(golden_->view(prefix + "index_topk_sorted").shape[1]);
    // A run too short to drop anything stores no margins.
    const std::vector<float> margin = has(prefix + "topk_margin")
                                          ? floats(prefix + "topk_margin")
                                          : std::vector<float>(sorted.size() / k, INFINITY);
    for (std::size_t t = 0; t < margin.size(); ++t) {
      if (!(margin[t] > 0.05f)) continue;
      std::set<std::int32_t> expected, actual;
      for (std::size_t i = 0; i < k; ++i)
        if (sorted[t * k + i] >= 0) expected.insert(sorted[t * k + i]);
      for (std::int32_t i = 0; i < step.count[t]; ++i)
        actual.insert(step.selected[t * static_cast<std::size_t>(step.topk) + static_cast<std::size_t>(i)]);
      EXPECT_EQ(actual, expected) << prefix << " token " << t;
    }
  }
  const std::vector<float> out = floats(prefix + "attn_out");
  const double error = test::relative_l2(sample(step.out, config_.hidden_size, out.size()), out);
  EXPECT_LT(error, 0.02) << prefix;
  std::printf("%sattn_out: relative L2 %.5f over %d tokens\n", prefix.c_str(), error, tokens);
}

TEST_P(TraceGolden, AttentionOfEveryLayerFedWithTheGoldenInput) {
  int checked = 0;
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const std::string name = fmt::format("pre.L{}.attn_in", layer);
    if (golden_->view(name).shape[0] != GetParam()) continue;  // sampled rows do not make a sequence
    const LayerWeights weights = weights_->layer(config_, layer);
    LayerRig rig(*backend_, config_, weights, layer, {});
    check_step(fmt::format("pre.L{}.", layer), rig, rig.attention({{0, GetParam()}}, floats(name)),
               GetParam(), config_.ratio(layer));
    for (int step = 1; has(fmt::format("dec{}.L{}.attn_in", step, layer)); ++step) {
      const std::string prefix = fmt::format("dec{}.L{}.", step, layer);
      check_step(prefix, rig, rig.attention({{0, 1}}, floats(prefix + "attn_in")), 1, config_.ratio(layer));
    }
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

TEST_P(TraceGolden, MoeOfEveryLayerFedWithTheGoldenInput) {
  const std::vector<std::int32_t> ids = golden_->ints("ids");
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("pre.L{}.", layer);
    const std::vector<float> x = floats(prefix + "ffn_in");
    const auto tokens = static_cast<std::int32_t>(x.size() / static_cast<std::size_t>(config_.hidden_size));
    const bool whole = tokens == GetParam();
    const LayerWeights weights = weights_->layer(config_, layer);
    const LayerContext context{&config_, layer, config_.ratio(layer), nullptr};
    std::vector<std::int32_t> token_ids;
    for (std::int32_t i = 0; i < tokens; ++i)
      token_ids.push_back(ids[static_cast<std::size_t>(whole ? i : rows_[static_cast<std::size_t>(i)])]);
    StepBatch batch;
    batch.num_tokens = tokens;
    batch.token_ids = token_ids.data();
    const auto chosen = static_cast<std::size_t>(config_.num_experts_per_tok);
    std::vector<std::int32_t> expert_ids(static_cast<std::size_t>(tokens) * chosen);
    std::vector<float> expert_weights(expert_ids.size()), margin(static_cast<std::size_t>(tokens)),
        out(x.size());
    backend_->route(context, {}, batch,
                    {&weights.ffn, x.data(), expert_ids.data(), expert_weights.data(), margin.data()});
    backend_->moe(context, {}, batch,
                  {&weights.ffn, x.data(), expert_ids.data(), expert_weights.data(), out.data()});
    const std::vector<std::int32_t> golden_ids = golden_->ints(prefix + "gate_ids");
    const std::vector<float> golden_weights = floats(prefix + "gate_w");
    for (std::int32_t t = 0; t < tokens; ++t) {
      if (!(margin[static_cast<std::size_t>(t)] > 1e-3f)) continue;
      const auto row = static_cast<std::size_t>(
          whole || golden_ids.size() == expert_ids.size() ? t : rows_[static_cast<std::size_t>(t)]);
      test::expect_same_routing(&golden_ids[row * chosen], &golden_weights[row * chosen],
                                &expert_ids[static_cast<std::size_t>(t) * chosen],
                                &expert_weights[static_cast<std::size_t>(t) * chosen],
                                static_cast<int>(chosen), 1e-5);
    }
    const std::vector<float> expected = floats(prefix + "ffn_out");
    const double error = test::relative_l2(out, expected);
    EXPECT_LT(error, 1e-3) << prefix;
    std::printf("%sffn_out: relative L2 %.2e, equal %.4f\n", prefix.c_str(), error,
                test::equal_share(out, expected));
  }
}

TEST_P(TraceGolden, HyperConnectionSeams) {
  const std::size_t tokens = static_cast<std::size_t>(GetParam());
  std::vector<float> h = floats("pre.L0.hc_in");
  const std::size_t width = static_cast<std::size_t>(config_.hidden_size);
  std::vector<float> x(tokens * width), post(tokens * 4), comb(tokens * 16), previous;
  StepBatch batch;
  batch.num_tokens = GetParam();
  const auto seam = [&](int layer, const HyperConnectionWeights& hc, FloatSpan norm) {
    const LayerContext context{&config_, layer, config_.ratio(layer), nullptr};
    HcSeamParams p;
    p.hc = &hc;
    p.norm = norm;
    p.h = h.data();
    p.sublayer_out = previous.empty() ? nullptr : previous.data();
    p.post = post.data();
    p.comb = comb.data();
    p.x = x.data();
    backend_->hc_seam(context, {}, batch, p);
  };
  // Layer 0 whole, then the seam into layer 1: the state between them is the golden's "hc after layer 0".
  const LayerWeights first = weights_->layer(config_, 0);
  const LayerWeights second = weights_->layer(config_, 1);
  seam(0, first.attn_hc, first.attn_norm);
  // Two roundings lie between h and x: 2 ulp.
  test::expect_bf16_close(x, floats("pre.L0.attn_in"), 2, "attn_in");
  previous = floats("pre.L0.attn_out");
  seam(0, first.ffn_hc, first.ffn_norm);
  test::expect_bf16_close(x, floats("pre.L0.ffn_in"), 2, "ffn_in");
  previous = floats("pre.L0.ffn_out");
  seam(1, second.attn_hc, second.attn_norm);
  if (has("pre.L0.hc")) test::expect_bf16_close(h, floats("pre.L0.hc"), 1, "hc");
  const std::vector<float> next = floats("pre.L1.attn_in");
  EXPECT_LT(test::relative_l2(sample(x, config_.hidden_size, next.size()), next), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Lengths, TraceGolden, testing::Values(5, 129));

}  // namespace
}  // namespace pivot
