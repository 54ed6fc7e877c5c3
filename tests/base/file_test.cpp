#include "base/file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/test_data.h"

namespace pivot {
namespace {

TEST(File, WritesWholeFilesAndMapsThem) {
  const auto path = test::scratch_dir() / "a.bin";
  ASSERT_TRUE(write_file(path, "hello"));
  const auto mapped = MappedFile::open(path);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->bytes().size(), 5u);
  EXPECT_EQ(*read_file(path), "hello");
}

TEST(File, AFailedWriteLeavesNothingBehind) {
  const auto folder = test::scratch_dir();
  const auto failed = write_file(folder / "missing" / "a.bin", "x");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kCannotCreate);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(File, RefusesWhatIsNotAFile) {
  const auto folder = test::scratch_dir();
  EXPECT_EQ(MappedFile::open(folder).error().code, ErrorCode::kInvalidData);
  EXPECT_EQ(MappedFile::open(folder / "nothing").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_file(folder).error().code, ErrorCode::kInvalidArgument);
}

TEST(File, RefusesAFileLargerThanAllowed) {
  const auto path = test::scratch_dir() / "a.bin";
  ASSERT_TRUE(write_file(path, "hello"));
  EXPECT_EQ(read_file(path, 4).error().code, ErrorCode::kInvalidData);
}

}  // namespace
}  // namespace pivot
