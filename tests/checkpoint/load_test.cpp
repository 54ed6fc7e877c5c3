// Loading tiny checkpoints: every format and naming style holds the same model; every fault is refused by
// name.
#include "checkpoint/load.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/safetensors_writer.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot {
namespace {

using test::TinyFormat;
using test::TinyHead;
using test::TinyNames;
using test::TinyOptions;
namespace fs = std::filesystem;

// Small enough that a test writes and loads it in milliseconds.
TinyOptions small_options() {
  TinyOptions options;
  options.compress_ratios = {0, 4, 128};
  options.vocab_size = 64;
  options.hidden_size = 128;
  options.num_attention_heads = 2;
  options.head_dim = 128;
  options.q_lora_rank = 128;
  options.o_lora_rank = 64;
  options.index_n_heads = 2;
  options.n_routed_experts = 4;
  return options;
}

std::shared_ptr<const ModelWeights> load_ok(const fs::path& folder) {
  auto model = load_model(folder.string());
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().to_string());
  return model ? *model : nullptr;
}

std::string load_error(const fs::path& folder) {
  const auto model = load_model(folder.string());
  EXPECT_FALSE(model.has_value());
  return model ? "" : model.error().to_string();
}

std::vector<float> values_of(const Matrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  dequantize_rows(matrix, 0, matrix.rows, std::span<float>(values));
  return values;
}

