// inspect, diff, convert and plan from outside: signals, rights, broken folders, and their JSON against
// docs/schema.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/model_config.h"
#include "checkpoint/modules/modules.h"
#include "run_program.h"
#include "support/json_schema.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int kInterrupted = 130;  // 128 + SIGINT
constexpr int kKilled = 128 + SIGKILL;

fs::path tiny_checkpoint(TinyOptions options = {}) {
  const fs::path folder = scratch_dir() / "model";
  write_tiny_checkpoint(folder, options);
  // Freshly written shards would be reported as still being written.
  for (const auto& entry : fs::directory_iterator(folder))
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - 1h);
  return folder;
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path().filename().string()] = text_of(entry.path());
  return files;
}

std::vector<std::string> faults(const ProgramResult& result, const char* schema) {
  EXPECT_TRUE(nlohmann::json::accept(result.out)) << result.out << result.err;
  if (!nlohmann::json::accept(result.out)) return {"no JSON"};
  return schema_faults(result.out, schema);
}

const std::vector<std::string> kNone;

// ---- documented output ----

TEST(FactsJson, EveryCommandPrintsWhatItsSchemaSays) {
  const fs::path model = tiny_checkpoint();
  const fs::path copy = scratch_dir() / "nvfp4";
  EXPECT_EQ(faults(run_pivot({"inspect", model, "--json"}), "inspect.json"), kNone);
  EXPECT_EQ(faults(run_pivot({"inspect", model.parent_path(), "--json"}), "inspect-listing.json"), kNone);
  const auto converted = run_pivot({"convert", model, copy, "--experts", "nvfp4", "--json"});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_EQ(faults(converted, "convert.json"), kNone);
  const auto same = run_pivot({"diff", model, copy, "--json", "--every-tensor"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(faults(same, "diff.json"), kNone);
  const auto plan = run_pivot({"plan", model, "--gpus", "2xH200", "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(faults(plan, "plan.json"), kNone);
  const auto diff_file = scratch_dir() / "diff.json";
  std::ofstream(diff_file) << same.out;
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--diff", diff_file}}) {
    std::vector<std::string> command = {"plan", copy, "--to", model, "--gpus", "8xRTX-PRO-6000", "--json"};
    command.insert(command.end(), more.begin(), more.end());
    const auto migration = run_pivot(command);
    EXPECT_EQ(migration.exit_code, 0) << migration.err;
    EXPECT_EQ(faults(migration, "migration.json"), kNone);
  }
}

// The models that come with pivot have names wherever a checkpoint is asked for.
TEST(FactsText, TakesTheShippedModelsByName) {
  const fs::path out = scratch_dir() / "nvfp4";
  const ProgramResult converted = run_pivot({"convert", "embedded", out.string(), "--experts", "nvfp4"});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  const ProgramResult same = run_pivot({"diff", "embedded", out.string()});
  EXPECT_NE(same.out.find("the same values everywhere"), std::string::npos) << same.out << same.err;
  EXPECT_EQ(run_pivot({"diff", "tally", "tally"}).exit_code, 0);
  EXPECT_EQ(run_pivot({"inspect", "embedded"}).exit_code, 0);
  EXPECT_EQ(run_pivot({"plan", "embedded", "--gpus", "1xH200", "--to", "tally"}).exit_code, 0);
}

TEST(FactsText, ColoursOnATerminalOnly) {
  const fs::path model = tiny_checkpoint();
  const fs::path copy = scratch_dir() / "nvfp4";
  ASSERT_EQ(run_pivot({"convert", model, copy, "--experts", "nvfp4", "--no-verify"}).exit_code, 0);
  const std::vector<std::string> command = {"plan", copy, "--to", model, "--gpus", "8xRTX-PRO-6000"};
  TerminalProgram report(command);
  EXPECT_TRUE(report.wait_for("Open facts"));
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_NE(report.screen().find("\x1b[31mdoes not port"), std::string::npos);
  EXPECT_EQ(run_pivot(command).out.find('\x1b'), std::string::npos);
}

// ---- signals ----

// A checkpoint of 1.8 GB that takes no space: its shard is a hole behind a true header.
fs::path hollow_checkpoint() {
  TinyOptions options;
  options.hidden_size = 4096;
  options.moe_intermediate_size = 2048;
  options.n_routed_experts = 128;
  options.compress_ratios = {0};
  options.num_hash_layers = 0;
  const fs::path folder = scratch_dir() / "hollow";
  fs::create_directories(folder);
  const std::string config = tiny_config_json(options);
  std::ofstream(folder / "config.json") << config;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::int64_t offset = 0;
  CheckpointFormats formats;
  formats.head = HeadKind::kNone;
  formats.draft_stages = 0;
  for (const StoredDeclaration& tensor : stored_tensors(*parse_model_config(config, "hollow"), formats)) {
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  const fs::path shard = folder / "model.safetensors";
  std::ofstream(shard, std::ios::binary) << length << text;
  fs::resize_file(shard, 8 + text.size() + static_cast<std::uintmax_t>(offset));
  return folder;
}

TEST(FactsSignals, CtrlCInDiffLeavesAPartialReportThatSaysSo) {
  const fs::path model = hollow_checkpoint();
  bool partial = false;
  // Whatever moment the signal meets, the answer is sound; one of the moments is in the middle.
  for (auto delay = 10ms; delay < 20s && !partial; delay += delay / 4) {
    BackgroundProgram diff({"diff", model, model, "--json", "--threads", "1"});
    std::this_thread::sleep_for(delay);
    diff.send(SIGINT);
    const ProgramResult result = diff.result();
    if (result.exit_code == 0) {
      EXPECT_EQ(nlohmann::json::parse(result.out).at("complete"), true);
      continue;
    }
    ASSERT_EQ(result.exit_code, kInterrupted) << result.err;
    if (result.out.empty()) continue;  // before the comparison began
    EXPECT_EQ(faults(result, "diff.json"), kNone);
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json.at("complete"), false);
    EXPECT_EQ(json.at("same_values"), false);
    EXPECT_EQ(json.at("verdict").get<std::string>().rfind("PARTIAL", 0), 0u) << json.at("verdict");
    EXPECT_NE(result.err.find("partial"), std::string::npos) << result.err;
    partial = true;
  }
  EXPECT_TRUE(partial);
}

TEST(FactsSignals, KilledConversionsNeverLookFinishedAndResumeToTheSameBytes) {
  TinyOptions options;
  options.num_shards = 6;
  const fs::path model = tiny_checkpoint(options);
  const auto source = files_of(model);
  const fs::path whole = scratch_dir() / "whole";
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(run_pivot({"convert", model, whole, "--experts", "fp8", "--no-verify"}).exit_code, 0);
  const auto duration = std::chrono::steady_clock::now() - begin;
  const auto wanted = files_of(whole);
  int interrupted = 0;
  for (int step = 1; step <= 10; ++step) {
    const fs::path output = scratch_dir() / "out";
    // Killed up to three times, then left alone.
    for (int kills = 0; kills < 3; ++kills) {
      BackgroundProgram convert({"convert", model, output, "--experts", "fp8", "--no-verify"});
      std::this_thread::sleep_for(duration * step / 11);
      convert.send(SIGKILL);
      const ProgramResult result = convert.result();
      if (result.exit_code != kKilled) break;
      ++interrupted;
      const bool finished = fs::exists(output / "config.json") && !fs::exists(output / ".pivot-convert.json");
      if (finished) break;
      EXPECT_NE(run_pivot({"inspect", output, "--json"}).exit_code, 0) << "a half-made output passes";
    }
    const auto resumed = run_pivot({"convert", model, output, "--experts", "fp8", "--no-verify", "--json"});
    // A folder that is already complete is refused, never overwritten.
    EXPECT_TRUE(resumed.exit_code == 0 || resumed.err.find("is not empty") != std::string::npos)
        << resumed.err;
    auto got = files_of(output);
    got.erase(".pivot-convert.lock");
    EXPECT_EQ(got, wanted) << "step " << step;
  }
  EXPECT_GT(interrupted, 0);
  EXPECT_EQ(files_of(model), source) << "the source was touched";
}

// ---- rights, broken folders ----

TEST(FactsRights, UnreadableShardsAndUnwritableFoldersAreNamed) {
  const fs::path model = tiny_checkpoint();
  const fs::path shard = model / "model-00002-of-00002.safetensors";
  fs::permissions(shard, fs::perms::none);
  const auto inspected = run_pivot_without_rights({"inspect", model});
  if (!inspected) GTEST_SKIP() << "the build folder is closed to the user nobody, and the tests run as root";
  EXPECT_EQ(inspected->exit_code, 1) << inspected->err;
  EXPECT_NE(inspected->out.find("model-00002-of-00002.safetensors"), std::string::npos);
  EXPECT_NE(inspected->out.find("ermission"), std::string::npos) << inspected->out;
  const auto compared = run_pivot_without_rights({"diff", model, model});
  EXPECT_NE(compared->exit_code, 0);
  EXPECT_NE(compared->err.find("ermission"), std::string::npos) << compared->err;
  fs::permissions(shard, fs::perms::owner_read | fs::perms::others_read);
  const fs::path closed = scratch_dir() / "closed";
  fs::create_directory(closed);
  fs::permissions(closed, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
  const auto refused = run_pivot_without_rights({"convert", model, closed / "out", "--experts", "nvfp4"});
  EXPECT_NE(refused->exit_code, 0);
  EXPECT_NE(refused->err.find((closed / "out").string()), std::string::npos) << refused->err;
  EXPECT_NE(refused->err.find("ermission"), std::string::npos) << refused->err;
  fs::permissions(closed, fs::perms::owner_all);
}

TEST(FactsBroken, LoopsEmptyShardsAndContradictionsEndWithASentence) {
  const fs::path root = scratch_dir();
  fs::create_directory_symlink(root / "loop", root / "loop");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"inspect", root / "loop"},
        {"diff", root / "loop", root / "loop"},
        {"convert", root / "loop", root / "out", "--experts", "nvfp4"},
        {"plan", root / "loop", "--gpus", "1xH200"}}) {
    const auto result = run_pivot(command);
    EXPECT_NE(result.exit_code, 0) << command.front();
    EXPECT_EQ(result.err.rfind("pivot: ", 0), 0u) << result.err;
    EXPECT_LT(result.exit_code, 128) << command.front();
  }
  EXPECT_FALSE(fs::exists(root / "out"));

  const fs::path model = tiny_checkpoint();
  fs::resize_file(model / "model-00001-of-00002.safetensors", 0);
  const auto empty = run_pivot({"inspect", model});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_NE(empty.out.find("model-00001-of-00002.safetensors"), std::string::npos) << empty.out;
  EXPECT_NE(run_pivot({"convert", model, root / "out", "--experts", "nvfp4"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(root / "out")) << "a broken source left something behind";

  // The config of another model beside the shards.
  TinyOptions other;
  other.n_routed_experts = 16;
  const fs::path mixed = tiny_checkpoint();
  std::ofstream(mixed / "config.json", std::ios::trunc) << tiny_config_json(other);
  const auto contradicting = run_pivot({"inspect", mixed});
  EXPECT_EQ(contradicting.exit_code, 1);
  EXPECT_NE(contradicting.out.find("n_routed_experts"), std::string::npos) << contradicting.out;
}

TEST(FactsBroken, HostileNamesCannotDriveTheTerminal) {
  const fs::path model = tiny_checkpoint();
  // The same length, so that the header's own offsets stay right.
  std::string shard = text_of(model / "model-00001-of-00002.safetensors");
  const std::string name = "layers.0.attn.q_norm.weight";
  const std::size_t at = shard.find(name);
  ASSERT_NE(at, std::string::npos);
  shard.replace(at, name.size(), "\\u001b]0;owned\\u0007.weight");
  std::ofstream(model / "model-00001-of-00002.safetensors", std::ios::binary | std::ios::trunc) << shard;
  fs::remove(model / "model.safetensors.index.json");
  const auto result = run_pivot({"inspect", model});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("owned"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(result.out.find('\a'), std::string::npos);
}

}  // namespace
}  // namespace pivot::test
