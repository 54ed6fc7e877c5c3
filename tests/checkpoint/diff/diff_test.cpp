// Comparison of checkpoints: verdicts, error figures against a plain fp64 computation, parts, and
// interruption.
#include "checkpoint/diff/diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/dequantize.h"
#include "checkpoint/diff/diff_report.h"
#include "numeric/quantize.h"
#include "support/json_schema.h"
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

DiffReport compared(const fs::path& a, const fs::path& b, const DiffOptions& options = {}) {
  const Checkpoint left = opened(a);
  const Checkpoint right = opened(b);
  auto report = diff_checkpoints(left, right, "A", "B", options);
  if (!report) throw std::runtime_error(report.error().to_string());
  return std::move(*report);
}

std::int64_t count(const DiffReport& report, Difference difference) {
  return report.counts[static_cast<std::size_t>(difference)];
}

const DifferenceGroup* group(const DiffReport& report, Module module, bool draft = false) {
  for (const DifferenceGroup& one : report.modules)
    if (one.module == module && one.draft == draft) return &one;
  return nullptr;
}

fs::path tiny(const test::TinyOptions& options) {
  const fs::path folder = test::scratch_dir() / "model";
  test::write_tiny_checkpoint(folder, options);
  return folder;
}

test::TinyOptions tiny_options(test::TinyFormat format = test::TinyFormat::kNative, std::uint64_t seed = 1) {
  test::TinyOptions options;
  options.compress_ratios = {0, 4, 128};
  options.format = format;
  options.seed = seed;
  return options;
}

// ---- matrices ----

struct OwnedFp4 {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  Matrix view;
};

OwnedFp4 random_fp4(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
  std::mt19937 random(seed);
  OwnedFp4 matrix;
  matrix.codes.resize(static_cast<std::size_t>(rows * cols / 2));
  matrix.scales.resize(static_cast<std::size_t>(rows * cols / 32));
  for (auto& code : matrix.codes) code = static_cast<std::uint8_t>(random());
  for (auto& scale : matrix.scales) scale = static_cast<std::uint8_t>(118 + random() % 6);
  matrix.view = {MatrixFormat::kFP4,
                 ScaleFormat::kE8M0,
                 rows,
                 cols,
                 reinterpret_cast<const std::byte*>(matrix.codes.data()),
                 reinterpret_cast<const std::byte*>(matrix.scales.data())};
  return matrix;
}

TEST(CompareMatrices, FiguresEqualAPlainComputation) {
  const OwnedFp4 a = random_fp4(24, 320, 1);
  OwnedFp4 b = random_fp4(24, 320, 1);
  for (std::size_t i = 0; i < b.codes.size(); i += 7) b.codes[i] ^= 0x10;  // some high nibbles
  for (std::size_t i = 0; i < b.scales.size(); i += 11) b.scales[i] += 1;
  const Comparison result = compare_matrices(a.view, b.view);
  EXPECT_FALSE(result.same_bytes);
  EXPECT_FALSE(result.same_codes);
  EXPECT_FALSE(result.same_values);
  std::vector<float> left(24 * 320);
  std::vector<float> right(24 * 320);
  dequantize_rows(a.view, 0, 24, std::span<float>(left));
  dequantize_rows(b.view, 0, 24, std::span<float>(right));
  double error2 = 0, a2 = 0, b2 = 0, ab = 0, most = 0;
  std::int64_t changed = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const double x = static_cast<double>(left[i]);
    const double y = static_cast<double>(right[i]);
    error2 += (x - y) * (x - y), a2 += x * x, b2 += y * y, ab += x * y;
    most = std::max(most, std::fabs(x - y));
    changed += x != y ? 1 : 0;
  }
  const ErrorSums& sums = result.sums;
  EXPECT_EQ(sums.elements, 24 * 320);
  EXPECT_EQ(sums.max_error, most);
  EXPECT_EQ(sums.changed_values, changed);
  EXPECT_TRUE(sums.codes_comparable);
  EXPECT_EQ(sums.changed_codes, static_cast<std::int64_t>((b.codes.size() + 6) / 7));
  EXPECT_NEAR(sums.rms_error(), std::sqrt(error2 / static_cast<double>(left.size())), 1e-6 * most);
  EXPECT_NEAR(sums.snr_db(), 10 * std::log10(a2 / error2), 1e-4);
  EXPECT_NEAR(sums.cosine(), ab / std::sqrt(a2 * b2), 1e-6);
}