void expect_same_span(FloatSpan a, FloatSpan b) {
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

void expect_same_block(const LayerWeights& a, const LayerWeights& b) {
  expect_same_span(a.attn_norm, b.attn_norm);
  expect_same_span(a.ffn_norm, b.ffn_norm);
  expect_same_span(a.attn_hc.fn, b.attn_hc.fn);
  expect_same_span(a.ffn_hc.base, b.ffn_hc.base);
  expect_same_span(a.attn.attn_sink, b.attn.attn_sink);
  EXPECT_EQ(values_of(a.attn.wq_a), values_of(b.attn.wq_a));
  EXPECT_EQ(values_of(a.attn.wq_b), values_of(b.attn.wq_b));
  EXPECT_EQ(values_of(a.attn.wkv), values_of(b.attn.wkv));
  EXPECT_EQ(values_of(a.attn.wo_a), values_of(b.attn.wo_a));
  EXPECT_EQ(values_of(a.attn.wo_b), values_of(b.attn.wo_b));
  ASSERT_EQ(a.attn.compressor.has_value(), b.attn.compressor.has_value());
  ASSERT_EQ(a.attn.indexer.has_value(), b.attn.indexer.has_value());
  if (a.attn.compressor) {
    EXPECT_EQ(values_of(a.attn.compressor->wkv), values_of(b.attn.compressor->wkv));
    expect_same_span(a.attn.compressor->ape, b.attn.compressor->ape);
  }
  if (a.attn.indexer) {
    EXPECT_EQ(values_of(a.attn.indexer->wq_b), values_of(b.attn.indexer->wq_b));
    EXPECT_EQ(values_of(a.attn.indexer->weights_proj), values_of(b.attn.indexer->weights_proj));
    EXPECT_EQ(values_of(a.attn.indexer->compressor.wgate), values_of(b.attn.indexer->compressor.wgate));
  }
  EXPECT_EQ(values_of(a.ffn.gate), values_of(b.ffn.gate));
  expect_same_span(a.ffn.bias, b.ffn.bias);
  EXPECT_TRUE(
      std::equal(a.ffn.tid2eid.begin(), a.ffn.tid2eid.end(), b.ffn.tid2eid.begin(), b.ffn.tid2eid.end()));
  ASSERT_EQ(a.ffn.experts.size(), b.ffn.experts.size());
  for (std::size_t e = 0; e < a.ffn.experts.size(); ++e) {
    EXPECT_EQ(values_of(a.ffn.experts[e].w1), values_of(b.ffn.experts[e].w1)) << "expert " << e;
    EXPECT_EQ(values_of(a.ffn.experts[e].w3), values_of(b.ffn.experts[e].w3)) << "expert " << e;
    EXPECT_EQ(values_of(a.ffn.experts[e].w2), values_of(b.ffn.experts[e].w2)) << "expert " << e;
  }
  EXPECT_EQ(values_of(a.ffn.shared.w2), values_of(b.ffn.shared.w2));
}

TEST(LoadModel, EveryFormatAndNamingHoldsTheSameValues) {
  const fs::path scratch = test::scratch_dir();
  write_tiny_checkpoint(scratch / "native", small_options());
  const auto native = load_ok(scratch / "native");
  ASSERT_NE(native, nullptr);
  struct Twin {
    const char* name;
    TinyFormat format;
    TinyNames names;
    MatrixFormat experts;
    MatrixFormat dense;
  };
  const Twin twins[] = {
      {"nvfp4", TinyFormat::kNvfp4, TinyNames::kNative, MatrixFormat::kNVFP4, MatrixFormat::kFP8},
      {"nvfp4c", TinyFormat::kNvfp4Compressed, TinyNames::kNative, MatrixFormat::kNVFP4, MatrixFormat::kFP8},
      {"fp8", TinyFormat::kFp8E8m0, TinyNames::kNative, MatrixFormat::kFP8, MatrixFormat::kFP8},
      {"base", TinyFormat::kFp8F32, TinyNames::kNative, MatrixFormat::kFP8, MatrixFormat::kFP8},
      {"bf16", TinyFormat::kBf16, TinyNames::kNative, MatrixFormat::kBF16, MatrixFormat::kBF16},
      {"hf_fp8", TinyFormat::kFp8E8m0, TinyNames::kTransformers, MatrixFormat::kFP8, MatrixFormat::kFP8},
      {"hf_base", TinyFormat::kFp8F32, TinyNames::kTransformers, MatrixFormat::kFP8, MatrixFormat::kFP8},
      {"hf_bf16", TinyFormat::kBf16, TinyNames::kTransformers, MatrixFormat::kBF16, MatrixFormat::kBF16},
  };
  for (const Twin& twin : twins) {
    SCOPED_TRACE(twin.name);
    TinyOptions options = small_options();
    options.format = twin.format;
    options.names = twin.names;
    write_tiny_checkpoint(scratch / twin.name, options);
    const auto model = load_ok(scratch / twin.name);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->layers[0].ffn.experts[1].w3.format, twin.experts);
    EXPECT_EQ(model->layers[0].attn.wo_a.format, twin.dense);
    EXPECT_EQ(values_of(model->embed), values_of(native->embed));
    EXPECT_EQ(values_of(model->head), values_of(native->head));
    expect_same_span(model->norm, native->norm);
    expect_same_span(model->hc_head.fn, native->hc_head.fn);
    ASSERT_EQ(model->layers.size(), native->layers.size());
    for (std::size_t i = 0; i < native->layers.size(); ++i)
      expect_same_block(model->layers[i], native->layers[i]);
    EXPECT_NE(model->fingerprint, native->fingerprint);
    if (twin.experts == MatrixFormat::kNVFP4) {
      EXPECT_NEAR(model->layers[0].ffn.experts[0].w1.input_scale, 0.002f, 1e-8f);
    }
  }
}

TEST(LoadModel, PartsFollowTheCompressionRatio) {
  const fs::path folder = test::scratch_dir() / "model";
  write_tiny_checkpoint(folder, small_options());
  const auto model = load_ok(folder);
  ASSERT_NE(model, nullptr);
  const auto& layers = model->layers;
  EXPECT_FALSE(layers[0].attn.compressor.has_value());
  ASSERT_TRUE(layers[1].attn.compressor && layers[1].attn.indexer);
  ASSERT_TRUE(layers[2].attn.compressor.has_value());
  EXPECT_FALSE(layers[2].attn.indexer.has_value());
  EXPECT_EQ(layers[1].attn.compressor->ratio, 4);
  EXPECT_EQ(layers[1].attn.compressor->width, 128);
  EXPECT_EQ(layers[1].attn.compressor->wkv.rows, 256);  // series A and B
  EXPECT_EQ(layers[2].attn.compressor->wkv.rows, 128);
  EXPECT_EQ(layers[2].attn.compressor->ape.size(), 128u * 128u);
  EXPECT_EQ(layers[0].ffn.tid2eid.size(), 64u * 2u);
  EXPECT_TRUE(layers[0].ffn.bias.empty());
  EXPECT_EQ(layers[1].ffn.bias.size(), 4u);
  EXPECT_FALSE(layers[0].attn_hc.fn_is_bf16);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(layers[0].attn_norm.data()) % 64, 0u);
  EXPECT_FALSE(model->mtp || model->dspark);
}

