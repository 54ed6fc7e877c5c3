#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace pivot {
namespace {

TEST(ThreadPool, RunsEveryPieceOnce) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> hits(3);
    pool.run([&](int piece, int num_pieces) {
      EXPECT_EQ(num_pieces, 3);
      ++hits[static_cast<std::size_t>(piece)];
    });
    for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
  }
}

TEST(ThreadPool, RangesCoverTheCountOnceAndRespectTheGrain) {
  ThreadPool pool(4);
  for (const std::int64_t count : {0, 1, 7, 64, 1000}) {
    std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
    pool.for_ranges(count, 8, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin % 8, 0);
      for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
    });
    for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
  }
}

}  // namespace
}  // namespace pivot
