// `pivot logits`: the file's shape, and that its numbers do not depend on how the work was cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "run_program.h"
#include "support/embedded_model.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

using Json = nlohmann::json;

// The header and the data of a safetensors file, read without pivot's reader.
struct Tensors {
  Json header;
  std::string data;

  template <class T>
  std::vector<T> values(const std::string& name) const {
    const std::size_t begin = header[name]["data_offsets"][0];
    const std::size_t end = header[name]["data_offsets"][1];
    std::vector<T> result((end - begin) / sizeof(T));
    std::copy_n(data.data() + begin, end - begin, reinterpret_cast<char*>(result.data()));
    return result;
  }
};

Tensors read_tensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  std::string data((std::istreambuf_iterator<char>(file)), {});
  return {Json::parse(header), std::move(data)};
}

class LogitsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = scratch_dir();
    std::ifstream file(needle_cases_file());
    Json cases = Json::parse(file);
    if (cases.is_object()) cases = cases["cases"];
    for (const Json& item : cases) {
      if (case_.is_null() || item["prompt_tokens"].size() < case_["prompt_tokens"].size()) case_ = item;
    }
    write("ids.json", case_["prompt_tokens"]);
    Json answer = case_["answer_tokens"];
    answer.erase(answer.size() - 1);
    write("answer.json", Json{{"ids", answer}});
  }
  void write(const std::string& name, const Json& json) { std::ofstream(folder_ / name) << json; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  ProgramResult logits(const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"logits",         "embedded", "--ids",
                                          path("ids.json"), "--out",    path(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_pivot(arguments);
  }

  std::filesystem::path folder_;
  Json case_;
};

TEST_F(LogitsTest, WritesPromptAndSteps) {
  const ProgramResult result = logits("a.safetensors", {"--steps", "5", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  const Tensors tensors = read_tensors(path("a.safetensors"));
  const std::size_t vocab_size = json["vocab_size"];
  EXPECT_EQ(tensors.header["logits"]["shape"], (Json{6, vocab_size}));
  EXPECT_EQ(tensors.header["logits"]["dtype"], "F32");
  EXPECT_EQ(Json(tensors.values<std::int32_t>("prompt_ids")), case_["prompt_tokens"]);
  const auto steps = tensors.values<std::int32_t>("step_ids");
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_EQ(Json(steps), json["step_ids"]);
  const auto rows = tensors.values<float>("logits");
  for (std::size_t step = 0; step < 5; ++step) {
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(step * vocab_size);
    EXPECT_EQ(std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab_size)) - row, steps[step]);
    EXPECT_EQ(steps[step], case_["answer_tokens"][step]);
  }
  EXPECT_EQ(tensors.header["__metadata__"]["knobs"], "reference");
}

TEST_F(LogitsTest, IsTheSameForAForcedContinuationAndForAnyChunk) {
  ASSERT_EQ(logits("forced.safetensors", {"--continuation", path("answer.json")}).exit_code, 0);
  const auto count = std::to_string(case_["answer_tokens"].size() - 1);
  ASSERT_EQ(
      logits("greedy.safetensors", {"--steps", count, "--backend", "reference", "--device", "cpu"}).exit_code,
      0);
  ASSERT_EQ(logits("chunk.safetensors",
                   {"--steps", count, "--backend", "reference", "--device", "cpu", "--chunk", "7"})
                .exit_code,
            0);
  const Tensors greedy = read_tensors(path("greedy.safetensors"));
  const Tensors chunked = read_tensors(path("chunk.safetensors"));
  EXPECT_EQ(read_tensors(path("forced.safetensors")).values<std::int32_t>("step_ids"),
            greedy.values<std::int32_t>("step_ids"));
  EXPECT_TRUE(greedy.data == chunked.data) << "bits differ between prefill in one piece and in pieces of 7";
}

TEST_F(LogitsTest, LeavesNothingBehindOnFailure) {
  const auto count_files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  };
  const auto before = count_files();
  EXPECT_EQ(run_pivot({"logits", "embedded", "--ids", path("ids.json"), "--out", "/nonexistent/x"}).exit_code,
            73);
  EXPECT_EQ(logits("b.safetensors", {"--max-context", "20"}).exit_code, 65);
  EXPECT_EQ(logits("b.safetensors", {"--steps", "-1"}).exit_code, 64);
  EXPECT_EQ(logits("b.safetensors", {"--steps", "99", "--continuation", path("answer.json")}).exit_code, 64);
  EXPECT_EQ(logits("b.safetensors", {"--chunk", "-2"}).exit_code, 64);
  write("ids.json", Json{{"ids", {1, 4096}}});
  EXPECT_EQ(logits("b.safetensors", {}).exit_code, 64);
  EXPECT_EQ(count_files(), before);
}

}  // namespace
}  // namespace pivot::test