TEST(LoadModel, DraftHeadsAreBoundAndTheirCopiesSkipped) {
  const fs::path scratch = test::scratch_dir();
  TinyOptions options = small_options();
  options.head = TinyHead::kMtp;
  options.mtp_copies = true;
  options.format = TinyFormat::kNvfp4;  // draft experts stay FP4: decided per tensor
  write_tiny_checkpoint(scratch / "mtp", options);
  auto model = load_ok(scratch / "mtp");
  ASSERT_NE(model, nullptr);
  ASSERT_TRUE(model->mtp.has_value());
  EXPECT_EQ(model->mtp->block.ffn.experts[0].w1.format, MatrixFormat::kFP4);
  EXPECT_EQ(model->layers[0].ffn.experts[0].w1.format, MatrixFormat::kNVFP4);
  EXPECT_EQ(model->mtp->e_proj.rows, 128);
  EXPECT_EQ(model->mtp->hc_head.fn.size(), 4u * 4u * 128u);
  EXPECT_EQ(model->mtp->block.ffn.bias.size(), 4u);

  options = small_options();
  options.head = TinyHead::kDspark;
  write_tiny_checkpoint(scratch / "dspark", options);
  model = load_ok(scratch / "dspark");
  ASSERT_NE(model, nullptr);
  ASSERT_TRUE(model->dspark.has_value());
  EXPECT_EQ(model->dspark->stages.size(), 3u);
  EXPECT_EQ(model->dspark->main_proj.cols, 3 * 128);
  EXPECT_EQ(model->dspark->markov_w1.cols, 16);
  EXPECT_EQ(model->dspark->confidence_proj.cols, 128 + 16);
  EXPECT_EQ(model->config.draft_compress_ratios.size(), 3u);

  LoadOptions no_draft;
  no_draft.draft = false;
  const auto without = load_model((scratch / "dspark").string(), no_draft);
  ASSERT_TRUE(without.has_value());
  EXPECT_FALSE((*without)->dspark.has_value());
}

TEST(LoadModel, OutlivesTheCheckpointAndReportsProgress) {
  const fs::path folder = test::scratch_dir() / "model";
  write_tiny_checkpoint(folder, small_options());
  LoadProgress last;
  LoadOptions options;
  options.progress = [&](const LoadProgress& progress) {
    EXPECT_GE(progress.done_bytes, last.done_bytes);
    last = progress;
  };
  const auto model = load_model(folder.string(), options);
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(last.done_bytes, last.total_bytes);
  EXPECT_GT(last.total_bytes, 0u);
  fs::remove_all(folder);  // the mappings stay
  EXPECT_EQ(values_of((*model)->head).size(), 64u * 128u);
}

TEST(LoadModel, FingerprintFollowsContentAndNotSharding) {
  const fs::path scratch = test::scratch_dir();
  TinyOptions options = small_options();
  write_tiny_checkpoint(scratch / "a", options);
  options.num_shards = 1;
  write_tiny_checkpoint(scratch / "b", options);
  options.seed = 2;
  write_tiny_checkpoint(scratch / "c", options);
  const auto a = load_ok(scratch / "a");
  const auto b = load_ok(scratch / "b");
  const auto c = load_ok(scratch / "c");
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->fingerprint, b->fingerprint);
  EXPECT_NE(a->fingerprint, c->fingerprint);
}

// ---- edited checkpoints ----

struct EditableTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

