// Identification from config and headers (specification 4.6), on checkpoints of every kind.
#include "checkpoint/identify.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot {
namespace {

using test::TinyFormat;
using test::TinyHead;
using test::TinyNames;
using test::TinyOptions;
namespace fs = std::filesystem;

TinyOptions small_options() {
  TinyOptions options;
  options.compress_ratios = {0, 4, 128};
  options.vocab_size = 32;
  options.hidden_size = 128;
  options.num_attention_heads = 2;
  options.head_dim = 128;
  options.o_lora_rank = 64;
  options.index_n_heads = 2;
  options.n_routed_experts = 4;
  options.num_shards = 1;
  return options;
}

Identification identify_folder(const fs::path& folder) {
  const auto checkpoint = Checkpoint::open(folder.string());
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  return identify(*checkpoint->config_text(), checkpoint->table());
}

Identification identify_tiny(const TinyOptions& options) {
  const fs::path folder = test::scratch_dir() / "model";
  write_tiny_checkpoint(folder, options);
  return identify_folder(folder);
}

std::int64_t count(const ExpertHistogram& histogram, ExpertFormat format) {
  return histogram[static_cast<std::size_t>(format)];
}

TEST(Identify, FormatsNamesAndHeads) {
  struct Case {
    TinyFormat format;
    TinyNames names;
    TinyHead head;
    ExpertFormat experts;
    DenseScale dense;
    const char* variant;
  };
  const Case cases[] = {
      {TinyFormat::kNative, TinyNames::kNative, TinyHead::kNone, ExpertFormat::kMxfp4, DenseScale::kE8M0,
       "without draft head"},
      {TinyFormat::kNative, TinyNames::kNative, TinyHead::kMtp, ExpertFormat::kMxfp4, DenseScale::kE8M0,
       "preview"},
      {TinyFormat::kNative, TinyNames::kNative, TinyHead::kDspark, ExpertFormat::kMxfp4, DenseScale::kE8M0,
       "0731 or DSpark"},
      {TinyFormat::kNvfp4, TinyNames::kNative, TinyHead::kMtp, ExpertFormat::kNvfp4ModelOpt,
       DenseScale::kE8M0, "NVFP4 (preview)"},
      {TinyFormat::kNvfp4Compressed, TinyNames::kNative, TinyHead::kNone, ExpertFormat::kNvfp4Compressed,
       DenseScale::kE8M0, "NVFP4 (without draft head)"},
      {TinyFormat::kFp8E8m0, TinyNames::kNative, TinyHead::kNone, ExpertFormat::kFp8E8m0, DenseScale::kE8M0,
       "FP8 conversion"},
      {TinyFormat::kFp8F32, TinyNames::kNative, TinyHead::kNone, ExpertFormat::kFp8F32, DenseScale::kF32,
       "Base"},
      {TinyFormat::kBf16, TinyNames::kNative, TinyHead::kNone, ExpertFormat::kBf16, DenseScale::kNone,
       "BF16 dump"},
      {TinyFormat::kFp8F32, TinyNames::kTransformers, TinyHead::kNone, ExpertFormat::kFp8F32,
       DenseScale::kF32, "Base"},
      {TinyFormat::kBf16, TinyNames::kTransformers, TinyHead::kNone, ExpertFormat::kBf16, DenseScale::kNone,
       "BF16 dump"},
  };
  for (const Case& expected : cases) {
    SCOPED_TRACE(expected.variant);
    TinyOptions options = small_options();
    options.format = expected.format;
    options.names = expected.names;
    options.head = expected.head;
    const Identification id = identify_tiny(options);
    EXPECT_TRUE(id.supported) << id.refusal;
    EXPECT_EQ(id.family, "DeepSeek-V4");
    EXPECT_EQ(id.variant, expected.variant);
    EXPECT_EQ(id.expert_format, expected.experts);
    EXPECT_EQ(count(id.backbone_experts, expected.experts), 3 * 4 * 3);
    EXPECT_EQ(id.dense_scale, expected.dense);
    EXPECT_EQ(id.style, expected.names == TinyNames::kNative ? NameStyle::kNative : NameStyle::kTransformers);
    EXPECT_EQ(id.draft_stages, expected.head == TinyHead::kNone  ? 0
                               : expected.head == TinyHead::kMtp ? 1
                                                                 : 3);
    EXPECT_EQ(count(id.draft_experts, ExpertFormat::kMxfp4), id.draft_stages * 4 * 3);
    EXPECT_EQ(id.layers, 3);
    EXPECT_EQ(id.experts_per_layer, 4);
    EXPECT_EQ(id.confidence, Confidence::kMedium);  // a size that nobody published
    EXPECT_FALSE(id.mixed_expert_formats);
  }
}

TEST(Identify, CopiesUnderMtpAreMentioned) {
  TinyOptions options = small_options();
  options.head = TinyHead::kMtp;
  options.mtp_copies = true;
  const Identification id = identify_tiny(options);
  EXPECT_TRUE(id.supported);
  EXPECT_NE(id.evidence.back().find("2 of them copies"), std::string::npos) << id.evidence.back();
}

TEST(Identify, IncompleteTensorsLowerTheVerdict) {
  const fs::path folder = test::scratch_dir() / "model";
  write_tiny_checkpoint(folder, small_options());
  auto config = nlohmann::json::parse(*read_file(folder / "config.json"));
  config["q_lora_rank"] = 256;
  const auto checkpoint = Checkpoint::open(folder.string());
  const Identification id = identify(config.dump(), checkpoint->table());
  EXPECT_FALSE(id.supported);
  EXPECT_NE(id.refusal.find("layers.0.attn.wq_a.weight"), std::string::npos);
  EXPECT_EQ(id.confidence, Confidence::kLow);
  EXPECT_EQ(id.expert_format, ExpertFormat::kMxfp4);  // what was seen is still told
}

TEST(Identify, ForeignAndUnreadableConfigs) {
  const TensorTable none;
  const Identification qwen = identify(R"({"model_type":"qwen3_moe"})", none);
  EXPECT_FALSE(qwen.supported);
  EXPECT_EQ(qwen.family, "Qwen3-MoE");
  EXPECT_NE(qwen.refusal.find("Qwen3-MoE"), std::string::npos);
  const Identification broken = identify("{", none);
  EXPECT_FALSE(broken.supported);
  EXPECT_EQ(broken.family, "unknown");
  EXPECT_FALSE(broken.refusal.empty());
}

// A config may describe more experts than memory could list names for; that must fail before they are listed.
TEST(Identify, WithoutAConfigOtherSizesStayUnknown) {
  const fs::path folder = test::scratch_dir() / "model";
  write_tiny_checkpoint(folder, small_options());
  const auto checkpoint = Checkpoint::open(folder.string());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const Identification id = identify("", checkpoint->table());
  EXPECT_EQ(id.family, "unknown");
  EXPECT_FALSE(id.supported);
  EXPECT_EQ(id.confidence, Confidence::kLow);
  EXPECT_NE(id.refusal.find("there is no config.json"), std::string::npos) << id.refusal;
}

TEST(Identify, AbsurdSizesAreRefusedCheaply) {
  const fs::path folder = test::scratch_dir() / "model";
  write_tiny_checkpoint(folder, small_options());
  auto config = nlohmann::json::parse(*read_file(folder / "config.json"));
  config["num_hidden_layers"] = 1024;
  config["compress_ratios"] = std::vector<int>(1024, 0);
  config["n_routed_experts"] = 4096;
  const auto checkpoint = Checkpoint::open(folder.string());
  const Identification id = identify(config.dump(), checkpoint->table());
  EXPECT_FALSE(id.supported);
  EXPECT_NE(id.refusal.find("1024 layers of 4096 experts"), std::string::npos) << id.refusal;
}

}  // namespace
}  // namespace pivot
