// The logic of `pivot bench`: what an operator costs, what fits, what is refused. Never a time.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "bench/bench.h"
#include "bench/cost.h"
#include "bench/cpu_kernels.h"
#include "bench/operators.h"
#include "checkpoint/flash_config.h"
#include "checkpoint/synthesis.h"
#include "checkpoint/weight_shapes.h"
#include "engine/devices.h"
#include "ops/timing_backend.h"

namespace pivot::cli {
namespace {

// The layer of ratio 4 and that of ratio 128 at the published shapes.
ModelWeights flash_layers() { return shape_weights(flash_layer_config(2)); }

// A model of the family that a test can afford.
ModelConfig small_config(std::int64_t layers) {
  ModelConfig c = flash_layer_config(layers);
  c.vocab_size = 256;
  c.hidden_size = 128;
  c.num_attention_heads = 4;
  c.head_dim = 128;
  c.q_lora_rank = 128;
  c.o_groups = 2;
  c.o_lora_rank = 128;
  c.index_n_heads = 4;
  c.index_topk = 16;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 128;
  return c;
}

TEST(BenchCost, ProductsCountCodesScalesAndTwoOperationsAnElement) {
  const ModelWeights w = flash_layers();
  const AttentionWeights& a = w.layers[0].attn;
  // FP8: a byte an element and one a 128x128 block.
  EXPECT_EQ(product_cost(a.wq_a, 3).bytes, 1024 * 4096 + 8 * 32);
  EXPECT_EQ(product_cost(a.wq_a, 3).flops, 2.0 * 1024 * 4096 * 3);
  // FP4: half a byte and one a group of 32; three matrices of 2048 x 4096.
  EXPECT_EQ(bytes_of(w.layers[0].ffn.experts[0]), 3 * (4194304 + 262144));
  EXPECT_EQ(bytes_of(w.layers[0].ffn.shared), 3 * (8388608 + 16 * 32));
  // NVFP4: one scale a group of 16.
  const ModelWeights nvfp4 = shape_weights(flash_layer_config(1), MatrixFormat::kNVFP4);
  EXPECT_EQ(bytes_of(nvfp4.layers[0].ffn.experts[0]), 3 * (4194304 + 524288));
}

TEST(BenchCost, OperatorsOfAFlashLayer) {
  const ModelWeights w = flash_layers();
  const AttentionWeights &r4 = w.layers[0].attn, &r128 = w.layers[1].attn;
  // wq_a, wkv, the main compressor, weights_proj, the indexer's compressor.
  EXPECT_EQ(latent_cost(r4, 1).bytes, 4194560 + 2097280 + 16777216 + 524288 + 4194304);
  EXPECT_EQ(latent_cost(r4, 1).flops, 2.0 * 4096 * (1024 + 512 + 2048 + 64 + 512));
  EXPECT_EQ(latent_cost(r128, 1).bytes, 4194560 + 2097280 + 8388608);
  EXPECT_EQ(query_cost(r4, 1).bytes, 33556480 + 8389120);
  EXPECT_EQ(query_cost(r128, 2).flops, 2.0 * 2 * 32768 * 1024);
  EXPECT_EQ(output_cost(r4, 1).bytes, 2 * (33554432 + 2048));
  // fn [24, 16384], base [24], scale [3] in fp32; fn, hc_post and hc_pre of 4 streams of 4096.
  EXPECT_EQ(seam_cost(w.config, w.layers[0].attn_hc, 1).bytes, 4 * (24 * 16384 + 24 + 3));
  EXPECT_EQ(seam_cost(w.config, w.layers[0].attn_hc, 2).flops, 2 * (786432 + 163840 + 32768));
}

TEST(BenchCost, ExpertsAreReadOnceHoweverManyTokensChooseThem) {
  const ModelWeights w = flash_layers();
  const std::int32_t two_tokens[] = {0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9};
  const Cost cost = experts_cost(w.layers[0].ffn, two_tokens, 2);
  EXPECT_EQ(cost.bytes, 10 * 13369344.0 + 25167360);
  EXPECT_EQ(cost.flops, (12 + 2) * 2.0 * 3 * 2048 * 4096);
}

TEST(BenchCost, RowsThatATokenSees) {
  const ModelConfig c = flash_layer_config(2);
  EXPECT_EQ(visible_rows(c, 0, 0, 512), 1);
  EXPECT_EQ(visible_rows(c, 0, 4095, 512), 128);
  EXPECT_EQ(visible_rows(c, 4, 127, 512), 128 + 32);
  EXPECT_EQ(visible_rows(c, 4, 4095, 512), 128 + 512);
  EXPECT_EQ(visible_rows(c, 4, 4095, 0), 128 + 1024);
  EXPECT_EQ(visible_rows(c, 128, 4095, 512), 128 + 32);
  EXPECT_EQ(visible_rows(c, 4, 0, 4, 512), 1 + 2 + 3 + 4 + 1);  // the fourth token completes an entry
  EXPECT_EQ(attention_cost(c, 160, 150, 584).flops, 160.0 * 64 * 512 * 4);
  EXPECT_EQ(attention_cost(c, 160, 150, 584).bytes, 150.0 * 584);
  EXPECT_EQ(index_cost(c, 1024, 1024, 68).flops, 1024.0 * 64 * 128 * 2);
}

TEST(BenchCost, TheSlowerOfReadingAndComputingBounds) {
  EXPECT_TRUE(bound_of({2e9, 1e9}, 1e9, 1e9).memory);
  EXPECT_DOUBLE_EQ(bound_of({2e9, 1e9}, 1e9, 1e9).seconds, 2.0);
  EXPECT_FALSE(bound_of({1e9, 6e9}, 1e9, 2e9).memory);
  EXPECT_DOUBLE_EQ(bound_of({1e9, 6e9}, 1e9, 2e9).seconds, 3.0);
}

TEST(BenchMachine, AvailableMemoryIsTheSmallerOfSystemAndControlGroup) {
  const char* meminfo = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n";
  EXPECT_EQ(available_memory_bytes(meminfo, "", ""), 20000000LL * 1024);
  EXPECT_EQ(available_memory_bytes(meminfo, "max\n", "123\n"), 20000000LL * 1024);
  EXPECT_EQ(available_memory_bytes(meminfo, "8589934592\n", "1073741824\n"), 7LL << 30);
  EXPECT_EQ(available_memory_bytes(meminfo, "100\n", "200\n"), 0);
  EXPECT_EQ(available_memory_bytes("", "", ""), 0);
  EXPECT_GT(available_memory_bytes(), 0);
}

TEST(BenchMachine, WhatDoesNotFitIsRefusedWithNumbers) {
  EXPECT_TRUE(check_memory(std::int64_t{6} << 30, std::int64_t{8} << 30, "it", "go"));
  const Result<> refused =
      check_memory(std::int64_t{8} << 30, std::int64_t{8} << 30, "the model", "buy more");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  for (const char* part : {"the model", "8589934592", "buy more", "nothing was allocated"})
    EXPECT_NE(refused.error().to_string().find(part), std::string::npos) << refused.error().to_string();
}

TEST(BenchKernels, EveryNameIsItsOwnAndUnknownOnesAreRefused) {
  std::set<std::string_view> names;
  for (const CpuKernel& kernel : cpu_kernels()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
    EXPECT_FALSE(kernel.what.empty());
  }
  const auto some = choose_cpu_kernels({"rope", "experts-fp4"});
  ASSERT_TRUE(some);
  ASSERT_EQ(some->size(), 2u);
  EXPECT_EQ((*some)[0].name, "rope");
  EXPECT_EQ(choose_cpu_kernels({})->size(), names.size());
  const auto refused = choose_cpu_kernels({"experts-fp5"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().to_string().find("experts-nvfp4"), std::string::npos);
}

TEST(BenchKernels, TheModelsFillTheWorkingSetAndNotMuchMore) {
  CpuKernelSizes sizes;
  for (const CpuKernel& kernel : cpu_kernels()) {
    const auto bytes = static_cast<double>(cpu_kernels_bytes({kernel}, sizes));
    EXPECT_GE(bytes, static_cast<double>(1 << 30)) << kernel.name;
    EXPECT_LE(bytes, 1.6 * (1 << 30)) << kernel.name;
  }
}

TEST(BenchModel, LayersOfTheWholeModelAreTimedByTheirKind) {
  Breakdown breakdown;
  breakdown.layer_seconds[1] = 0.004;
  breakdown.outside_layers_seconds = 0.1;
  // Nothing but ratio 4 was measured: it stands for all 43.
  EXPECT_DOUBLE_EQ(extrapolate_seconds(breakdown, flash_config()), 0.1 + 43 * 0.004);
  breakdown.layer_seconds[2] = 0.003;
  EXPECT_DOUBLE_EQ(extrapolate_seconds(breakdown, flash_config()), 0.1 + (21 + 2) * 0.004 + 20 * 0.003);
}

TEST(BenchModel, ALayerModelAlternatesRatiosAndRoutesByScore) {
  const ModelConfig c = flash_layer_config(3);
  EXPECT_EQ(c.compress_ratios, (std::vector<int>{4, 128, 4}));
  EXPECT_EQ(c.num_hash_layers, 0);
  EXPECT_EQ(flash_layer_config(0).num_hidden_layers, 1);
}

class SmallModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    backend_ = *make_backend(GetParam(), 2);
    weights_ = *synthesize_weights(shape_weights(small_config(2)), {}, 2);
  }
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const ModelWeights> weights_;
};

TEST_P(SmallModel, DecodesPrefillsAndBreaksTheTimeDown) {
  const Result<DecodeResult> decode = bench_decode(backend_, weights_, {}, {600, 2, 3, true});
  ASSERT_TRUE(decode) << decode.error().to_string();
  EXPECT_TRUE(decode->logits_finite);
  EXPECT_GE(decode->experts_per_layer, 2);
  EXPECT_LE(decode->experts_per_layer, 4);
  ASSERT_TRUE(decode->breakdown);
  double seconds = 0;
  std::set<std::string> names;
  for (const Breakdown::Row& row : decode->breakdown->rows) {
    names.insert(row.op);
    seconds += row.seconds_per_step;
    const double calls = row.op == "hc_seam"                                              ? 4
                         : row.op == "embed" || row.op == "hc_head" || row.op == "logits" ? 1
                         : row.op == "index_select" /* of the layer of ratio 4 */         ? 1
                                                                                          : 2;
    EXPECT_EQ(row.calls_per_step, calls) << row.op;
  }
  EXPECT_EQ(names.size(), 11u);
  EXPECT_NEAR(seconds, decode->breakdown->operator_seconds, 1e-9);
  EXPECT_GE(decode->breakdown->step_seconds, decode->breakdown->operator_seconds);

  const Result<PrefillResult> prefill = bench_prefill(backend_, weights_, {}, {96, 64, true});
  ASSERT_TRUE(prefill) << prefill.error().to_string();
  EXPECT_TRUE(prefill->logits_finite);
  EXPECT_TRUE(prefill->breakdown);
}

TEST_P(SmallModel, RunsEveryOperatorOfDecodeAndOfAPrompt) {
  for (const bool prompt : {false, true}) {
    const auto bench = OperatorBench::create(backend_, weights_, {}, {300, 5, prompt});
    ASSERT_TRUE(bench) << bench.error().to_string();
    int ran = 0;
    for (const std::string_view name : (*bench)->names()) {
      const auto result = (*bench)->run(name, {0, 1, 0.0});
      ASSERT_TRUE(result) << name;
      if (!*result) continue;  // ratio 0: no such layer
      ++ran;
      EXPECT_GE((*result)->calls, 1) << name;
      EXPECT_GT((*result)->cost.bytes, 0) << name;
      EXPECT_GT((*result)->cost.flops, 0) << name;
    }
    EXPECT_EQ(ran, 12);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SmallModel, ::testing::Values("cpu", "cpu-reference"),
                         [](const auto& param) {
                           return std::string(param.param) == "cpu" ? "fast" : "reference";
                         });

}  // namespace
}  // namespace pivot::cli
