#include "engine/devices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace pivot::test {
namespace {

TEST(Devices, CpuBackEndsExistEverywhere) {
  EXPECT_EQ(make_backend("cpu-reference", 1).value()->name(), "cpu-reference");
  EXPECT_EQ(make_backend("cpu", 1).value()->name(), "cpu");
  EXPECT_GT(make_backend("cpu").value()->device().memory_bytes, 0);
}

TEST(Devices, UnknownWordsAreRefusedWithThePossibleOnes) {
  for (const char* word : {"gpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU"}) {
    const auto backend = make_backend(word);
    ASSERT_FALSE(backend) << word;
    EXPECT_EQ(backend.error().code, ErrorCode::kInvalidArgument) << word;
    EXPECT_NE(backend.error().message.find("cpu-reference"), std::string::npos) << backend.error().message;
  }
  EXPECT_EQ(make_backend("cpu", -1).error().code, ErrorCode::kInvalidArgument);
}

TEST(Devices, ACpuBuildSaysHowToGetCuda) {
  const std::vector<std::string> words = device_words();
  if (std::find(words.begin(), words.end(), "cuda") != words.end()) GTEST_SKIP() << "this build has CUDA";
  const auto backend = make_backend("cuda:1");
  ASSERT_FALSE(backend);
  EXPECT_EQ(backend.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(backend.error().message.find("PIVOT_CUDA=ON"), std::string::npos) << backend.error().message;
  EXPECT_EQ(make_backend("auto", 1).value()->name(), "cpu");
}

}  // namespace
}  // namespace pivot::test
