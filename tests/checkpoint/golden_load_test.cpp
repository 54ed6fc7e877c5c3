// Loading the golden checkpoints and the embedded model: values against the SHA-256 digests that come
// with them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/identify.h"
#include "checkpoint/layout.h"
#include "checkpoint/load.h"
#include "checkpoint/materialize.h"
#include "checkpoint/sha256.h"
#include "support/embedded_model.h"
#include "support/test_data.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

std::string digest_bf16(const Matrix& matrix) {
  std::vector<BF16> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  dequantize_rows(matrix, 0, matrix.rows, std::span<BF16>(values));
  return test::sha256_hex(std::as_bytes(std::span(values)));
}

std::string digest_f32(const Matrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  dequantize_rows(matrix, 0, matrix.rows, std::span<float>(values));
  return test::sha256_hex(std::as_bytes(std::span(values)));
}

// Compares every quantised matrix of a folder with the digests; returns how many were compared.
std::size_t check_digests(const fs::path& folder, const fs::path& digest_file) {
  const auto digests = nlohmann::json::parse(*read_file(digest_file));
  const auto checkpoint = Checkpoint::open(folder.string());
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  const auto config = parse_model_config(*checkpoint->config_text(), "config.json");
  const auto quantization =
      parse_quantization(*checkpoint->config_text(), checkpoint->hf_quant_text().value_or(""), "config.json");
  const auto layout = resolve_layout(*config, *quantization, checkpoint->table());
  EXPECT_TRUE(layout.has_value()) << layout.error().to_string();
  WeightArena arena;
  Problems problems;
  Materializer materializer(*checkpoint, arena, problems, true);
  std::size_t compared = 0;
  for (const StoredTensor& tensor : layout->tensors) {
    if (!tensor.is_matrix || tensor.scale == nullptr) continue;
    const bool nvfp4 = tensor.format == MatrixFormat::kNVFP4;
    const std::string key = tensor.name + (nvfp4 ? "#nvfp4_f32" : "");
    EXPECT_TRUE(digests.contains(key)) << key;
    if (!digests.contains(key)) continue;
    const Matrix matrix = materializer.matrix(tensor);
    EXPECT_EQ(nvfp4 ? digest_f32(matrix) : digest_bf16(matrix), digests[key].get<std::string>()) << key;
    ++compared;
  }
  EXPECT_TRUE(problems.empty());
  return compared;
}

TEST(Goldens, NativeLoadsWithItsMtpBlock) {
  PIVOT_NEED_DATA(folder, "goldens/native");
  const auto model = load_model(folder.string());
  ASSERT_TRUE(model.has_value()) << model.error().to_string();
  EXPECT_EQ((*model)->layers.size(), 5u);
  EXPECT_TRUE((*model)->mtp.has_value());
  EXPECT_EQ((*model)->layers[2].attn.compressor->wkv.rows, 256);
  EXPECT_EQ((*model)->layers[0].ffn.tid2eid.size(), 512u * 3u);
  EXPECT_EQ((*model)->layers[0].ffn.experts[0].w1.format, MatrixFormat::kFP4);
}

TEST(Goldens, Nvfp4LoadsWithNativeDraftExperts) {
  PIVOT_NEED_DATA(folder, "goldens/nvfp4");
  const auto model = load_model(folder.string());
  ASSERT_TRUE(model.has_value()) << model.error().to_string();
  EXPECT_EQ((*model)->layers[4].ffn.experts[7].w2.format, MatrixFormat::kNVFP4);
  EXPECT_GT((*model)->layers[4].ffn.experts[7].w2.input_scale, 0.0f);
  EXPECT_EQ((*model)->mtp->block.ffn.experts[7].w2.format, MatrixFormat::kFP4);
}

TEST(Goldens, DequantisedValuesMatchTheirDigests) {
  PIVOT_NEED_DATA(goldens, "goldens");
  const fs::path digests = goldens / "dequant_sha256.json";
  EXPECT_EQ(check_digests(goldens / "native", digests), 196u);
  EXPECT_EQ(check_digests(goldens / "nvfp4", digests), 196u);
}

TEST(GoldensWide, BothFormatsLoadAndMatchTheirDigests) {
  PIVOT_NEED_DATA(goldens, "goldens-wide");
  const fs::path digests = goldens / "dequant_sha256.json";
  const auto native = load_model((goldens / "native").string());
  ASSERT_TRUE(native.has_value()) << native.error().to_string();
  EXPECT_FALSE((*native)->mtp.has_value());
  EXPECT_GT(check_digests(goldens / "native", digests), 72u);
  // Only the shard that differs is stored: the other one is linked from the native folder.
  const fs::path twin = test::scratch_dir() / "nvfp4_lossless";
  fs::create_directories(twin);
  for (const auto& entry : fs::directory_iterator(goldens / "nvfp4_lossless")) {
    fs::create_symlink(entry.path(), twin / entry.path().filename());
  }
  fs::create_symlink(goldens / "native" / "model-00001-of-00002.safetensors",
                     twin / "model-00001-of-00002.safetensors");
  EXPECT_GT(check_digests(twin, digests), 72u);
  const auto nvfp4 = load_model(twin.string());
  ASSERT_TRUE(nvfp4.has_value()) << nvfp4.error().to_string();
  // A lossless cast: equal values in all 72 expert matrices.
  for (std::size_t layer = 0; layer < 3; ++layer) {
    for (std::size_t expert = 0; expert < 8; ++expert) {
      const ExpertWeights& a = (*native)->layers[layer].ffn.experts[expert];
      const ExpertWeights& b = (*nvfp4)->layers[layer].ffn.experts[expert];
      EXPECT_EQ(digest_f32(a.w1), digest_f32(b.w1));
      EXPECT_EQ(digest_f32(a.w3), digest_f32(b.w3));
      EXPECT_EQ(digest_f32(a.w2), digest_f32(b.w2));
    }
  }
}

TEST(EmbeddedModel, LoadsAndIsIdentified) {
  const fs::path folder = test::embedded_model_dir();
  const auto model = load_model(folder.string());
  ASSERT_TRUE(model.has_value()) << model.error().to_string();
  EXPECT_EQ((*model)->layers.size(), 5u);
  EXPECT_EQ((*model)->config.index_topk, 64);
  EXPECT_EQ((*model)->layers[1].ffn.experts.size(), 16u);
  EXPECT_EQ((*model)->embed.rows, 4096);
  const auto checkpoint = Checkpoint::open(folder.string());
  const Identification id = identify(*checkpoint->config_text(), checkpoint->table());
  EXPECT_TRUE(id.supported) << id.refusal;
  EXPECT_EQ(id.family, "DeepSeek-V4");
  EXPECT_EQ(id.variant, "without draft head");
  EXPECT_EQ(id.confidence, Confidence::kMedium);
}

}  // namespace
}  // namespace pivot
