// Folders as they come: sound, broken, half written, many at once; and the checks of values.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "checkpoint/inspect/inspection.h"
#include "checkpoint/inspect/inspection_report.h"
#include "support/json_schema.h"
#include "support/test_data.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

fs::path copy_of(const fs::path& source) {
  const fs::path folder = test::scratch_dir() / "model";
  fs::copy(source, folder, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  // Copies look freshly written; the tests that care set times themselves.
  for (const auto& entry : fs::directory_iterator(folder))
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  return folder;
}

bool mentions(const std::vector<std::string>& lines, std::string_view part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

Inspection inspected(const fs::path& path, InspectOptions options = {}) {
  const auto subject = Subject::open(path.string());
  EXPECT_TRUE(subject) << subject.error().to_string();
  return subject ? inspect(*subject, options) : Inspection{};
}

TEST(InspectFolder, SoundNativeCheckpoint) {
  PIVOT_NEED_DATA(native, "goldens/native");
  const Inspection inspection = inspected(native);
  EXPECT_TRUE(inspection.problems.empty()) << inspection.problems.front();
  EXPECT_TRUE(inspection.audit.clean());
  EXPECT_EQ(inspection.identification.expert_format, ExpertFormat::kMxfp4);
  EXPECT_EQ(inspection.fingerprint.size(), 16u);
  ASSERT_TRUE(inspection.hyper_connections);
  EXPECT_EQ(inspection.hyper_connections->tensors, 5 * 2 + 1 + 2 + 1);  // layers, head, MTP block, its head
  EXPECT_GT(inspection.hyper_connections->not_bf16, 0);                 // random fp32 values
  ASSERT_TRUE(inspection.hash_tables);
  EXPECT_EQ(inspection.hash_tables->tables, 2);
  EXPECT_EQ(inspection.hash_tables->rows, 2 * 512);
  EXPECT_EQ(inspection.hash_tables->rows_with_duplicates, 0);
  EXPECT_FALSE(inspection.nvfp4);
  ASSERT_FALSE(inspection.backends.empty());
  EXPECT_TRUE(inspection.backends.front().loads);
}

TEST(InspectFolder, LossyNvfp4IsNotCalledLossless) {
  PIVOT_NEED_DATA(lossy, "goldens/nvfp4");
  const Inspection inspection = inspected(lossy, {ValueCheck::kFull, {"cpu"}});
  ASSERT_TRUE(inspection.nvfp4);
  EXPECT_EQ(inspection.nvfp4->matrices, 5 * 8 * 3);
  EXPECT_EQ(inspection.nvfp4->checked, inspection.nvfp4->matrices);
  EXPECT_EQ(inspection.nvfp4->lossless, 0);
  EXPECT_FALSE(inspection.nvfp4->example.empty());
  EXPECT_EQ(test::schema_faults(inspection_json(inspection), "inspect.json"), std::vector<std::string>());
  EXPECT_EQ(test::schema_faults(listing_json("folder", {&inspection, 1}), "inspect-listing.json"),
            std::vector<std::string>());
  // Draft experts stay MXFP4: told apart per tensor, and worth a note (fault D12).
  EXPECT_TRUE(mentions(inspection.notes, "draft experts are MXFP4"));
  EXPECT_EQ(inspection.quantization_layout, "ModelOpt, current layout (both files)");
}

TEST(InspectFolder, LosslessNvfp4IsRecognised) {
  PIVOT_NEED_DATA(wide, "goldens-wide");
  const fs::path folder = copy_of(wide / "nvfp4_lossless");
  fs::create_symlink(wide / "native/model-00001-of-00002.safetensors",
                     folder / "model-00001-of-00002.safetensors");
  const Inspection inspection = inspected(folder, {ValueCheck::kFull, {"cpu"}});
  EXPECT_TRUE(inspection.problems.empty()) << inspection.problems.front();
  ASSERT_TRUE(inspection.nvfp4);
  EXPECT_EQ(inspection.nvfp4->matrices, 72);
  EXPECT_EQ(inspection.nvfp4->lossless, 72) << inspection.nvfp4->example;
}

TEST(InspectFolder, FingerprintFollowsContent) {
  PIVOT_NEED_DATA(native, "goldens/native");
  const fs::path copy = copy_of(native);
  const std::string before = inspected(copy).fingerprint;
  EXPECT_EQ(before, inspected(native).fingerprint);
  // One flipped bit in a small tensor (a norm, hashed whole) changes it.
  const auto checkpoint = Checkpoint::open(copy.string());
  ASSERT_TRUE(checkpoint);
  const TensorInfo* norm = checkpoint->table().find("norm.weight");
  ASSERT_NE(norm, nullptr);
  const fs::path shard = copy / checkpoint->table().file_of(*norm);
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(checkpoint->table().shards()[norm->shard].data_begin + norm->begin));
  file.put('\x55');
  file.close();
  const Inspection after = inspected(copy);
  EXPECT_NE(after.fingerprint, before);
  EXPECT_EQ(after.header_fingerprint, inspected(native).header_fingerprint);
}

TEST(InspectFolder, BrokenShardsAreListedAndTheRestStillTold) {
  PIVOT_NEED_DATA(native, "goldens/native");
  const fs::path folder = copy_of(native);
  fs::resize_file(folder / "model-00002-of-00002.safetensors", 0);
  const Inspection inspection = inspected(folder);
  EXPECT_TRUE(mentions(inspection.problems, "model-00002-of-00002.safetensors"));
  EXPECT_GT(inspection.tensors.tensors, 0);  // the sound shard
  EXPECT_FALSE(inspection.audit.missing.empty());
  EXPECT_NE(inspection.verdict.find("not usable"), std::string::npos);
  for (const BackendVerdict& backend : inspection.backends) EXPECT_FALSE(backend.loads);
}

TEST(InspectFolder, AnIndexThatLiesAboutItsSizeIsNoted) {
  PIVOT_NEED_DATA(native, "goldens/native");
  const fs::path folder = copy_of(native);
  const fs::path index = folder / "model.safetensors.index.json";
  std::ifstream in(index);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  in.close();
  const std::size_t key = text.find("\"total_size\":");
  ASSERT_NE(key, std::string::npos);
  const std::size_t begin = text.find_first_of("0123456789", key);
  text.replace(begin, text.find_first_not_of("0123456789", begin) - begin, "1234");
  std::ofstream(index, std::ios::trunc) << text;
  const Inspection inspection = inspected(folder);
  EXPECT_TRUE(inspection.problems.empty());
  EXPECT_TRUE(mentions(inspection.notes, "total_size 1234"));
}

TEST(InspectFolder, PartialFilesAndFreshShardsMeanSomebodyIsWriting) {
  PIVOT_NEED_DATA(native, "goldens/native");
  const fs::path folder = copy_of(native);
  EXPECT_TRUE(inspected(folder).being_written.empty());
  std::ofstream(folder / "model-00003-of-00003.safetensors.incomplete") << "x";
  fs::last_write_time(folder / "model-00001-of-00002.safetensors", fs::file_time_type::clock::now());
  const Inspection inspection = inspected(folder);
  EXPECT_TRUE(mentions(inspection.being_written, "partial file"));
  EXPECT_TRUE(mentions(inspection.being_written, "changed"));
}

TEST(InspectFolder, ManyCheckpointsAndLoopsInOneFolder) {
  PIVOT_NEED_DATA(native, "goldens/native");
  const fs::path root = test::scratch_dir();
  fs::copy(native, root / "a");
  fs::create_directories(root / "models--org--name/snapshots/0123456789abcdef");
  fs::copy_file(native / "config.json", root / "models--org--name/snapshots/0123456789abcdef/config.json");
  fs::create_directory(root / "empty");
  fs::create_symlink(root / "loop", root / "loop");
  const auto found = find_checkpoints(root);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].filename(), "a");
  EXPECT_EQ(found[1].filename(), "0123456789abcdef");
}

