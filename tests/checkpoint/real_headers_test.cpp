// The schema against the headers of the published checkpoints: every tensor has its place, none is left over.
#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/identify.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "support/test_data.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

struct Release {
  const char* headers;
  const char* config;
  std::size_t tensors;
  std::size_t backbone_tensors;  // without mtp.*
  std::uint64_t data_bytes;
  HeadKind head;
  int stages;
  ExpertFormat experts;
  const char* variant;
  bool pruned;
};

// Counts of specification 4.1 and 4.3; byte totals as published with the headers.
constexpr Release kReleases[] = {
    {"DeepSeek-V4-Flash.headers.json.gz", "DeepSeek-V4-Flash", 69187, 67612, 159609485896, HeadKind::kMtp, 1,
     ExpertFormat::kMxfp4, "preview", false},
    {"DeepSeek-V4-Flash-0731.headers.json.gz", "DeepSeek-V4-Flash-0731", 72317, 67612, 166878536440,
     HeadKind::kDspark, 3, ExpertFormat::kMxfp4, "0731 or DSpark", false},
    {"DeepSeek-V4-Flash-0731-REAP160.headers.json.gz", "DeepSeek-V4-Flash-0731-REAP160", 45821, 42844,
     107803320952, HeadKind::kDspark, 3, ExpertFormat::kMxfp4, "0731 or DSpark, pruned to 160 of 256 experts",
     true},
    {"nvidia-DeepSeek-V4-Flash-NVFP4.headers.DERIVED.json.gz", "nvidia-DeepSeek-V4-Flash-NVFP4", 135235,
     133660, 168266793544, HeadKind::kMtp, 1, ExpertFormat::kNvfp4ModelOpt, "NVFP4 (preview)", false},
};

std::string config_text(const fs::path& configs, const char* folder) {
  return *read_file(configs / folder / "config.json");
}

std::size_t count_stored(const ModelLayout& layout, bool draft) {
  std::size_t count = 0;
  for (const StoredTensor& tensor : layout.tensors) {
    if (tensor.schema.draft != draft) continue;
    for (const TensorInfo* part : {tensor.weight, tensor.scale, tensor.global_scale, tensor.input_scale}) {
      count += part != nullptr ? 1 : 0;
    }
  }
  return count;
}

TEST(RealHeaders, EveryTensorHasExactlyOnePlace) {
  PIVOT_NEED_DATA(headers, "real/headers");
  PIVOT_NEED_DATA(configs, "real/configs");
  for (const Release& release : kReleases) {
    SCOPED_TRACE(release.headers);
    const auto table = load_header_dump(headers / release.headers);
    ASSERT_TRUE(table.has_value()) << table.error().to_string();
    EXPECT_EQ(table->size(), release.tensors);
    EXPECT_EQ(table->data_bytes(), release.data_bytes);
    const std::string text = config_text(configs, release.config);
    const auto config = parse_model_config(text, release.config);
    ASSERT_TRUE(config.has_value()) << config.error().to_string();
    const auto quantization = parse_quantization(text, "", release.config);
    ASSERT_TRUE(quantization.has_value());
    const auto layout = resolve_layout(*config, *quantization, *table);
    ASSERT_TRUE(layout.has_value()) << layout.error().to_string();
    EXPECT_EQ(layout->head, release.head);
    EXPECT_EQ(layout->draft_stages, release.stages);
    EXPECT_TRUE(layout->skipped.empty());
    EXPECT_EQ(count_stored(*layout, false), release.backbone_tensors);
    EXPECT_EQ(count_stored(*layout, true), release.tensors - release.backbone_tensors);
  }
}

