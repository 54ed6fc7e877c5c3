// Sequential writing: every byte arrives, whatever the pieces; a file that cannot be made is told at once.
#include "base/sequential_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "support/test_data.h"

namespace pivot {
namespace {

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(SequentialFile, AnySplitGivesTheSameFile) {
  const auto folder = test::scratch_dir();
  std::mt19937 random(1);
  // Around the block size of direct writes and the size of the buffer.
  for (const std::size_t size :
       {0u, 1u, 4095u, 4096u, 4097u, (4u << 20) - 1, 4u << 20, (4u << 20) + 1, 9'000'001u}) {
    std::string contents(size, '\0');
    for (char& c : contents) c = static_cast<char>(random());
    auto file = SequentialFile::create(folder / "file");
    ASSERT_TRUE(file) << file.error().to_string();
    for (std::size_t at = 0; at < size;) {
      const std::size_t piece = std::min<std::size_t>(size - at, 1 + random() % 1'500'000);
      ASSERT_TRUE(file->append(std::as_bytes(std::span(contents).subspan(at, piece))));
      at += piece;
    }
    ASSERT_TRUE(file->finish());
    EXPECT_TRUE(contents_of(folder / "file") == contents) << size;
  }
}

TEST(SequentialFile, AFolderThatIsNotThereIsToldAtOnce) {
  const auto file = SequentialFile::create(test::scratch_dir() / "absent" / "file");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kCannotCreate);
}

TEST(SequentialFile, AFullDeviceIsAnError) {
  auto file = SequentialFile::create("/dev/full");
  if (!file) GTEST_SKIP() << "there is no /dev/full here";
  const std::string bytes(5 << 20, 'x');
  const bool appended = file->append(std::as_bytes(std::span(bytes))).has_value();
  EXPECT_FALSE(appended && file->finish().has_value());
}

}  // namespace
}  // namespace pivot
