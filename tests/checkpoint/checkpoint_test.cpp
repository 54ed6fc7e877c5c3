// Opening folders: where a name leads, and everything that can be wrong with a download (fault B24).
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_writer.h"
#include "support/test_data.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void write_text(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  ASSERT_TRUE(write_file(path, text).has_value());
}

void write_tensors(const fs::path& path, std::initializer_list<const char*> names) {
  fs::create_directories(path.parent_path());
  std::vector<TensorDeclaration> tensors;
  for (const char* name : names) tensors.push_back({name, DType::kF32, {4}});
  auto writer = SafetensorsWriter::create(path, tensors);
  ASSERT_TRUE(writer.has_value());
  const std::vector<float> values = {1, 2, 3, 4};
  for (const char* name : names) ASSERT_TRUE(writer->append_values<float>(name, values).has_value());
  ASSERT_TRUE(writer->finish().has_value());
}

// Two shards with an index: a, b in the first and c in the second.
class Folder : public testing::Test {
 protected:
  void SetUp() override {
    write_tensors(folder_ / "m1.safetensors", {"a", "b"});
    write_tensors(folder_ / "m2.safetensors", {"c"});
    write_text(folder_ / "config.json", "{}");
    write_index({{"a", "m1.safetensors"}, {"b", "m1.safetensors"}, {"c", "m2.safetensors"}});
  }
  void write_index(const json& weight_map) {
    write_text(folder_ / "model.safetensors.index.json",
               json{{"metadata", {{"total_size", 48}}}, {"weight_map", weight_map}}.dump());
  }
  std::string error() {
    const auto checkpoint = Checkpoint::open(folder_.string());
    EXPECT_FALSE(checkpoint.has_value());
    return checkpoint ? "" : checkpoint.error().to_string();
  }
  fs::path folder_ = test::scratch_dir() / "model";
};

void expect_mentions(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

TEST_F(Folder, OpensAndViews) {
  const auto checkpoint = Checkpoint::open(folder_.string());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->table().size(), 3u);
  EXPECT_EQ(checkpoint->index_total_size(), 48u);
  EXPECT_EQ(checkpoint->config_text(), "{}");
  EXPECT_FALSE(checkpoint->hf_quant_text().has_value());
  const auto view = checkpoint->view("c");
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->shape, (Shape{4}));
  float last = 0;
  std::memcpy(&last, view->data + 12, 4);
  EXPECT_EQ(last, 4.0f);
  const auto none = checkpoint->view("d");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
}