// Rewrites a single-file checkpoint after `edit` changed its tensors. `leading` bytes of header padding shift
// the data.
void edit_tensors(const fs::path& folder, const std::function<void(std::vector<EditableTensor>&)>& edit) {
  std::vector<EditableTensor> tensors;
  {
    const auto checkpoint = Checkpoint::open(folder.string());
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
    for (const TensorInfo& info : checkpoint->table().tensors()) {
      const TensorView view = checkpoint->view(info);
      tensors.push_back({info.name, info.dtype, info.shape, {view.data, view.data + view.bytes()}});
    }
  }
  edit(tensors);
  std::vector<TensorDeclaration> declarations;
  for (const auto& tensor : tensors) declarations.push_back({tensor.name, tensor.dtype, tensor.shape});
  auto writer = SafetensorsWriter::create(folder / "model.safetensors", declarations);
  ASSERT_TRUE(writer.has_value());
  for (const auto& tensor : tensors) ASSERT_TRUE(writer->append(tensor.name, tensor.bytes).has_value());
  ASSERT_TRUE(writer->finish().has_value());
}

EditableTensor& named(std::vector<EditableTensor>& tensors, std::string_view name) {
  for (auto& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors.front();
}

class EditedCheckpoint : public testing::Test {
 protected:
  std::string error_after(const std::function<void(std::vector<EditableTensor>&)>& edit,
                          TinyFormat format = TinyFormat::kNative) {
    write(format);
    edit_tensors(folder_, edit);
    return load_error(folder_);
  }
  void write(TinyFormat format, TinyHead head = TinyHead::kNone) {
    fs::remove_all(folder_);
    TinyOptions options = small_options();
    options.num_shards = 1;
    options.format = format;
    options.head = head;
    write_tiny_checkpoint(folder_, options);
  }
  // Replaces quantization_config in config.json; null removes it.
  void set_quantization(const nlohmann::json& value) {
    auto config = nlohmann::json::parse(*read_file(folder_ / "config.json"));
    if (value.is_null()) {
      config.erase("quantization_config");
    } else {
      config["quantization_config"] = value;
    }
    ASSERT_TRUE(write_file(folder_ / "config.json", config.dump()).has_value());
  }
  fs::path folder_ = test::scratch_dir() / "model";
};

void expect_mentions(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

TEST_F(EditedCheckpoint, MissingUnexpectedMistypedAndMisshapenTensorsAreAllNamed) {
  const std::string error = error_after([](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name == "layers.1.attn.q_norm.weight"; });
    tensors.push_back({"layers.0.attn.extra.weight", DType::kBF16, {2}, std::vector<std::byte>(4)});
    auto& gate = named(tensors, "layers.2.ffn.gate.bias");
    gate.dtype = DType::kBF16;  // a rounded bias changes expert selection: refused
    gate.bytes.resize(8);
    auto& norm = named(tensors, "norm.weight");
    norm.shape = {64, 2};
    std::erase_if(tensors, [](const auto& t) { return t.name == "layers.0.attn.wkv.scale"; });
  });
  expect_mentions(
      error, {"5 problems", "\"layers.1.attn.q_norm.weight\" is missing", "layers.0.attn.extra.weight",
              "has no place", "layers.2.ffn.gate.bias", "F32 [4] was wanted", "norm.weight", "BF16 [64, 2]",
              "\"layers.0.attn.wkv.weight\" has no scales"});
}

TEST_F(EditedCheckpoint, LongListsAreCutAndCounted) {
  const std::string error = error_after([](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name.find(".experts.") != std::string::npos; });
  });
  // 3 layers x 4 experts x 3 matrices; their scales need no sentence of their own.
  expect_mentions(error, {"36 problems", "and 16 more"});
}