// 0731 in NVFP4 has 138,365 tensors (specification 4.3): the 0731 headers with every backbone expert
// re-encoded.
TEST(RealHeaders, Nvfp4Of0731HasThePublishedCount) {
  PIVOT_NEED_DATA(headers, "real/headers");
  PIVOT_NEED_DATA(configs, "real/configs");
  const auto source = load_header_dump(headers / "DeepSeek-V4-Flash-0731.headers.json.gz");
  ASSERT_TRUE(source.has_value());
  Problems problems;
  TensorTableBuilder builder(problems);
  std::vector<TensorInfo> tensors;
  std::uint64_t offset = 0;
  auto add = [&](std::string name, DType dtype, Shape shape) {
    const auto bytes = static_cast<std::uint64_t>(TensorView{dtype, shape, nullptr}.bytes());
    tensors.push_back({std::move(name), dtype, std::move(shape), offset, offset + bytes, 0});
    offset += bytes;
  };
  for (const TensorInfo& tensor : source->tensors()) {
    const bool expert =
        tensor.name.rfind("layers.", 0) == 0 && tensor.name.find(".experts.") != std::string::npos;
    if (!expert) {
      add(tensor.name, tensor.dtype, tensor.shape);
    } else if (tensor.dtype == DType::kI8) {
      const std::string stem = tensor.name.substr(0, tensor.name.rfind('.'));
      add(tensor.name, DType::kU8, tensor.shape);
      add(stem + ".weight_scale", DType::kF8E4M3, {tensor.shape[0], tensor.shape[1] / 8});
      add(stem + ".weight_scale_2", DType::kF32, {});
      add(stem + ".input_scale", DType::kF32, {});
    }
  }
  builder.append("all", std::move(tensors), {}, std::nullopt, 0, true);
  const TensorTable table = builder.finish();
  ASSERT_TRUE(problems.empty());
  EXPECT_EQ(table.size(), 138365u);
  const std::string text = config_text(configs, "nvidia-DeepSeek-V4-Flash-0731-NVFP4");
  const Identification id = identify(text, table);
  EXPECT_TRUE(id.supported) << id.refusal;
  EXPECT_EQ(id.variant, "NVFP4 (0731 or DSpark)");
  EXPECT_EQ(id.draft_experts[static_cast<std::size_t>(ExpertFormat::kMxfp4)], 3 * 256 * 3);
}

TEST(RealHeaders, AreIdentified) {
  PIVOT_NEED_DATA(headers, "real/headers");
  PIVOT_NEED_DATA(configs, "real/configs");
  for (const Release& release : kReleases) {
    SCOPED_TRACE(release.headers);
    const auto table = load_header_dump(headers / release.headers);
    ASSERT_TRUE(table.has_value());
    const Identification id = identify(config_text(configs, release.config), *table);
    EXPECT_TRUE(id.supported) << id.refusal;
    EXPECT_EQ(id.family, "DeepSeek-V4-Flash");
    EXPECT_EQ(id.variant, release.variant);
    EXPECT_EQ(id.style, NameStyle::kNative);
    EXPECT_EQ(id.expert_format, release.experts);
    EXPECT_EQ(id.head, release.head);
    EXPECT_EQ(id.draft_stages, release.stages);
    EXPECT_EQ(id.layers, 43);
    EXPECT_EQ(id.dense_scale, DenseScale::kE8M0);
    EXPECT_EQ(id.pruned, release.pruned);
    EXPECT_EQ(id.experts_per_layer, release.pruned ? 160 : 256);
    EXPECT_EQ(id.confidence, Confidence::kHigh);
    EXPECT_FALSE(id.mixed_expert_formats);
    EXPECT_GE(id.evidence.size(), 6u);
  }
}

// A config of one release beside the tensors of another must not pass.
TEST(RealHeaders, MismatchedConfigsAreRefused) {
  PIVOT_NEED_DATA(headers, "real/headers");
  PIVOT_NEED_DATA(configs, "real/configs");
  const auto table = load_header_dump(headers / "DeepSeek-V4-Flash-0731-REAP160.headers.json.gz");
  ASSERT_TRUE(table.has_value());
  const Identification wrong_experts = identify(config_text(configs, "DeepSeek-V4-Flash-0731"), *table);
  EXPECT_FALSE(wrong_experts.supported);
  EXPECT_NE(wrong_experts.refusal.find("is missing"), std::string::npos);
  const Identification no_dspark = identify(config_text(configs, "DeepSeek-V4-Flash"), *table);
  EXPECT_FALSE(no_dspark.supported);
  EXPECT_NE(no_dspark.refusal.find("dspark_block_size"), std::string::npos);
  const Identification v41 = identify(config_text(configs, "DeepSeek-V4.1-Flash"), *table);
  EXPECT_FALSE(v41.supported);
  EXPECT_EQ(v41.family, "DeepSeek-V4.1");
  EXPECT_EQ(v41.confidence, Confidence::kHigh);
}

}  // namespace
}  // namespace pivot