TEST_F(Folder, AllProblemsComeInOneError) {
  fs::resize_file(folder_ / "m1.safetensors", fs::file_size(folder_ / "m1.safetensors") - 5);
  write_text(folder_ / "m3.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  write_text(folder_ / "m4.safetensors", "");
  write_text(folder_ / "tokenizer.json", "");
  write_index({{"a", "m1.safetensors"},
               {"b", "m1.safetensors"},
               {"c", "m2.safetensors"},
               {"d", "m2.safetensors"},
               {"e", "m3.safetensors"},
               {"f", "m4.safetensors"},
               {"g", "m5.safetensors"},
               {"h", "../outside.safetensors"},
               {"i", "/etc/passwd"}});
  expect_mentions(
      error(),
      {"8 problems", "tensor \"b\" needs 16 bytes and the file holds 11",
       "m3.safetensors is a Git-LFS pointer", "m4.safetensors has 0 bytes", "shard m5.safetensors is missing",
       "tokenizer.json has 0 bytes", "tensor \"d\" in m2.safetensors, which does not hold it",
       "\"../outside.safetensors\"", "\"/etc/passwd\"", "outside the checkpoint folder"});
}

TEST_F(Folder, IndexAndShardsMustAgree) {
  write_index({{"a", "m1.safetensors"}, {"b", "m2.safetensors"}, {"c", "m2.safetensors"}});
  expect_mentions(error(), {"tensor \"b\" in m2.safetensors, but it is in m1.safetensors"});
  write_index({{"a", "m1.safetensors"}, {"c", "m2.safetensors"}});
  expect_mentions(error(), {"m1.safetensors holds tensor \"b\"", "does not list"});
  write_tensors(folder_ / "m2.safetensors", {"c", "a"});
  write_index({{"a", "m1.safetensors"}, {"b", "m1.safetensors"}, {"c", "m2.safetensors"}});
  expect_mentions(error(), {"tensor \"a\" is in m1.safetensors and again in m2.safetensors"});
}

TEST_F(Folder, BadIndexes) {
  const fs::path index = folder_ / "model.safetensors.index.json";
  for (const char* text :
       {"", "{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"m1.safetensors","a":"m1.safetensors"}})", R"({"weight_map":{"a":""}})",
        R"({"weight_map":{"a":"x\\..\\y"}})"}) {
    SCOPED_TRACE(text);
    write_text(index, text);
    expect_mentions(error(), {"model.safetensors.index.json"});
  }
  fs::remove(index);
  expect_mentions(error(),
                  {"model.safetensors.index.json is missing although there are 2 .safetensors files"});
  fs::remove(folder_ / "m1.safetensors");
  fs::remove(folder_ / "m2.safetensors");
  expect_mentions(error(), {"no weights"});
}

TEST_F(Folder, SymlinkLoopsAndFoldersInPlaceOfShards) {
  fs::remove(folder_ / "m1.safetensors");
  fs::create_symlink("m1.safetensors", folder_ / "m1.safetensors");
  fs::remove(folder_ / "m2.safetensors");
  fs::create_directory(folder_ / "m2.safetensors");
  expect_mentions(error(), {"2 problems", "symbolic links", "not a regular file"});
  const fs::path loop = folder_.parent_path() / "loop";
  fs::create_symlink("loop", loop);
  EXPECT_FALSE(Checkpoint::open(loop.string()).has_value());
}

TEST_F(Folder, ASingleFileNeedsNoIndex) {
  const fs::path single = folder_.parent_path() / "single";
  write_tensors(single / "model.safetensors", {"x"});
  EXPECT_EQ(Checkpoint::open(single.string())->table().size(), 1u);
  EXPECT_EQ(Checkpoint::open((single / "model.safetensors").string())->table().size(), 1u);
  EXPECT_EQ(Checkpoint::open((folder_ / "m2.safetensors").string())->table().size(), 1u);
}

// ---- names in the Hugging Face cache ----

class HubCache : public testing::Test {
 protected:
  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";
  static constexpr const char* kOther = "01234567ffffffffffffffffffffffffffffffff";

  void SetUp() override {
    entry_ = root_ / "hub" / "models--org--Tiny-V4";
    write_tensors(entry_ / "blobs" / "b10b", {"x"});
    write_text(entry_ / "blobs" / "c0f1", "{}");
    fs::create_directories(entry_ / "snapshots" / kCommit);
    fs::create_symlink("../../blobs/b10b", entry_ / "snapshots" / kCommit / "model.safetensors");
    fs::create_symlink("../../blobs/c0f1", entry_ / "snapshots" / kCommit / "config.json");
    write_text(entry_ / "refs" / "main", kCommit);
    environment_.hf_home = root_.string();
  }
  Result<fs::path> resolve(std::string_view name) { return resolve_checkpoint(name, environment_); }
  fs::path snapshot() { return entry_ / "snapshots" / kCommit; }

  fs::path root_ = test::scratch_dir();
  fs::path entry_;
  HubEnvironment environment_;
};

TEST_F(HubCache, NamesResolveThroughRefsAndCommits) {
  for (const char* name : {"org/Tiny-V4", "org/Tiny-V4@main", "org/Tiny-V4@0123456789ab",
                           "org/Tiny-V4@0123456789abcdef0123456789abcdef01234567"}) {
    const auto path = resolve(name);
    ASSERT_TRUE(path.has_value()) << path.error().to_string();
    EXPECT_EQ(*path, snapshot());
  }
  EXPECT_EQ(*resolve(entry_.string()), snapshot());
  EXPECT_EQ(*resolve(snapshot().string()), snapshot());
  const auto checkpoint = Checkpoint::open("org/Tiny-V4", environment_);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  EXPECT_TRUE(checkpoint->table().contains("x"));
}

TEST_F(HubCache, WhatIsNotThereIsExplained) {
  expect_mentions(resolve("org/Other").error().message,
                  {"models--org--Other", "hf download org/Other", "HF_HOME"});
  expect_mentions(resolve("org/Tiny-V4@v2").error().message, {"no revision \"v2\"", "main", kCommit});
  fs::create_directories(entry_ / "snapshots" / kOther);
  expect_mentions(resolve("org/Tiny-V4@01234567").error().message, {"several snapshots"});
  expect_mentions(resolve("org/Tiny-V4@01234").error().message, {"no revision"});
  fs::remove_all(snapshot());
  expect_mentions(resolve("org/Tiny-V4").error().message, {"incomplete", kOther});
  write_text(entry_ / "refs" / "main", "../../../etc");
  expect_mentions(resolve("org/Tiny-V4").error().message, {"should hold a commit"});
  for (const char* name : {"", "nothing", "../x/y", "org/..", "a/b/c", "org/Tiny-V4@../../x"}) {
    EXPECT_FALSE(resolve(name).has_value()) << name;
  }
}

TEST_F(HubCache, TheRootComesFromTheEnvironment) {
  HubEnvironment environment;
  environment.home = "/somewhere";
  EXPECT_EQ(environment.cache_root(), "/somewhere/.cache/huggingface/hub");
  environment.hf_home = "/data/hf";
  EXPECT_EQ(environment.cache_root(), "/data/hf/hub");
  environment.hf_hub_cache = "/cache";
  EXPECT_EQ(environment.cache_root(), "/cache");
}

TEST_F(HubCache, ABrokenBlobLinkIsAMissingShard) {
  fs::remove(entry_ / "blobs" / "b10b");
  const auto checkpoint = Checkpoint::open("org/Tiny-V4", environment_);
  ASSERT_FALSE(checkpoint.has_value());
  expect_mentions(checkpoint.error().message, {"shard model.safetensors is missing"});
}

}  // namespace
}  // namespace pivot