TEST(InspectFolder, WhatIsNoCheckpointIsRefusedWithAReason) {
  const fs::path root = test::scratch_dir();
  EXPECT_FALSE(Subject::open((root / "absent").string()));
  fs::create_directory(root / "empty");
  const auto empty = Subject::open((root / "empty").string());
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().to_string().find("no weights"), std::string::npos) << empty.error().to_string();
  std::ofstream(root / "text.txt") << "hello";
  const auto text = Subject::open((root / "text.txt").string());
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().to_string().find("neither a checkpoint"), std::string::npos);
  fs::create_symlink(root / "loop", root / "loop");
  EXPECT_FALSE(Subject::open((root / "loop").string()));
  if (::geteuid() != 0) {
    fs::create_directory(root / "locked");
    fs::permissions(root / "locked", fs::perms::none);
    const auto locked = Subject::open((root / "locked").string());
    ASSERT_FALSE(locked);
    EXPECT_EQ(locked.error().code, ErrorCode::kPermission);
  }
}

TEST(InspectFolder, ZeroByteSingleShard) {
  const fs::path root = test::scratch_dir();
  std::ofstream(root / "model.safetensors");
  const Inspection inspection = inspected(root);
  EXPECT_TRUE(mentions(inspection.problems, "model.safetensors"));
  EXPECT_TRUE(mentions(inspection.problems, "config.json is missing"));
}

TEST(InspectValues, LosslessScalesByHand) {
  // One row of 4 blocks of 16: scales 2^0, 2^0, 2^-9, 2^-9 with codes everywhere.
  const std::uint8_t ones[32] = {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11,
                                 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11,
                                 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11};
  const std::uint8_t exact[4] = {0x38, 0x38, 0x01, 0x01};
  EXPECT_EQ(check_nvfp4_scales(exact, ones, 1, 4, 0.5f).not_power_of_two, 0);
  EXPECT_EQ(check_nvfp4_scales(exact, ones, 1, 4, 0.5f).unequal_pairs, 0);
  EXPECT_EQ(check_nvfp4_scales(exact, ones, 1, 4, 0.3f).not_power_of_two, 1);
  const std::uint8_t uneven[4] = {0x38, 0x40, 0x39, 0x39};  // a pair that differs; two mantissas
  EXPECT_EQ(check_nvfp4_scales(uneven, ones, 1, 4, 1.0f).unequal_pairs, 1);
  EXPECT_EQ(check_nvfp4_scales(uneven, ones, 1, 4, 1.0f).not_power_of_two, 2);
  // Zeros may carry anything: +0 and -0 codes.
  std::uint8_t zeros[32] = {};
  std::fill(zeros + 8, zeros + 16, std::uint8_t{0x88});
  EXPECT_EQ(check_nvfp4_scales(uneven, zeros, 1, 4, 1.0f).unequal_pairs, 0);
  EXPECT_EQ(check_nvfp4_scales(uneven, zeros, 1, 4, 1.0f).not_power_of_two, 0);
  const std::uint8_t subnormals[4] = {0x02, 0x02, 0x03, 0x03};  // 2^-8, and 3 * 2^-9
  EXPECT_EQ(check_nvfp4_scales(subnormals, ones, 1, 4, 1.0f).not_power_of_two, 2);
}

}  // namespace
}  // namespace pivot
