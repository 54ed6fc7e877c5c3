// The migration report: every pair of real checkpoints gets the right verdicts, and every statement a source.
#include "checkpoint/plan/migration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/report/html.h"
#include "base/report/text.h"
#include "base/report/units.h"
#include "support/json_schema.h"
#include "support/test_data.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

struct Sides {
  MigrationInput input;
  Migration migration;
};

Result<Sides> migrate(const fs::path& a, const fs::path& config_a, const fs::path& b,
                      const fs::path& config_b, const char* gpus = "8xRTX-PRO-6000", int numa_nodes = 2) {
  PIVOT_TRY(const HardwareCatalogue catalogue, parse_hardware(embedded_hardware_json()));
  PIVOT_TRY(const Machine machine, parse_machine(gpus, "", numa_nodes, catalogue));
  const auto optional = [](const fs::path& path) {
    return path.empty() ? std::nullopt : std::optional(path);
  };
  PIVOT_TRY(const Subject from, Subject::open(a.string(), optional(config_a)));
  PIVOT_TRY(const Subject to, Subject::open(b.string(), optional(config_b)));
  Sides sides;
  PIVOT_TRY(sides.input.a, migration_side(from, {}, machine, {}, {}));
  PIVOT_TRY(sides.input.b, migration_side(to, {}, machine, {}, {}));
  sides.migration = make_migration(sides.input);
  return sides;
}

const PortItem* port(const Migration& migration, std::string_view what) {
  for (const PortItem& item : migration.feasibility)
    if (item.what.find(what) != std::string::npos) return &item;
  return nullptr;
}

const Complaint* complaint(const Migration& migration, std::string_view what) {
  for (const Complaint& item : migration.complaints)
    if (item.complaint.find(what) != std::string::npos) return &item;
  return nullptr;
}

void expect_sources(const Migration& migration) {
  const auto check = [](const Source& source, const std::string& text) {
    EXPECT_FALSE(source.reference.empty()) << text;
  };
  for (const Statement& one : migration.summary) check(one.source, one.text);
  for (const PortItem& one : migration.feasibility) check(one.source, one.what);
  for (const Statement& one : migration.components) check(one.source, one.text);
  for (const Complaint& one : migration.complaints) check(one.source, one.complaint);
  for (const Statement& one : migration.practicality) check(one.source, one.text);
  for (const KeyFigure& one : migration.figures) check(one.source, one.figure);
  for (const Statement& one : migration.rollback) check(one.source, one.text);
  for (const OpenFact& one : migration.open_facts)
    EXPECT_EQ(one.command.rfind("pivot ", 0), 0u) << one.command;
}

