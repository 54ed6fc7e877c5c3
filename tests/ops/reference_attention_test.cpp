// Attention and compression of the oracle against double precision, from the visible-set rule of
// specification 2.4 and the pooling formula of 2.5 (checks 7 and 10), and what the back-end refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "numeric/quantize.h"
#include "ops/cpu/reference/backend.h"
#include "ops/cpu/reference/compressor.h"
#include "ops/cpu/reference/sparse_attention.h"
#include "ops/layer_rig.h"
#include "ops/random_layer.h"
#include "ops/rope.h"
#include "support/golden_compare.h"

namespace pivot::reference {
namespace {

Knobs unrounded() {
  Knobs knobs;
  const std::vector<std::string> settings = {"activations=f32", "kv=bf16", "index_keys=bf16",
                                             "dense_act=bf16", "expert_act=bf16"};
  PIVOT_CHECK(set_knobs(knobs, settings).has_value());
  return knobs;
}

// o of one token and head in double, rotated back, from rows in any order.
std::vector<double> attend(const float* q, const std::vector<std::vector<float>>& rows, double sink,
                           const std::vector<float>& frequencies, int position) {
  const std::size_t dim = rows.front().size();
  std::vector<double> logits;
  double maximum = sink;
  for (const auto& row : rows) {
    double dot = 0;
    for (std::size_t c = 0; c < dim; ++c) dot += static_cast<double>(q[c]) * row[c];
    logits.push_back(dot / std::sqrt(static_cast<double>(dim)));
    maximum = std::max(maximum, logits.back());
  }
  double sum = std::exp(sink - maximum);
  std::vector<double> o(dim, 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double p = std::exp(logits[i] - maximum);
    sum += p;
    for (std::size_t c = 0; c < dim; ++c) o[c] += p * rows[i][c];
  }
  for (double& value : o) value /= sum;
  const std::size_t nope = dim - 2 * frequencies.size();
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = static_cast<double>(static_cast<float>(position) * frequencies[i]);
    const double a = o[nope + 2 * i], b = o[nope + 2 * i + 1];
    o[nope + 2 * i] = a * std::cos(angle) + b * std::sin(angle);
    o[nope + 2 * i + 1] = -a * std::sin(angle) + b * std::cos(angle);
  }
  return o;
}

class Attention : public testing::TestWithParam<int> {};

TEST_P(Attention, SeesExactlyTheVisibleSet) {
  // Every position up to 300: window edges at 127, 128, 129, positions before the first entry, entries that
  // are completed by the very token that reads them. One row more or less would show at 1e-4.
  test::RandomLayerOptions options;
  options.ratio = GetParam();
  options.num_attention_heads = 2;
  const auto layer = test::make_random_layer(options);
  const ModelConfig& config = layer->config;
  const auto backend = make_reference_backend(1);
  const int tokens = 300;
  test::RigOptions rig_options;
  rig_options.knobs = unrounded();
  test::LayerRig rig(*backend, config, layer->weights, 0, rig_options);
  const test::AttentionStep step =
      rig.attention({{0, tokens}}, layer->storage.activations(tokens * config.hidden_size));
  const std::vector<float> frequencies = rope_frequencies(config.rope(0), 64);
  for (int t = 0; t < tokens; ++t) {
    std::vector<std::vector<float>> rows;
    for (int p = std::max(0, t - 127); p <= t; ++p)
      rows.emplace_back(step.kv.begin() + p * config.head_dim, step.kv.begin() + (p + 1) * config.head_dim);
    const int visible = GetParam() == 0 ? 0 : (t + 1) / GetParam();
    if (GetParam() == 4) {
      EXPECT_EQ(step.count[static_cast<std::size_t>(t)], std::min(visible, 8));
      for (int i = 0; i < std::min(visible, 8); ++i)
        rows.push_back(rig.compressed_row(0, step.selected[static_cast<std::size_t>(t * 8 + i)]));
    } else {
      for (int j = 0; j < visible; ++j) rows.push_back(rig.compressed_row(0, j));
    }
    for (std::int64_t h = 0; h < 2; ++h) {
      const std::int64_t at = (t * 2 + h) * config.head_dim;
      const std::vector<double> expected =
          attend(step.q.data() + at, rows, layer->weights.attn.attn_sink[static_cast<std::size_t>(h)],
                 frequencies, t);
      for (std::int64_t c = 0; c < config.head_dim; ++c)
        ASSERT_NEAR(step.o[static_cast<std::size_t>(at + c)], expected[static_cast<std::size_t>(c)], 2e-5)
            << "t " << t << " head " << h << " dim " << c;
    }
  }
}

class Compressor : public testing::TestWithParam<int> {};

TEST_P(Compressor, EntriesAreTheWeightedMeansOfTheirBlocks) {
  test::RandomLayerOptions options;
  options.ratio = GetParam();
  const auto layer = test::make_random_layer(options);
  const ModelConfig& config = layer->config;
  const CompressorWeights& w = *layer->weights.attn.compressor;
  const auto backend = make_reference_backend(1);
  const int tokens = 391, ratio = GetParam(), dim = static_cast<int>(config.head_dim),
            series = ratio == 4 ? 2 : 1;
  test::RigOptions rig_options;
  rig_options.knobs = unrounded();
  test::LayerRig rig(*backend, config, layer->weights, 0, rig_options);
  const std::vector<float> x = layer->storage.activations(tokens * config.hidden_size);
  rig.attention({{0, tokens}}, x);
  const std::vector<float> frequencies = rope_frequencies(config.rope(0), 64);
  // k and s of a token in double, from the BF16 weight bytes.
  const auto project = [&](const Matrix& m, int p, int row) {
    double sum = 0;
    for (std::int64_t i = 0; i < m.cols; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, m.codes + 2 * (row * m.cols + i), 2);
      sum += static_cast<double>(to_float(BF16{bits})) * x[static_cast<std::size_t>(p * m.cols + i)];
    }
    return sum;
  };
  for (const int j : {0, 1, 2, tokens / ratio - 1}) {
    std::vector<double> row(static_cast<std::size_t>(dim));
    for (int c = 0; c < dim; ++c) {
      double weight_sum = 0, value = 0;
      const auto slot = [&](int p, int column) {
        const double s =
            project(w.wgate, p, column) + w.ape[static_cast<std::size_t>(p % ratio * series * dim + column)];
        weight_sum += std::exp(s);
        value += std::exp(s) * project(w.wkv, p, column);
      };
      if (series == 2)
        for (int p = (j - 1) * ratio; j > 0 && p < j * ratio; ++p) slot(p, c);
      for (int p = j * ratio; p < (j + 1) * ratio; ++p) slot(p, (series - 1) * dim + c);
      row[static_cast<std::size_t>(c)] = value / weight_sum;
    }
    double square = 0;
    for (const double value : row) square += value * value;
    for (int c = 0; c < dim; ++c)
      row[static_cast<std::size_t>(c)] *=
          w.norm[static_cast<std::size_t>(c)] / std::sqrt(square / dim + 1e-6);
    for (std::size_t i = 0; i < 32; ++i) {  // rotated at the block's first token (trap D8)
      const double angle = static_cast<double>(static_cast<float>(j * ratio) * frequencies[i]);
      const std::size_t at = static_cast<std::size_t>(dim) - 64 + 2 * i;
      const double a = row[at], b = row[at + 1];
      row[at] = a * std::cos(angle) - b * std::sin(angle);
      row[at + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
    const std::vector<float> actual = rig.compressed_row(0, j);
    for (int c = 0; c < dim; ++c)
      ASSERT_NEAR(actual[static_cast<std::size_t>(c)], row[static_cast<std::size_t>(c)], 3e-5)
          << "entry " << j << " dim " << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Ratios, Attention, testing::Values(0, 4, 128),
                         [](const auto& ratio) { return "Ratio" + std::to_string(ratio.param); });

INSTANTIATE_TEST_SUITE_P(Ratios, Compressor, testing::Values(4, 128),
                         [](const auto& ratio) { return "Ratio" + std::to_string(ratio.param); });

TEST(SparseAttention, ALargeSinkTakesTheWeight) {
  test::RandomMatrices make(1);
  AttentionRows rows(40, 64);
  const std::vector<float> values = make.activations(40 * 64), q = make.activations(64);
  std::copy(values.begin(), values.end(), rows.row(0));
  rows.build_panels();
  std::vector<float> o(64), plain(64);
  sparse_attention(q.data(), rows, 40.0f, 0.125f, Rounding{}, o.data());
  for (const float value : o) EXPECT_LT(std::fabs(value), 1e-12);
  // A sink far below every logit changes nothing but the last bits.
  sparse_attention(q.data(), rows, -1e30f, 0.125f, Rounding(Activations::kF32), plain.data());
  double weight = 0;
  for (const float value : plain) weight += std::fabs(value);
  EXPECT_GT(weight, 0.1);
}

TEST(SparseAttention, OneRowReturnsItselfInTheLimit) {
  AttentionRows rows(1, 32);
  for (std::int64_t c = 0; c < 32; ++c) rows.row(0)[c] = static_cast<float>(c) - 7.5f;
  rows.build_panels();
  std::vector<float> q(32, 0.25f), o(32);
  sparse_attention(q.data(), rows, -100.0f, 1.0f, Rounding{}, o.data());
  for (std::int64_t c = 0; c < 32; ++c) EXPECT_EQ(o[static_cast<std::size_t>(c)], rows.row(0)[c]);
}

TEST(SparseAttention, HugeLogitsStayFinite) {
  AttentionRows rows(3, 32);
  for (std::int64_t r = 0; r < 3; ++r)
    for (std::int64_t c = 0; c < 32; ++c) rows.row(r)[c] = static_cast<float>(100 * (r - 1));
  rows.build_panels();
  std::vector<float> q(32, 50.0f), o(32);
  sparse_attention(q.data(), rows, 0.0f, 1.0f, Rounding{}, o.data());
  for (const float value : o) EXPECT_EQ(value, 100.0f);
}

TEST(Backend, NamesItselfAndItsMemory) {
  const auto backend = make_reference_backend(2);
  EXPECT_EQ(backend->name(), "cpu-reference");
  EXPECT_EQ(backend->activation_bytes(), 4);
  EXPECT_GT(backend->device().memory_bytes, 0);
  Result<std::byte*> memory = backend->allocate(1000, "a test");
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*memory) % 64, 0u);
  backend->fill(*memory, 7, 1000);
  std::vector<std::byte> copy(1000);
  backend->download(copy.data(), *memory, 1000);
  EXPECT_EQ(copy, std::vector<std::byte>(1000, std::byte{7}));
  backend->release(*memory);
  Result<std::byte*> too_much = backend->allocate(std::int64_t{1} << 60, "everything");
  ASSERT_FALSE(too_much.has_value());
  EXPECT_EQ(too_much.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(too_much.error().message.find("everything"), std::string::npos);
}

ModelWeights model_of(const test::RandomLayer& layer, test::RandomMatrices& make) {
  ModelWeights model;
  model.config = layer.config;
  model.embed = make.bf16(64, layer.config.hidden_size);
  model.head = make.bf16(64, layer.config.hidden_size);
  model.layers.push_back(layer.weights);
  return model;
}

TEST(Supports, WhatItCannotRunIsRefusedByName) {
  const auto layer = test::make_random_layer({});
  test::RandomMatrices make(2);
  const auto backend = make_reference_backend(1);
  const ModelWeights good = model_of(*layer, make);
  EXPECT_TRUE(backend->supports(good, {}).has_value());
  const auto refused = [&](const ModelWeights& model, const Knobs& knobs, std::string_view word) {
    const Result<> result = backend->supports(model, knobs);
    ASSERT_FALSE(result.has_value()) << word;
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported) << word;
    EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
  };
  Knobs nvfp4;
  nvfp4.expert_act = ActQuant::kNvfp4;
  refused(good, nvfp4, "layers.0.ffn.experts.0");
  ModelWeights model = good;
  for (ExpertWeights& expert : model.layers[0].ffn.experts)
    expert = {make.nvfp4(64, 96), make.nvfp4(64, 96), make.nvfp4(96, 64)};
  EXPECT_TRUE(backend->supports(model, nvfp4).has_value());
  model.layers[0].ffn.experts[3].w3.input_scale = 0.0f;
  refused(model, nvfp4, "layers.0.ffn.experts.3");

  model = good;
  model.config.compress_ratios = {8};
  refused(model, {}, "compress_ratios");
  model = good;
  model.config.index_head_dim = 96;
  refused(model, {}, "index_head_dim");
  model = good;
  model.config.qk_rope_head_dim = 128;
  refused(model, {}, "qk_rope_head_dim");
  model = good;
  model.config.o_groups = 3;
  refused(model, {}, "o_groups");
  model = good;
  model.layers[0].ffn.experts[2].w1.cols = 80;
  refused(model, {}, "experts.2.w1");
}

}  // namespace
}  // namespace pivot::reference