TEST_F(EditedCheckpoint, NanScaleCodesAreNamedWithTheirPosition) {
  std::string error = error_after([](auto& tensors) {
    auto& scale = named(tensors, "layers.1.ffn.experts.2.w1.scale");  // [128, 4]
    scale.bytes[4 * 5 + 3] = std::byte{0xff};
  });
  expect_mentions(error, {"layers.1.ffn.experts.2.w1.scale", "NaN", "row 5, column 3"});
  error = error_after(
      [](auto& tensors) {
        named(tensors, "layers.1.ffn.experts.2.w1.weight_scale").bytes[8 * 7] = std::byte{0x7f};
        named(tensors, "layers.1.ffn.experts.3.w2.weight_scale_2").bytes = {std::byte{0}, std::byte{0},
                                                                            std::byte{0}, std::byte{0}};
      },
      TinyFormat::kNvfp4);
  expect_mentions(error, {"2 problems", "layers.1.ffn.experts.2.w1.weight_scale", "row 7, column 0",
                          "layers.1.ffn.experts.3.w2.weight_scale_2", "positive number"});
  error = error_after(
      [](auto& tensors) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        std::memcpy(named(tensors, "layers.0.attn.wq_b.scale").bytes.data() + 4, &nan, 4);  // [2, 1] F32
      },
      TinyFormat::kFp8F32);
  expect_mentions(error, {"layers.0.attn.wq_b.scale", "row 1, column 0"});
}

TEST_F(EditedCheckpoint, VectorsMustBeFinite) {
  const std::string error = error_after([](auto& tensors) {
    const float inf = std::numeric_limits<float>::infinity();
    std::memcpy(named(tensors, "layers.1.attn.attn_sink").bytes.data() + 4, &inf, 4);
    const std::uint16_t nan = 0x7fc0;
    std::memcpy(named(tensors, "layers.2.ffn_norm.weight").bytes.data() + 6, &nan, 2);
  });
  expect_mentions(
      error, {"2 problems", "layers.1.attn.attn_sink", "element 1", "layers.2.ffn_norm.weight", "element 3"});
}

TEST_F(EditedCheckpoint, HashTablesAreCheckedIdById) {
  auto set_id = [](auto& tensors, std::size_t index, std::int64_t id) {
    std::memcpy(named(tensors, "layers.0.ffn.gate.tid2eid").bytes.data() + 8 * index, &id, 8);
  };
  expect_mentions(error_after([&](auto& tensors) { set_id(tensors, 13, 4); }),
                  {"layers.0.ffn.gate.tid2eid", "expert 4 for token 6", "experts 0 to 3"});
  expect_mentions(error_after([&](auto& tensors) { set_id(tensors, 0, -1); }), {"expert -1 for token 0"});
  expect_mentions(error_after([&](auto& tensors) {
                    set_id(tensors, 20, 3);
                    set_id(tensors, 21, 3);
                  }),
                  {"expert 3 twice for token 10"});
}

TEST_F(EditedCheckpoint, Nvfp4ConventionIsSettledByNamesAndConfigTogether) {
  write(TinyFormat::kNvfp4);
  set_quantization(nullptr);  // an early revision without quantization_config: names alone decide
  EXPECT_NE(load_ok(folder_), nullptr);
  set_quantization({{"quant_method", "fp8"}, {"fmt", "e4m3"}});
  expect_mentions(load_error(folder_), {"names neither ModelOpt nor compressed-tensors", "\"fp8\""});
  set_quantization({{"quant_method", "compressed-tensors"}});
  expect_mentions(load_error(folder_), {"weight_scale_2", "ModelOpt", "compressed-tensors", "reciprocally"});
  set_quantization({{"quant_method", "fp8"}, {"fmt", "e4m3"}});
  ASSERT_TRUE(write_file(folder_ / "hf_quant_config.json",
                         R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":null}})")
                  .has_value());
  EXPECT_NE(load_ok(folder_), nullptr);

  const std::string error = error_after(
      [](auto& tensors) {
        std::erase_if(tensors,
                      [](const auto& t) { return t.name == "layers.0.ffn.experts.0.w1.weight_scale_2"; });
      },
      TinyFormat::kNvfp4);
  expect_mentions(error, {"layers.0.ffn.experts.0.w1.weight", "neither", "weight_global_scale"});
}

TEST_F(EditedCheckpoint, DsparkTensorsNeedTheirConfigKeys) {
  write(TinyFormat::kNative, TinyHead::kDspark);
  auto config = nlohmann::json::parse(*read_file(folder_ / "config.json"));
  config.erase("dspark_block_size");
  ASSERT_TRUE(write_file(folder_ / "config.json", config.dump()).has_value());
  expect_mentions(load_error(folder_), {"DSpark", "dspark_block_size"});
}

