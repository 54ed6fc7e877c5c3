#include "base/installation.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/embedded_model.h"
#include "support/test_data.h"

namespace pivot {
namespace {

TEST(Installation, FindsTheModelBesideTheExecutablesFolder) {
  const auto prefix = test::scratch_dir();
  std::filesystem::create_directories(prefix / "bin");
  std::filesystem::create_directories(prefix / "share/pivot/needle");
  std::ofstream(prefix / "share/pivot/needle/config.json") << "{}";
  const auto found = embedded_model_dir(prefix / "bin");
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(*found, prefix / "share/pivot/needle");
}

TEST(Installation, SaysWhereItLookedAndWhatToDo) {
  const auto prefix = test::scratch_dir();
  const auto found = embedded_model_dir(prefix / "bin");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kNotFound);
  EXPECT_NE(found.error().message.find((prefix / "share/pivot/needle").string()), std::string::npos);
  EXPECT_NE(found.error().message.find("needle_model"), std::string::npos);
}

TEST(Installation, LeavesOtherModelArgumentsAlone) {
  EXPECT_EQ(resolve_model_argument("/models/flash").value(), "/models/flash");
  EXPECT_EQ(resolve_model_argument("embedded-not").value(), "embedded-not");
  const auto tally = resolve_model_argument("tally");  // beside the test's own executable: nowhere
  ASSERT_FALSE(tally);
  EXPECT_NE(tally.error().message.find("tally_model"), std::string::npos) << tally.error().message;
}

TEST(EmbeddedModel, IsUnpackedCompletely) {
  const auto folder = test::embedded_model_dir();
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  }
  EXPECT_EQ(std::filesystem::file_size(folder / "model.safetensors"), 21'022'608u);
  EXPECT_TRUE(std::filesystem::exists(test::needle_cases_file()));
}

}  // namespace
}  // namespace pivot