TEST(CompareMatrices, PartsCombineToTheWhole) {
  const OwnedFp4 a = random_fp4(32, 256, 2);
  const OwnedFp4 b = random_fp4(32, 256, 3);
  const ErrorSums whole = compare_matrices(a.view, b.view).sums;
  ErrorSums combined;
  for (std::int64_t row = 0; row < 32; row += 8) {
    const auto part = [&](const Matrix& m) {
      Matrix piece = m;
      piece.rows = 8;
      piece.codes = m.codes + row * 128;
      piece.scales = m.scales + row * 8;
      return piece;
    };
    combined.add(compare_matrices(part(a.view), part(b.view)).sums);
  }
  EXPECT_EQ(combined.elements, whole.elements);
  EXPECT_EQ(combined.changed_codes, whole.changed_codes);
  EXPECT_EQ(combined.max_error, whole.max_error);
  EXPECT_NEAR(combined.squared_error, whole.squared_error, 1e-6 * whole.squared_error);
}

TEST(CompareMatrices, ScalesOfZeroBlocksDoNotMatter) {
  OwnedFp4 a = random_fp4(2, 64, 4);
  OwnedFp4 b = random_fp4(2, 64, 4);
  std::fill(a.codes.begin(), a.codes.begin() + 16, std::uint8_t{0x80});  // 32 zeros, half of them negative
  b.codes = a.codes;
  b.view.codes = reinterpret_cast<const std::byte*>(b.codes.data());
  b.scales[0] = 1;
  b.view.scales = reinterpret_cast<const std::byte*>(b.scales.data());
  const Comparison result = compare_matrices(a.view, b.view);
  EXPECT_FALSE(result.same_bytes);
  EXPECT_TRUE(result.same_codes);
  EXPECT_TRUE(result.same_values);
  b.scales[1] += 1;
  EXPECT_FALSE(compare_matrices(a.view, b.view).same_values);
}

// ---- checkpoints ----

TEST(Diff, ACheckpointEqualsItself) {
  const fs::path model = tiny(tiny_options());
  const DiffReport report = compared(model, model);
  EXPECT_TRUE(report.same());
  EXPECT_EQ(count(report, Difference::kIdentical), static_cast<std::int64_t>(report.tensors.size()));
  EXPECT_GT(report.bytes_read, 0u);
  EXPECT_EQ(report.verdict(), "every tensor is byte-identical");
}

TEST(Diff, LosslessNvfp4IsTheSameValuesReencoded) {
  for (const test::TinyFormat format : {test::TinyFormat::kNvfp4, test::TinyFormat::kNvfp4Compressed}) {
    const DiffReport report = compared(tiny(tiny_options()), tiny(tiny_options(format)));
    EXPECT_TRUE(report.same()) << report.verdict();
    EXPECT_EQ(count(report, Difference::kReencoded), 3 * 8 * 3);  // layers x experts x matrices
    EXPECT_EQ(count(report, Difference::kIdentical) + count(report, Difference::kReencoded),
              static_cast<std::int64_t>(report.tensors.size()));
    EXPECT_NE(report.verdict().find("the same values everywhere"), std::string::npos);
  }
}

TEST(Diff, AllFormatsAndNamesOfOneModelAgree) {
  const fs::path native = tiny(tiny_options());
  for (const test::TinyFormat format :
       {test::TinyFormat::kFp8E8m0, test::TinyFormat::kFp8F32, test::TinyFormat::kBf16}) {
    EXPECT_TRUE(compared(native, tiny(tiny_options(format))).same()) << static_cast<int>(format);
    test::TinyOptions options = tiny_options(format);
    options.names = test::TinyNames::kTransformers;
    EXPECT_TRUE(compared(native, tiny(options)).same())
        << "transformers names, format " << static_cast<int>(format);
  }
}

TEST(Diff, OtherWeightsAreOtherInEveryModule) {
  const DiffReport report = compared(tiny(tiny_options()), tiny(tiny_options(test::TinyFormat::kNative, 2)));
  EXPECT_FALSE(report.same());
  const DifferenceGroup* experts = group(report, Module::kRoutedExpert);
  ASSERT_NE(experts, nullptr);
  EXPECT_EQ(experts->counts[static_cast<std::size_t>(Difference::kRequantised)], 3 * 8 * 3);
  EXPECT_LT(experts->sums.snr_db(), 10);
  EXPECT_FALSE(experts->worst.empty());
  const DifferenceGroup* embedding = group(report, Module::kEmbedding);
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->counts[static_cast<std::size_t>(Difference::kOtherValues)], 1);
}

