// The oracle against the wide goldens (the real attention geometry): one decode step from packed caches, the
// fp32 taps of a short native run, and NVFP4 twins of native experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/reference/backend.h"
#include "ops/cpu/reference/expert.h"
#include "ops/cpu/reference/indexer.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/sparse_attention.h"
#include "ops/layer_rig.h"
#include "support/golden_compare.h"
#include "support/golden_file.h"
#include "support/test_data.h"

namespace pivot::reference {
namespace {

using test::GoldenFile;
using test::GoldenWeights;

std::vector<float> unpack(const RowLayout& layout, const std::uint8_t* row) {
  std::vector<float> x(static_cast<std::size_t>(layout.width));
  const auto* data = reinterpret_cast<const std::byte*>(row);
  unpack_row(layout, data, data + layout.data_bytes, x.data());
  return x;
}

TEST(WideGolden, DecodeAttentionFromPackedRows) {
  PIVOT_NEED_DATA(path, "goldens-wide/data/decode_bf16_n515.safetensors");
  PIVOT_NEED_DATA(folder, "goldens-wide/native");
  const GoldenFile golden(path);
  GoldenWeights weights(folder);
  const RowLayout layout = kv_packed_layout(512, 64);
  const float scale = golden.floats("softmax_scale").at(0);
  for (const int layer : {1, 2}) {
    const std::string name = fmt::format("decode.L{}.", layer);
    const std::vector<std::uint8_t> ring = golden.bytes(name + "ring_packed"),
                                    compressed = golden.bytes(name + "compressed_packed");
    const std::vector<std::int32_t> idx = golden.ints(name + "topk_idxs");
    const std::vector<float> q = golden.floats(name + "q");
    const FloatSpan sink = weights.vector(fmt::format("layers.{}.attn.attn_sink", layer));
    AttentionRows rows(static_cast<std::int64_t>(idx.size()), 512);
    for (std::size_t i = 0; i < idx.size(); ++i) {
      ASSERT_GE(idx[i], 0);
      const std::uint8_t* bytes =
          idx[i] < 128 ? ring.data() + idx[i] * 584 : compressed.data() + (idx[i] - 128) * 584;
      std::copy_n(unpack(layout, bytes).begin(), 512, rows.row(static_cast<std::int64_t>(i)));
    }
    rows.build_panels();
    std::vector<float> o(q.size());
    for (std::size_t h = 0; h < 64; ++h)
      sparse_attention(q.data() + h * 512, rows, sink[h], scale, Rounding{}, o.data() + h * 512);
    const double error = test::relative_l2(o, golden.floats(name + "o_fp64_in_bf16"));
    EXPECT_LT(error, 0.004) << layer;
    std::printf("layer %d: relative L2 %.5f\n", layer, error);
  }
}

TEST(WideGolden, IndexScoresAndSelectionFromPackedKeys) {
  PIVOT_NEED_DATA(path, "goldens-wide/data/decode_bf16_n515.safetensors");
  const GoldenFile golden(path);
  const RowLayout layout = index_fp4_layout(128);
  std::vector<float> q = golden.floats("index.L1.q_before_hadamard");
  const std::vector<std::uint8_t> q_packed = golden.bytes("index.L1.q_packed"),
                                  keys_packed = golden.bytes("index.L1.keys_packed");
  for (std::size_t h = 0; h < 64; ++h) {
    float* head = q.data() + h * 128;
    hadamard({head, 128});
    Rounding{}.apply(head, 128);
    std::vector<std::uint8_t> row(68);
    auto* data = reinterpret_cast<std::byte*>(row.data());
    pack_row(layout, head, data, data + 64);
    ASSERT_TRUE(std::equal(row.begin(), row.end(), q_packed.begin() + static_cast<std::ptrdiff_t>(h * 68)))
        << h;
    std::copy_n(unpack(layout, row.data()).begin(), 128, head);
  }
  IndexKeys keys(130, 128);
  for (std::int64_t j = 0; j < 130; ++j) keys.set(j, unpack(layout, keys_packed.data() + j * 68).data());
  const std::vector<float> weights = golden.floats("index.L1.weights");
  const std::vector<float> expected = golden.floats("index.L1.score_fp64_in_f32");
  std::vector<float> scores(130), rounded(130);
  index_scores(q.data(), weights.data(), 64, keys, 130, ScorePrecision::kF32, scores.data());
  index_scores(q.data(), weights.data(), 64, keys, 130, ScorePrecision::kBf16, rounded.data());
  test::expect_close(scores, expected, 1e-5 * test::max_abs(expected), "score");
  EXPECT_LT(test::relative_l2(rounded, golden.floats("index.L1.score_bf16")), 0.02);
  std::vector<std::int32_t> selected(32);
  EXPECT_EQ(select_topk(scores, 32, selected.data()), 32);
  EXPECT_EQ(selected, golden.ints("index.L1.topk_sorted"));
}

Knobs native_fp32() {
  Knobs knobs;
  knobs.activations = Activations::kF32;
  return knobs;
}

TEST(WideGolden, NativeFp32TapsLayerByLayer) {
  PIVOT_NEED_DATA(path, "goldens-wide/data/taps_fp32.safetensors");
  PIVOT_NEED_DATA(folder, "goldens-wide/native");
  const GoldenFile golden(path);
  GoldenWeights weights(folder);
  const Result<ModelConfig> config = load_model_config(folder);
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  const auto backend = make_reference_backend(1);
  const std::vector<std::int32_t> ids =
      GoldenFile(path.parent_path() / "runs_fp32.safetensors").ints("n005.ids");
  const Knobs knobs = native_fp32();
  for (int layer = 0; layer < 3; ++layer) {
    const LayerWeights layer_weights = weights.layer(*config, layer);
    test::RigOptions options;
    options.knobs = knobs;
    test::LayerRig rig(*backend, *config, layer_weights, layer, options);
    for (const auto& [stage, tokens, first] : {std::tuple{"pre", 5, 0}, std::tuple{"dec1", 1, 5}}) {
      const std::string name = fmt::format("native.n005.{}.L{}.", stage, layer);
      const test::AttentionStep step = rig.attention({{0, tokens}}, golden.floats(name + "attn_in"));
      test::expect_close(step.out, golden.floats(name + "attn_out"), 1e-3, name + "attn_out");

      StepBatch batch;
      batch.num_tokens = tokens;
      batch.token_ids = ids.data() + first;
      const LayerContext context{&*config, layer, config->ratio(layer), nullptr};
      const std::vector<float> x = golden.floats(name + "ffn_in");
      std::vector<std::int32_t> expert_ids(static_cast<std::size_t>(tokens) * 6);
      std::vector<float> expert_weights(expert_ids.size()), out(x.size());
      backend->route(context, knobs, batch,
                     {&layer_weights.ffn, x.data(), expert_ids.data(), expert_weights.data(), nullptr});
      backend->moe(context, knobs, batch,
                   {&layer_weights.ffn, x.data(), expert_ids.data(), expert_weights.data(), out.data()});
      test::expect_close(out, golden.floats(name + "ffn_out"), 1e-3, name + "ffn_out");
      const std::vector<std::int32_t> golden_ids = golden.ints(name + "gate_ids");
      const std::vector<float> golden_weights = golden.floats(name + "gate_w");
      for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t)
        test::expect_same_routing(&golden_ids[t * 6], &golden_weights[t * 6], &expert_ids[t * 6],
                                  &expert_weights[t * 6], 6, 1e-5);
    }
  }
}

TEST(WideGolden, LosslessNvfp4ExpertsGiveTheNativeBits) {
  // Specification check 15: with FP8 or unquantised inputs the cast must not change a bit of an expert's
  // output.
  PIVOT_NEED_DATA(native_folder, "goldens-wide/native");
  PIVOT_NEED_DATA(nvfp4_folder, "goldens-wide/nvfp4_lossless");
  const GoldenWeights native(native_folder), nvfp4(nvfp4_folder);
  ThreadPool pool(1);
  std::vector<float> x(7 * 256), route(7);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = round_bf16(std::sin(static_cast<float>(i) * 0.37f) * 3.0f);
  for (std::size_t t = 0; t < 7; ++t) route[t] = 0.1f + 0.07f * static_cast<float>(t);
  int matrices = 0;
  for (int layer = 0; layer < 3; ++layer) {
    for (int e = 0; e < 8; ++e) {
      const std::string name = fmt::format("layers.{}.ffn.experts.{}", layer, e);
      const auto expert = [&](const GoldenWeights& from) {
        return ExpertWeights{from.matrix(name + ".w1"), from.matrix(name + ".w3"), from.matrix(name + ".w2")};
      };
      const ExpertWeights a = expert(native), b = expert(nvfp4);
      ASSERT_EQ(a.w1.format, MatrixFormat::kFP4);
      ASSERT_EQ(b.w1.format, MatrixFormat::kNVFP4);
      for (const auto& [m, n] : {std::pair{a.w1, b.w1}, std::pair{a.w3, b.w3}, std::pair{a.w2, b.w2}}) {
        std::vector<float> row_a(static_cast<std::size_t>(m.cols)), row_b(row_a.size());
        for (std::int64_t r = 0; r < m.rows; ++r) {
          dequantize_row(m, r, row_a.data());
          dequantize_row(n, r, row_b.data());
          ASSERT_EQ(row_a, row_b) << name << " row " << r;
        }
        ++matrices;
      }
      for (const ActQuant act : {ActQuant::kFp8, ActQuant::kBf16})
        EXPECT_EQ(expert_forward(a, act, x.data(), 7, route.data(), 4.0f, Rounding{}, pool),
                  expert_forward(b, act, x.data(), 7, route.data(), 4.0f, Rounding{}, pool))
            << name;
    }
  }
  EXPECT_EQ(matrices, 72);
}

}  // namespace
}  // namespace pivot::reference