TEST(Migration, NvidiaNvfp4ToNative0731) {
  PIVOT_NEED_DATA(real, "real");
  const auto sides = migrate(real / "headers/nvidia-DeepSeek-V4-Flash-NVFP4.headers.DERIVED.json.gz",
                             real / "configs/nvidia-DeepSeek-V4-Flash-NVFP4/config.json",
                             real / "headers/DeepSeek-V4-Flash-0731.headers.json.gz",
                             real / "configs/DeepSeek-V4-Flash-0731/config.json");
  ASSERT_TRUE(sides) << sides.error().to_string();
  const Migration& migration = sides->migration;
  expect_sources(migration);
  for (const char* unchanged : {"sparse attention", "compressors", "indexer", "hyper-connections", "router",
                                "shared expert", "hand-over", "systemd", "knobs"}) {
    const PortItem* item = port(migration, unchanged);
    ASSERT_NE(item, nullptr) << unchanged;
    EXPECT_EQ(item->port, Port::kUnchanged) << unchanged << ": " << item->why;
  }
  for (const char* no :
       {"grouped GEMM", "weight loader", "expert activation", "speculative decoding", "cached prefixes"}) {
    const PortItem* item = port(migration, no);
    ASSERT_NE(item, nullptr) << no;
    EXPECT_EQ(item->port, Port::kNo) << no;
  }
  EXPECT_EQ(port(migration, "CUDA graphs")->port, Port::kWithChanges);
  EXPECT_EQ(port(migration, "chat encoding")->port, Port::kWithChanges);
  const Complaint* recall = complaint(migration, "facts are lost");
  ASSERT_NE(recall, nullptr);
  EXPECT_EQ(recall->cure, Cure::kNotByItself);
  EXPECT_NE(recall->why.find("2048"), std::string::npos);
  EXPECT_NE(complaint(migration, "decode is slow")->why.find("%"), std::string::npos);
  ASSERT_FALSE(migration.practicality.empty());
  EXPECT_NE(migration.practicality.front().text.find("166,878,536,440"), std::string::npos);
  EXPECT_FALSE(migration.steps.empty());
  EXPECT_FALSE(migration.rollback.empty());
  ASSERT_FALSE(migration.open_facts.empty());
  // Everything shows in every rendering.
  const report::Document document = migration_document(migration, sides->input);
  const std::string text = report::render_text(document, {120, false});
  for (const char* part : {"Feasibility", "Efficacy", "Practicality", "Open facts", "not by itself"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  for (const int width : {80, 120}) {
    std::istringstream lines(report::render_text(document, {width, false}));
    // A path longer than the terminal stays in one piece, so that it can be copied.
    for (std::string line; std::getline(lines, line);)
      if (line.find_first_of(' ', line.find_first_not_of(' ')) != std::string::npos) {
        EXPECT_LE(report::display_width(line), static_cast<std::size_t>(width)) << line;
      }
  }
  EXPECT_NE(report::render_html(document).find("<svg"), std::string::npos);
  EXPECT_EQ(test::schema_faults(migration_json(migration), "migration.json"), std::vector<std::string>());
  ASSERT_TRUE(sides->input.b.plan);
  EXPECT_EQ(test::schema_faults(plan_json(*sides->input.b.plan), "plan.json"), std::vector<std::string>());
}

TEST(Migration, PreviewToItsNvfp4ChangesTheExpertsAlone) {
  PIVOT_NEED_DATA(real, "real");
  const auto sides = migrate(real / "headers/DeepSeek-V4-Flash.headers.json.gz",
                             real / "configs/DeepSeek-V4-Flash/config.json",
                             real / "headers/nvidia-DeepSeek-V4-Flash-NVFP4.headers.DERIVED.json.gz",
                             real / "configs/nvidia-DeepSeek-V4-Flash-NVFP4/config.json");
  ASSERT_TRUE(sides) << sides.error().to_string();
  expect_sources(sides->migration);
  for (const ModuleComparison& module : sides->migration.modules)
    EXPECT_EQ(module.equal(), module.module != Module::kRoutedExpert || module.draft)
        << module_name(module.module);
  EXPECT_EQ(port(sides->migration, "speculative decoding")->port, Port::kUnchanged);
  EXPECT_EQ(port(sides->migration, "chat encoding")->port, Port::kUnchanged);
  EXPECT_EQ(complaint(sides->migration, "slightly worse")->cure, Cure::kNo);
}

TEST(Migration, ConfigsAloneAreEnoughForAPlan) {
  PIVOT_NEED_DATA(real, "real/configs");
  const auto sides =
      migrate(real / "nvidia-DeepSeek-V4-Flash-0731-NVFP4", {}, real / "DeepSeek-V4-Flash-0731", {});
  ASSERT_TRUE(sides) << sides.error().to_string();
  expect_sources(sides->migration);
  EXPECT_EQ(sides->input.a.tensors.size(), 138365u);
  EXPECT_EQ(sides->input.b.data_bytes, 166'878'536'440u);
  EXPECT_EQ(port(sides->migration, "grouped GEMM")->port, Port::kNo);
  EXPECT_EQ(port(sides->migration, "speculative decoding")->port, Port::kUnchanged);
  EXPECT_EQ(sides->migration.practicality.front().source.basis, Basis::kComputed);
}

TEST(Migration, V41IsAnotherArchitecture) {
  PIVOT_NEED_DATA(real, "real/configs");
  const auto sides = migrate(real / "DeepSeek-V4-Flash-0731", {}, real / "DeepSeek-V4.1-Flash", {});
  ASSERT_TRUE(sides) << sides.error().to_string();
  EXPECT_FALSE(sides->migration.same_architecture);
  expect_sources(sides->migration);
  EXPECT_EQ(port(sides->migration, "attention")->port, Port::kNo);
  EXPECT_EQ(port(sides->migration, "systemd")->port, Port::kUnchanged);
  EXPECT_TRUE(std::any_of(
      sides->migration.summary.begin(), sides->migration.summary.end(),
      [](const Statement& one) { return one.text.find("cannot be served") != std::string::npos; }));
}

TEST(Migration, AMeasuredDiffReplacesPublicFacts) {
  PIVOT_NEED_DATA(real, "real/configs");
  auto sides = migrate(real / "nvidia-DeepSeek-V4-Flash-NVFP4", {}, real / "DeepSeek-V4-Flash", {});
  ASSERT_TRUE(sides) << sides.error().to_string();
  const std::string json =
      R"({"schema":"pivot.diff/1","verdict":"differs in routed experts","complete":true,"modules":[
    {"module":"routed experts","draft":false,"same_values":false,"counts":{"re-quantised":33024},"errors":{"snr_db":21.5}},
    {"module":"attention","draft":false,"same_values":true,"counts":{"byte-identical":559},"errors":{"snr_db":null}}]})";
  auto diff = parse_diff_json(json, "diff.json");
  ASSERT_TRUE(diff) << diff.error().to_string();
  sides->input.diff = *diff;
  const Migration migration = make_migration(sides->input);
  ASSERT_EQ(migration.components.size(), 3u);
  for (const Statement& statement : migration.components) EXPECT_EQ(statement.source.basis, Basis::kMeasured);
  EXPECT_NE(migration.components[1].text.find("21.5 dB"), std::string::npos);
  EXPECT_FALSE(std::any_of(migration.open_facts.begin(), migration.open_facts.end(),
                           [](const OpenFact& one) { return one.command.find("pivot diff") == 0; }));
}

TEST(Migration, BrokenDiffReportsAreRefused) {
  for (const char* bad : {"", "{}", "[1]", R"({"schema":"pivot.diff/1"})", R"({"schema":"other"})"}) {
    const auto diff = parse_diff_json(bad, "diff.json");
    ASSERT_FALSE(diff) << bad;
    EXPECT_EQ(diff.error().code, ErrorCode::kInvalidData);
  }
}

}  // namespace
}  // namespace pivot
