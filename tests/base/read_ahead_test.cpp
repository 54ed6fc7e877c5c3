// Reading ahead: every byte of every range, in order, from any number of threads; errors and stops end it
// cleanly.
#include "base/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "support/test_data.h"

namespace pivot {
namespace {

std::string random_file(const std::filesystem::path& path, std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string contents(bytes, '\0');
  for (char& c : contents) c = static_cast<char>(random());
  std::ofstream(path, std::ios::binary) << contents;
  return contents;
}

TEST(ReadAhead, HandsOutEveryRangeExactly) {
  const auto folder = test::scratch_dir();
  const std::vector<std::filesystem::path> files = {folder / "a", folder / "b"};
  const std::vector<std::string> contents = {random_file(files[0], 300'001, 1),
                                             random_file(files[1], 70'000, 2)};
  std::mt19937 random(3);
  std::vector<ReadJob> jobs;
  for (int j = 0; j < 200; ++j) {
    ReadJob job;
    for (unsigned r = 0; r < 1 + random() % 3; ++r) {
      const std::uint32_t file = random() % 2;
      const std::uint64_t offset = random() % contents[file].size();
      job.ranges.push_back({file, offset, random() % (contents[file].size() - offset + 1)});
    }
    jobs.push_back(job);
  }
  jobs.push_back({{{0, 300'000, 1}, {1, 0, 70'000}}});  // the very end, and a whole file
  for (const int threads : {1, 4}) {
    auto reader = ReadAhead::start(files, jobs, 3);
    ASSERT_TRUE(reader) << reader.error().to_string();
    std::mutex mutex;
    std::set<std::size_t> seen;
    std::atomic<int> wrong{0};
    const auto work = [&] {
      for (;;) {
        auto loaded = (*reader)->next();
        if (!loaded || !*loaded) return;
        const ReadJob& job = jobs[(*loaded)->job()];
        for (std::size_t r = 0; r < job.ranges.size(); ++r) {
          const ReadRange& range = job.ranges[r];
          const auto bytes = (*loaded)->range(r);
          const bool same =
              bytes.size() == range.bytes &&
              std::equal(bytes.begin(), bytes.end(),
                         reinterpret_cast<const std::byte*>(contents[range.file].data()) + range.offset);
          wrong += same ? 0 : 1;
        }
        const std::lock_guard lock(mutex);
        seen.insert((*loaded)->job());
      }
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work);
    work();
    for (auto& thread : others) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(seen.size(), jobs.size());
  }
}

TEST(ReadAhead, AMissingFileIsAnErrorAtOnce) {
  const auto reader = ReadAhead::start({test::scratch_dir() / "absent"}, {});
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
}

TEST(ReadAhead, ATruncatedFileIsAnErrorForEveryCaller) {
  const auto folder = test::scratch_dir();
  random_file(folder / "a", 10'000, 1);
  auto reader = ReadAhead::start({folder / "a"}, {{{{0, 0, 10'000}}}, {{{0, 9'000, 5'000}}}});
  ASSERT_TRUE(reader);
  {
    const auto first = (*reader)->next();
    ASSERT_TRUE(first && *first);
  }
  for (int call = 0; call < 2; ++call) {
    const auto failed = (*reader)->next();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  }
}

TEST(ReadAhead, StopEndsWaitersAndTheReader) {
  const auto folder = test::scratch_dir();
  random_file(folder / "a", 1 << 20, 1);
  std::vector<ReadJob> jobs(1000, ReadJob{{{0, 0, 1 << 20}}});
  auto reader = ReadAhead::start({folder / "a"}, jobs, 2);
  ASSERT_TRUE(reader);
  {
    const auto first = (*reader)->next();
    ASSERT_TRUE(first && *first);
    (*reader)->stop();
  }
  const auto after = (*reader)->next();
  ASSERT_TRUE(after);
  EXPECT_FALSE(*after);
}

TEST(ReadAhead, NoJobsEndAtOnce) {
  const auto folder = test::scratch_dir();
  random_file(folder / "a", 10, 1);
  auto reader = ReadAhead::start({folder / "a"}, {});
  ASSERT_TRUE(reader);
  const auto none = (*reader)->next();
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
}

}  // namespace
}  // namespace pivot
