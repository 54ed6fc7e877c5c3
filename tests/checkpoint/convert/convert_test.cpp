// Conversions: bit-exact round trips, exact expansions, metadata, resuming, full disks, and the untouched
// source.
#include "checkpoint/convert/convert.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/convert/journal.h"
#include "checkpoint/diff/diff.h"
#include "checkpoint/inspect/inspection.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

Checkpoint opened(const fs::path& folder) {
  auto checkpoint = Checkpoint::open(folder.string());
  if (!checkpoint) throw std::runtime_error(checkpoint.error().to_string());
  return std::move(*checkpoint);
}

ConvertReport converted(const fs::path& source, const fs::path& output, ConvertOptions options) {
  const Checkpoint checkpoint = opened(source);
  auto report = convert_checkpoint(checkpoint, output, options);
  if (!report) throw std::runtime_error(report.error().to_string());
  return *report;
}

ConvertOptions to(ExpertTarget target) {
  ConvertOptions options;
  options.experts = target;
  return options;
}

bool same_values(const fs::path& a, const fs::path& b) {
  const Checkpoint left = opened(a);
  const Checkpoint right = opened(b);
  auto report = diff_checkpoints(left, right, "A", "B");
  if (!report) throw std::runtime_error(report.error().to_string());
  return report->same();
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Every stored tensor by name, as bytes with dtype and shape.
std::map<std::string, std::string> tensors_of(const fs::path& folder) {
  const Checkpoint checkpoint = opened(folder);
  std::map<std::string, std::string> result;
  for (const TensorInfo& tensor : checkpoint.table().tensors()) {
    const TensorView view = checkpoint.view(tensor);
    result[tensor.name] =
        std::string(dtype_name(tensor.dtype)) + to_string(tensor.shape) +
        std::string(reinterpret_cast<const char*>(view.data), static_cast<std::size_t>(view.bytes()));
  }
  return result;
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> result;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      result[entry.path().lexically_relative(folder).string()] = bytes_of(entry.path());
  return result;
}

fs::path tiny(test::TinyHead head = test::TinyHead::kMtp, int shards = 2) {
  const fs::path folder = test::scratch_dir() / "model";
  test::TinyOptions options;
  options.compress_ratios = {0, 4, 128};
  options.head = head;
  options.num_shards = shards;
  test::write_tiny_checkpoint(folder, options);
  std::ofstream(folder / "tokenizer.json") << "{}";
  fs::create_directory(folder / "encoding");
  std::ofstream(folder / "encoding" / "rules.txt") << "kept";
  return folder;
}

TEST(Convert, NativeToNvfp4AndBackIsBitExact) {
  for (const int shards : {1, 2}) {
    const fs::path source = tiny(test::TinyHead::kMtp, shards);
    const auto before = files_of(source);
    const fs::path nvfp4 = test::scratch_dir() / "nvfp4";
    const ConvertReport there = converted(source, nvfp4, to(ExpertTarget::kNvfp4));
    EXPECT_EQ(there.matrices, 3 * 8 * 3);
    EXPECT_EQ(there.rounded_values, 0);
    EXPECT_TRUE(same_values(source, nvfp4));
    const fs::path back = test::scratch_dir() / "native";
    converted(nvfp4, back, to(ExpertTarget::kNative));
    EXPECT_EQ(tensors_of(source), tensors_of(back)) << shards << " shards";
    EXPECT_EQ(before, files_of(source)) << "the source was touched";
  }
}

TEST(Convert, OutputInspectsCleanAndCarriesTheSideFiles) {
  const fs::path source = tiny();
  for (const ExpertTarget target : {ExpertTarget::kNvfp4, ExpertTarget::kFp8, ExpertTarget::kBf16}) {
    SCOPED_TRACE(to_string(target));
    const fs::path output = test::scratch_dir() / "out";
    converted(source, output, to(target));
    const auto subject = Subject::open(output.string());
    ASSERT_TRUE(subject) << subject.error().to_string();
    const Inspection inspection = inspect(*subject, {});
    EXPECT_TRUE(inspection.problems.empty()) << inspection.problems.front();
    EXPECT_TRUE(inspection.audit.clean());
    EXPECT_EQ(inspection.identification.expert_format, format_of(target));
    // ModelOpt leaves the draft's experts native, and so does every other target unless asked.
    EXPECT_EQ(formats_of(inspection.identification).draft_experts, ExpertFormat::kMxfp4);
    EXPECT_TRUE(same_values(source, output));
    EXPECT_EQ(bytes_of(output / "tokenizer.json"), "{}");
    EXPECT_EQ(bytes_of(output / "encoding/rules.txt"), "kept");
    EXPECT_FALSE(fs::exists(output / kJournalName));
    if (target == ExpertTarget::kNvfp4) {
      ASSERT_TRUE(inspection.nvfp4);
      EXPECT_EQ(inspection.nvfp4->lossless, inspection.nvfp4->checked);
    }
  }
}

TEST(Convert, DraftExpertsOnRequest) {
  ConvertOptions options = to(ExpertTarget::kNvfp4);
  options.draft_experts = true;
  const fs::path source = tiny();
  const fs::path output = test::scratch_dir() / "out";
  EXPECT_EQ(converted(source, output, options).matrices, 4 * 8 * 3);
  EXPECT_TRUE(same_values(source, output));
}

TEST(Convert, Fp8AndBf16ComeBackAsNative) {
  const fs::path source = tiny(test::TinyHead::kNone);
  for (const ExpertTarget target : {ExpertTarget::kFp8, ExpertTarget::kBf16}) {
    const fs::path wide = test::scratch_dir() / "wide";
    const fs::path back = test::scratch_dir() / "back";
    converted(source, wide, to(target));
    converted(wide, back, to(ExpertTarget::kNative));
    EXPECT_TRUE(same_values(source, back)) << to_string(target);
    const fs::path nvfp4 = test::scratch_dir() / "nvfp4";
    converted(wide, nvfp4, to(ExpertTarget::kNvfp4));
    EXPECT_TRUE(same_values(source, nvfp4)) << to_string(target);
  }
}

TEST(Convert, ResumesAfterAStopAndEndsTheSame) {
  const fs::path source = tiny();
  const fs::path whole = test::scratch_dir() / "whole";
  converted(source, whole, to(ExpertTarget::kNvfp4));
  // Stop after every number of progress calls in turn: each leaves a folder that opens nowhere and resumes.
  for (int stop_after = 1; stop_after < 400; stop_after += 67) {
    const fs::path output = test::scratch_dir() / "out";
    std::atomic<bool> stop{false};
    int calls = 0;
    ConvertOptions options = to(ExpertTarget::kNvfp4);
    options.threads = 1;
    options.stop = &stop;
    options.progress = [&](std::uint64_t, std::uint64_t) { stop = ++calls >= stop_after; };
    const Checkpoint checkpoint = opened(source);
    const auto interrupted = convert_checkpoint(checkpoint, output, options);
    if (!interrupted) {
      EXPECT_EQ(interrupted.error().code, ErrorCode::kCancelled);
      EXPECT_FALSE(Checkpoint::open(output.string())) << "a half-made output opened";
      EXPECT_FALSE(fs::exists(output / "config.json"));
    }
    options.stop = nullptr;
    options.progress = nullptr;
    const auto resumed = convert_checkpoint(checkpoint, output, options);
    if (interrupted) {
      EXPECT_FALSE(resumed);  // finished folders are not overwritten
    } else {
      ASSERT_TRUE(resumed) << resumed.error().to_string();
      EXPECT_EQ(files_of(output), files_of(whole)) << stop_after;
    }
  }
}

TEST(Convert, LeftoversOfAKillAreCleanedUp) {
  const fs::path source = tiny();
  const fs::path output = test::scratch_dir() / "out";
  std::atomic<bool> stop{true};
  ConvertOptions options = to(ExpertTarget::kFp8);
  options.stop = &stop;
  const Checkpoint checkpoint = opened(source);
  ASSERT_FALSE(convert_checkpoint(checkpoint, output, options));
  // What a kill -9 leaves: a temporary shard, and a final one that the journal does not know.
  std::ofstream(output / "model-00001-of-00002.safetensors.tmp.99999") << "half";
  std::ofstream(output / "model-00002-of-00002.safetensors") << "renamed just before the kill";
  std::ofstream(output / ".pivot-convert.json.tmp.99999") << "half";
  fs::create_directory(output / "encoding");
  std::ofstream(output / "encoding" / "rules.txt.tmp.99999") << "half";
  options.stop = nullptr;
  const auto report = convert_checkpoint(checkpoint, output, options);
  ASSERT_TRUE(report) << report.error().to_string();
  for (const auto& [name, bytes] : files_of(output)) EXPECT_EQ(name.find(".tmp."), std::string::npos) << name;
  EXPECT_TRUE(same_values(source, output));
}

TEST(Convert, PlacesThatMustNotBeWrittenAreRefused) {
  const fs::path source = tiny();
  const Checkpoint checkpoint = opened(source);
  const auto refused = [&](const fs::path& output) {
    const auto result = convert_checkpoint(checkpoint, output, to(ExpertTarget::kNvfp4));
    EXPECT_FALSE(result) << output;
    return result ? ErrorCode::kInternal : result.error().code;
  };
  const auto before = files_of(source);
  EXPECT_EQ(refused(source), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(source / "inside"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(source.parent_path()), ErrorCode::kInvalidArgument);
  const fs::path link = test::scratch_dir() / "link";
  fs::create_symlink(source, link);
  EXPECT_EQ(refused(link), ErrorCode::kInvalidArgument);
  const fs::path used = test::scratch_dir();
  std::ofstream(used / "precious.txt") << "do not overwrite";
  EXPECT_EQ(refused(used), ErrorCode::kInvalidArgument);
  EXPECT_EQ(bytes_of(used / "precious.txt"), "do not overwrite");
  EXPECT_EQ(files_of(source), before);
}

TEST(Convert, AnotherConversionsFolderAndARunningOneAreRefused) {
  const fs::path source = tiny();
  const fs::path output = test::scratch_dir() / "out";
  const Checkpoint checkpoint = opened(source);
  std::atomic<bool> stop{true};
  ConvertOptions options = to(ExpertTarget::kFp8);
  options.stop = &stop;
  ASSERT_FALSE(convert_checkpoint(checkpoint, output, options));
  const auto other = convert_checkpoint(checkpoint, output, to(ExpertTarget::kBf16));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
  const fs::path held = test::scratch_dir() / "held";
  const auto holder = Journal::open(held, "someone else");
  ASSERT_TRUE(holder);
  const auto second = Journal::open(held, "someone else");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
}

TEST(Convert, RoundingIsRefusedUnlessAllowed) {
  PIVOT_NEED_DATA(lossy, "goldens/nvfp4");
  const Checkpoint checkpoint = opened(lossy);
  for (const ExpertTarget target : {ExpertTarget::kNative, ExpertTarget::kFp8, ExpertTarget::kBf16}) {
    const fs::path output = test::scratch_dir() / "out";
    const auto result = convert_checkpoint(checkpoint, output, to(target));
    ASSERT_FALSE(result) << to_string(target);
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(result.error().to_string().find("ffn.experts"), std::string::npos)
        << result.error().to_string();
    EXPECT_FALSE(Checkpoint::open(output.string()));
  }
  ConvertOptions options = to(ExpertTarget::kBf16);
  options.allow_rounding = true;
  const ConvertReport report = converted(lossy, test::scratch_dir() / "rounded", options);
  EXPECT_GT(report.rounded_values, 0);
  EXPECT_FALSE(report.rounded_example.empty());
}

TEST(ConvertGoldens, LosslessTwinIsReproducedBitForBit) {
  PIVOT_NEED_DATA(wide, "goldens-wide");
  const fs::path twin = test::scratch_dir() / "twin";
  fs::copy(wide / "nvfp4_lossless", twin);
  fs::create_symlink(wide / "native/model-00001-of-00002.safetensors",
                     twin / "model-00001-of-00002.safetensors");
  const Checkpoint scales = opened(twin);
  ConvertOptions options = to(ExpertTarget::kNvfp4);
  options.input_scales = &scales;
  const fs::path output = test::scratch_dir() / "nvfp4";
  converted(wide / "native", output, options);
  EXPECT_EQ(tensors_of(output), tensors_of(twin));
  // The metadata too, as far as it describes the same thing.
  const auto config = nlohmann::json::parse(bytes_of(output / "config.json"));
  const auto wanted = nlohmann::json::parse(bytes_of(twin / "config.json"));
  for (const auto& [key, value] : wanted.at("quantization_config").items()) {
    if (key == "exclude_modules")
      continue;  // published files call it "ignore" here, and have it under this name in hf_quant_config.json
    EXPECT_EQ(config.at("quantization_config").value(key, nlohmann::json()), value) << key;
  }
  EXPECT_EQ(nlohmann::json::parse(bytes_of(output / "hf_quant_config.json")),
            nlohmann::json::parse(bytes_of(twin / "hf_quant_config.json")));
  const fs::path back = test::scratch_dir() / "native";
  converted(twin, back, to(ExpertTarget::kNative));
  EXPECT_EQ(tensors_of(back), tensors_of(wide / "native"));
}

// A disk that fills up in the middle, simulated by a small tmpfs.
class SmallDisk {
 public:
  explicit SmallDisk(const char* size) : folder_(test::scratch_dir()) {
    const std::string options = std::string("size=") + size;
    mounted_ = ::mount("pivot-test", folder_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
  bool mounted_ = false;
};

TEST(ConvertDisk, TooSmallADiskIsRefusedBeforeAnythingIsWritten) {
  SmallDisk disk("256k");
  if (!disk.mounted())
    GTEST_SKIP()
        << "mounting a tmpfs needs the right to (root); the refusal by size is tested where it is there";
  const fs::path source = tiny();
  const Checkpoint checkpoint = opened(source);
  const auto result = convert_checkpoint(checkpoint, disk.folder() / "out", to(ExpertTarget::kBf16));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kCannotCreate);
  EXPECT_NE(result.error().message.find("free"), std::string::npos);
  EXPECT_FALSE(fs::exists(disk.folder() / "out"));
}

TEST(ConvertDisk, ADiskThatFillsUpOnTheWayLosesNothingAndResumes) {
  SmallDisk disk("64m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs the right to (root)";
  const fs::path source = tiny();
  const auto before = files_of(source);
  const Checkpoint checkpoint = opened(source);
  const fs::path output = disk.folder() / "out";
  ConvertOptions options = to(ExpertTarget::kBf16);
  options.threads = 1;
  // Somebody else takes the space after the check: fill the disk at the first progress call.
  bool filled = false;
  options.progress = [&](std::uint64_t, std::uint64_t) {
    if (filled) return;
    filled = true;
    std::ofstream hog(disk.folder() / "hog", std::ios::binary);
    const std::string block(1 << 16, 'x');
    while (hog.write(block.data(), static_cast<std::streamsize>(block.size())) && hog.flush()) {
    }
  };
  const auto failed = convert_checkpoint(checkpoint, output, options);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kCannotCreate) << failed.error().to_string();
  EXPECT_FALSE(Checkpoint::open(output.string())) << "a half-made output opened";
  for (const auto& entry : fs::directory_iterator(output))
    EXPECT_EQ(entry.path().filename().string().find(".tmp."), std::string::npos) << entry.path();
  fs::remove(disk.folder() / "hog");
  options.progress = nullptr;
  const auto resumed = convert_checkpoint(checkpoint, output, options);
  ASSERT_TRUE(resumed) << resumed.error().to_string();
  EXPECT_TRUE(same_values(source, output));
  EXPECT_EQ(files_of(source), before);
}

}  // namespace
}  // namespace pivot