TEST(Diff, ADraftHeadOnOneSideIsOnlyThere) {
  test::TinyOptions with = tiny_options();
  with.head = test::TinyHead::kMtp;
  const DiffReport report = compared(tiny(with), tiny(tiny_options()));
  EXPECT_GT(count(report, Difference::kOnlyA), 0);
  EXPECT_EQ(count(report, Difference::kOnlyB), 0);
  const DifferenceGroup* draft = group(report, Module::kDraftHead, true);
  ASSERT_NE(draft, nullptr);
  EXPECT_EQ(draft->tensors(), draft->counts[static_cast<std::size_t>(Difference::kOnlyA)]);
  EXPECT_EQ(compared(tiny(tiny_options()), tiny(with)).counts[static_cast<std::size_t>(Difference::kOnlyB)],
            count(report, Difference::kOnlyA));
}

TEST(Diff, StoppedFromTheStartIsPartialAndSaysSo) {
  const fs::path model = tiny(tiny_options());
  const std::atomic<bool> stop{true};
  DiffOptions options;
  options.stop = &stop;
  const DiffReport report = compared(model, model, options);
  EXPECT_FALSE(report.complete);
  EXPECT_FALSE(report.same());
  EXPECT_EQ(report.verdict().rfind("PARTIAL", 0), 0u);
  EXPECT_EQ(nlohmann::json::parse(diff_json(report)).at("complete"), false);
}

TEST(Diff, ResultsDoNotDependOnThreads) {
  const fs::path a = tiny(tiny_options());
  const fs::path b = tiny(tiny_options(test::TinyFormat::kNative, 2));
  DiffOptions options;
  options.threads = 1;
  const DiffReport one = compared(a, b, options);
  options.threads = 5;
  const DiffReport five = compared(a, b, options);
  ASSERT_EQ(one.tensors.size(), five.tensors.size());
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    EXPECT_EQ(one.tensors[i].name, five.tensors[i].name);
    EXPECT_EQ(one.tensors[i].difference, five.tensors[i].difference);
    EXPECT_EQ(one.tensors[i].sums.squared_error, five.tensors[i].sums.squared_error);
  }
}

TEST(Diff, AnUnsoundSideIsRefusedByName) {
  const fs::path model = tiny(tiny_options());
  const fs::path broken = tiny(tiny_options());
  std::ofstream(broken / "config.json", std::ios::trunc) << test::tiny_config_json([] {
    test::TinyOptions options = tiny_options();
    options.n_routed_experts = 9;
    return options;
  }());
  const Checkpoint left = opened(model);
  const Checkpoint right = opened(broken);
  const auto report = diff_checkpoints(left, right, "A", "side B");
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().to_string().find("side B"), std::string::npos);
}

// ---- goldens ----

TEST(DiffGoldens, LosslessTwinIsReencodedAndNothingElse) {
  PIVOT_NEED_DATA(wide, "goldens-wide");
  const fs::path twin = test::scratch_dir() / "twin";
  fs::copy(wide / "nvfp4_lossless", twin);
  fs::create_symlink(wide / "native/model-00001-of-00002.safetensors",
                     twin / "model-00001-of-00002.safetensors");
  const DiffReport report = compared(wide / "native", twin);
  EXPECT_TRUE(report.same()) << report.verdict();
  EXPECT_EQ(count(report, Difference::kReencoded), 72);
}

TEST(DiffGoldens, LossyTwinIsRequantised) {
  PIVOT_NEED_DATA(goldens, "goldens");
  const DiffReport report = compared(goldens / "native", goldens / "nvfp4");
  EXPECT_FALSE(report.same());
  const DifferenceGroup* experts = group(report, Module::kRoutedExpert);
  ASSERT_NE(experts, nullptr);
  EXPECT_EQ(experts->counts[static_cast<std::size_t>(Difference::kReencoded)], 0);
  EXPECT_GT(experts->sums.snr_db(), 15);
  EXPECT_LT(experts->sums.snr_db(), 60);
  EXPECT_GT(experts->sums.cosine(), 0.98);
  // Everything else, and the draft's experts, are untouched.
  for (const DifferenceGroup& one : report.modules) {
    EXPECT_EQ(one.same(), one.module != Module::kRoutedExpert || one.draft) << module_name(one.module);
  }
  EXPECT_EQ(test::schema_faults(diff_json(report, true), "diff.json"), std::vector<std::string>());
  const auto json = nlohmann::json::parse(diff_json(report));
  EXPECT_EQ(json.at("schema"), "pivot.diff/1");
  EXPECT_EQ(json.at("same_values"), false);
}

}  // namespace
}  // namespace pivot
