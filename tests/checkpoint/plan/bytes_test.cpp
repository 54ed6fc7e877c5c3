// Byte and FLOP counts of the published geometry against specification 4.1, 4.3, 5 and the public header
// totals.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/plan/memory.h"
#include "flash.h"
#include "support/test_data.h"

namespace pivot {
namespace {

using test::flash_facts;
using test::flash_with_draft;
using test::native_formats;

std::int64_t total(const std::vector<StoredDeclaration>& tensors) {
  std::int64_t sum = 0;
  for (const StoredDeclaration& tensor : tensors) sum += tensor.bytes();
  return sum;
}

TEST(WeightBytes, BackboneIsTheSpecificationsToTheByte) {
  const auto tensors = stored_tensors(flash_with_draft(), native_formats(HeadKind::kNone, 0));
  EXPECT_EQ(tensors.size(), 67612u);
  const ModelBytes bytes = model_bytes(tensors);
  EXPECT_EQ(bytes.of(Module::kRoutedExpert), 147'169'738'752);
  EXPECT_EQ(bytes.of(Module::kRoutedExpert) / (43 * 256), 13'369'344);
  EXPECT_EQ(bytes.backbone() - bytes.of(Module::kRoutedExpert), 8'845'959'388);
  EXPECT_EQ(bytes.other, 0);
}

TEST(WeightBytes, PreviewEqualsThePublishedDataSize) {
  const auto tensors = stored_tensors(flash_with_draft(), native_formats(HeadKind::kMtp, 1));
  EXPECT_EQ(tensors.size(), 69187u);
  EXPECT_EQ(total(tensors), 159'609'485'896);
}

TEST(WeightBytes, ReleaseWithDsparkEqualsThePublishedDataSize) {
  const auto tensors = stored_tensors(flash_with_draft(3), native_formats(HeadKind::kDspark, 3));
  EXPECT_EQ(tensors.size(), 72317u);
  EXPECT_EQ(total(tensors), 166'878'536'440);
}

TEST(WeightBytes, Nvfp4CountsAndSizes) {
  CheckpointFormats formats = native_formats(HeadKind::kMtp, 1);
  formats.experts = ExpertFormat::kNvfp4ModelOpt;
  const auto preview = stored_tensors(flash_with_draft(), formats);
  EXPECT_EQ(preview.size(), 135235u);
  EXPECT_EQ(total(preview), 168'266'793'544);
  formats.head = HeadKind::kDspark;
  formats.draft_stages = 3;
  const auto release = stored_tensors(flash_with_draft(3), formats);
  EXPECT_EQ(release.size(), 138365u);
  EXPECT_NEAR(static_cast<double>(total(release)) / (1 << 30), 163.5, 0.05);
}

TEST(WeightBytes, PerLayerTablesOfThePerformanceNotes) {
  const ModelBytes bytes = flash_facts().bytes;
  const auto megabytes = [&](int layer, Module module) {
    return static_cast<double>(bytes.layers[static_cast<std::size_t>(layer)].of(module)) / 1e6;
  };
  EXPECT_NEAR(megabytes(0, Module::kAttention), 4.195 + 33.556 + 2.097 + 33.556 + 33.556, 0.005);
  EXPECT_NEAR(megabytes(2, Module::kCompressor), 16.795, 0.001);
  EXPECT_NEAR(megabytes(3, Module::kCompressor), 8.652, 0.001);
  EXPECT_NEAR(megabytes(2, Module::kIndexer), 13.112, 0.001);
  EXPECT_NEAR(megabytes(5, Module::kSharedExpert), 25.167, 0.001);
  EXPECT_NEAR(megabytes(5, Module::kRouter), 2.098, 0.001);
  EXPECT_NEAR(megabytes(5, Module::kHyperConnection), 3.146, 0.001);
  EXPECT_EQ(bytes.of(Module::kHashTable), 3LL * 129280 * 6 * 8);
  // A decoded token reads 11.22 GB, of which 1.30 GB sit on every rank.
  EXPECT_NEAR(weight_bytes_read(flash_facts(), 1) / 1e6, 11217.6, 1.0);
  const double replicated =
      static_cast<double>(bytes.replicated() - bytes.of(Module::kEmbedding) - bytes.of(Module::kHashTable));
  EXPECT_NEAR(replicated / 1e9, 1.30, 0.005);
}

// The same totals from the published headers, module by module (performance notes 1.1, specification 4.1).
struct HeaderTotals {
  const char* headers;
  std::int64_t total;
  std::int64_t draft;
  std::int64_t routed;
  const char* gibibytes;
};

TEST(WeightBytes, PublishedHeadersByModule) {
  PIVOT_NEED_DATA(headers, "real/headers");
  for (const HeaderTotals& one : {HeaderTotals{"DeepSeek-V4-Flash.headers.json.gz", 159'609'485'896,
                                               3'593'787'756, 147'169'738'752, "148.65"},
                                  HeaderTotals{"DeepSeek-V4-Flash-0731.headers.json.gz", 166'878'536'440,
                                               10'862'838'300, 147'169'738'752, "155.42"},
                                  HeaderTotals{"nvidia-DeepSeek-V4-Flash-NVFP4.headers.DERIVED.json.gz",
                                               168'266'793'544, 3'593'787'756, 155'827'046'400, "156.71"}}) {
    SCOPED_TRACE(one.headers);
    const auto table = load_header_dump(headers / one.headers);
    ASSERT_TRUE(table) << table.error().to_string();
    const ModelBytes bytes = model_bytes(*table);
    EXPECT_EQ(bytes.total(), one.total);
    EXPECT_EQ(bytes.draft(), one.draft);
    EXPECT_EQ(bytes.of(Module::kRoutedExpert), one.routed);
    EXPECT_EQ(fmt::format("{:.2f}", static_cast<double>(one.total) / (1 << 30)), one.gibibytes);
    // Everything but experts is the same in all three, to the byte.
    EXPECT_EQ(bytes.backbone() - bytes.of(Module::kRoutedExpert), 8'845'959'388);
    EXPECT_EQ(bytes.of(Module::kEmbedding), 1'059'061'760);
    EXPECT_EQ(bytes.of(Module::kHead), 1'059'061'760);
    EXPECT_EQ(bytes.of(Module::kHashTable), 18'616'320);
    EXPECT_EQ(bytes.other, 0);
    // And the schema of the same formats computes what the headers say, block by block.
    const ModelBytes computed =
        model_bytes(stored_tensors(flash_with_draft(), native_formats(HeadKind::kNone, 0)));
    for (std::size_t layer = 0; layer < 43; ++layer)
      for (int m = 0; m < kNumModules; ++m) {
        const auto module = static_cast<Module>(m);
        if (module == Module::kRoutedExpert) continue;
        EXPECT_EQ(bytes.layers[layer].of(module), computed.layers[layer].of(module))
            << layer << " " << module_name(module);
      }
  }
}

struct CacheCase {
  KvFormat kv;
  IndexFormat index;
  double bytes_per_token;
};

TEST(CacheBytes, PerTokenTableOfTheSpecification) {
  for (const CacheCase& one : {CacheCase{KvFormat::kBf16, IndexFormat::kBf16, 6880},
                               CacheCase{KvFormat::kPacked, IndexFormat::kBf16, 4501.25},
                               CacheCase{KvFormat::kPacked, IndexFormat::kFp8, 3850.25},
                               CacheCase{KvFormat::kPacked, IndexFormat::kFp4, 3514.25}}) {
    EXPECT_EQ(cache_bytes(flash_with_draft(), {one.kv, one.index}, 1).per_token(), one.bytes_per_token);
  }
}

TEST(CacheBytes, FixedPerSequence) {
  const CacheBytes bytes = cache_bytes(flash_with_draft(), {}, 3);
  EXPECT_EQ(bytes.rings, 43 * 128 * 584);
  EXPECT_EQ(bytes.draft_rings, 3 * 128 * 584);
  EXPECT_EQ(bytes.compressor_state, 21 * (65'536 + 16'384) + 20 * 524'288);
  EXPECT_EQ(cache_bytes(flash_with_draft(), {KvFormat::kBf16, IndexFormat::kBf16}, 0).rings, 43 * 128 * 1024);
}

TEST(CacheBytes, ReadsPerDecodedToken) {
  const auto reads = [](double context, IndexFormat index = IndexFormat::kFp8) {
    return cache_reads(flash_with_draft(), {KvFormat::kPacked, index}, context);
  };
  // Megabytes at 1K, 4K ... 1M tokens: performance notes 1.3.
  const double contexts[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 17, 1 << 19, 1 << 20};
  const double fp8[] = {7.2, 12.7, 22.3, 60.9, 112, 421, 832};
  const double fp4[] = {6.8, 11.3, 16.8, 38.9, 68, 245, 480};
  for (std::size_t i = 0; i < std::size(contexts); ++i) {
    EXPECT_NEAR(reads(contexts[i]).total() / 1e6, fp8[i], fp8[i] * 0.007) << contexts[i];
    EXPECT_NEAR(reads(contexts[i], IndexFormat::kFp4).total() / 1e6, fp4[i], fp4[i] * 0.007) << contexts[i];
  }
  EXPECT_NEAR(reads(1 << 17).index / 1e6, 90.8, 0.1);
  EXPECT_NEAR(reads(1 << 17, IndexFormat::kFp4).index / 1e6, 46.8, 0.1);
}

TEST(Flops, PerTokenAndPerPrompt) {
  const Flops token = gemm_flops(flash_with_draft());
  EXPECT_NEAR(token.dense / 1e9, 11.71, 0.01);
  EXPECT_NEAR(token.routed / 1e9, 12.99, 0.01);
  EXPECT_NEAR(token.small / 1e9, 0.78, 0.01);
  const Flops at_4k = decode_flops(flash_with_draft(), 4096);
  EXPECT_NEAR((at_4k.attention + at_4k.index) / 1e9, 2.6, 0.05);
  EXPECT_NEAR(at_4k.index / 1e9, 0.35, 0.01);

  const Flops prompt = prefill_flops(flash_with_draft(), 8192);  // performance notes 1.5, row 8K
  EXPECT_NEAR(prompt.dense / 1e12, 96.0, 0.1);
  EXPECT_NEAR(prompt.routed / 1e12, 106.4, 0.1);
  EXPECT_NEAR(prompt.attention / 1e12, 16.0 + 0.7, 0.1);
  EXPECT_NEAR(prompt.index / 1e12, 2.9, 0.05);
  EXPECT_NEAR(prefill_flops(flash_with_draft(), 1 << 20).total() / 1e15, 87.5, 0.2);
}

TEST(Flops, PromptSumEqualsTheSumOverPositions) {
  ModelConfig config = flash_with_draft();
  config.index_topk = 5;
  for (const std::int64_t tokens : {1, 2, 3, 4, 5, 19, 20, 21, 127, 128, 129, 300}) {
    double attention = 0;
    double index = 0;
    const double per_row = 4.0 * static_cast<double>(config.num_attention_heads * config.head_dim);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (const int ratio : config.compress_ratios) {
        attention += per_row * static_cast<double>(std::min<std::int64_t>(t + 1, config.sliding_window));
        if (ratio == 4) {
          attention += per_row * static_cast<double>(std::min<std::int64_t>((t + 1) / 4, config.index_topk));
          index += 2.0 * 64 * 128 * static_cast<double>((t + 1) / 4);
        }
        if (ratio == 128) attention += per_row * static_cast<double>((t + 1) / 128);
      }
    }
    const Flops flops = prefill_flops(config, tokens);
    EXPECT_DOUBLE_EQ(flops.attention, attention) << tokens;
    EXPECT_DOUBLE_EQ(flops.index, index) << tokens;
  }
}

}  // namespace
}  // namespace pivot