TEST_F(EditedCheckpoint, OtherModelsAreRefusedBeforeTheirTensorsAreJudged) {
  write(TinyFormat::kNative);
  auto config = nlohmann::json::parse(*read_file(folder_ / "config.json"));
  config["model_type"] = "deepseek_v41";
  ASSERT_TRUE(write_file(folder_ / "config.json", config.dump()).has_value());
  fs::resize_file(folder_ / "model.safetensors", 100);
  const auto model = load_model(folder_.string());
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
  expect_mentions(model.error().to_string(), {"DeepSeek-V4.1"});
  EXPECT_EQ(model.error().to_string().find("cut"), std::string::npos);
}

// A header of odd length puts every BF16 and F32 tensor at an odd address.
TEST_F(EditedCheckpoint, OddlyAlignedDataAreRealigned) {
  write(TinyFormat::kFp8F32);
  const auto straight = load_ok(folder_);
  ASSERT_NE(straight, nullptr);
  std::string file = *read_file(folder_ / "model.safetensors");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  file.insert(8 + header_bytes, 1, ' ');
  ++header_bytes;
  std::memcpy(file.data(), &header_bytes, 8);
  const fs::path shifted = folder_.parent_path() / "shifted";
  fs::create_directories(shifted);
  fs::copy_file(folder_ / "config.json", shifted / "config.json");
  ASSERT_TRUE(write_file(shifted / "model.safetensors", file).has_value());
  const auto model = load_ok(shifted);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(model->embed.codes) % 2, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(model->layers[0].attn.wq_a.scales) % 4, 0u);
  EXPECT_EQ(values_of(model->embed), values_of(straight->embed));
  for (std::size_t i = 0; i < 3; ++i) expect_same_block(model->layers[i], straight->layers[i]);
  EXPECT_EQ(model->fingerprint, straight->fingerprint);
}

// Fault B08: 192 rows x 64 columns, every code 1.0, block scale of row r and block c = 2^((r+c) mod 3),
// global scale 0.25 stored as a multiplier and as the divisor 4. Both files must give the same product with
// 64 x 6.0.
TEST_F(EditedCheckpoint, BothNvfp4ScaleConventionsGiveTheSameProduct) {
  for (const TinyFormat format : {TinyFormat::kNvfp4, TinyFormat::kNvfp4Compressed}) {
    const bool divisor = format == TinyFormat::kNvfp4Compressed;
    SCOPED_TRACE(divisor ? "compressed-tensors" : "ModelOpt");
    fs::remove_all(folder_);
    TinyOptions options = small_options();
    options.num_shards = 1;
    options.hidden_size = 64;
    options.moe_intermediate_size = 192;
    options.format = format;
    write_tiny_checkpoint(folder_, options);
    edit_tensors(folder_, [&](auto& tensors) {
      const std::string stem = "layers.0.ffn.experts.0.w1.";
      auto& codes = named(tensors, stem + (divisor ? "weight_packed" : "weight")).bytes;
      std::fill(codes.begin(), codes.end(), std::byte{0x22});
      auto& scales = named(tensors, stem + "weight_scale").bytes;
      for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = std::byte(0x38 + 8 * ((i / 4 + i % 4) % 3));
      const float global = divisor ? 4.0f : 0.25f;
      std::memcpy(named(tensors, stem + (divisor ? "weight_global_scale" : "weight_scale_2")).bytes.data(),
                  &global, 4);
    });
    const auto model = load_ok(folder_);
    ASSERT_NE(model, nullptr);
    const Matrix& w1 = model->layers[0].ffn.experts[0].w1;
    ASSERT_EQ(w1.rows, 192);
    const std::vector<float> values = values_of(w1);
    for (std::size_t r = 0; r < 192; ++r) {
      float y = 0.0f;
      for (std::size_t k = 0; k < 64; ++k) y += values[64 * r + k] * 6.0f;
      EXPECT_EQ(y, r % 3 == 0 ? 192.0f : r % 3 == 1 ? 216.0f : 264.0f) << "row " << r;
    }
  }
}

}  // namespace
}  // namespace pivot
