#include "cache/page_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace pivot::test {
namespace {

TEST(PageAllocator, HandsOutEveryPageOnce) {
  PageAllocator pages(5, "ratio4 page");
  std::set<std::int32_t> ids;
  for (int i = 0; i < 5; ++i) ids.insert(pages.acquire().value());
  EXPECT_EQ(ids, (std::set<std::int32_t>{0, 1, 2, 3, 4}));
  const auto none = pages.acquire();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(none.error().message.find("all 5 ratio4 pages"), std::string::npos) << none.error().message;
  EXPECT_TRUE(pages.release(3));
  EXPECT_EQ(pages.acquire().value(), 3);
}

TEST(PageAllocator, ASharedPageIsFreeWhenTheLastOwnerGoes) {
  PageAllocator pages(2, "page");
  const std::int32_t id = pages.acquire().value();
  pages.retain(id);
  EXPECT_EQ(pages.references(id), 2);
  EXPECT_FALSE(pages.release(id));
  EXPECT_EQ(pages.used(), 1);
  EXPECT_TRUE(pages.release(id));
  EXPECT_EQ(pages.free(), 2);
}

// B39: against a plain model of ownership, over many random operations.
TEST(PageAllocator, FreePlusUsedIsTheTotal) {
  std::mt19937 random(7);
  PageAllocator pages(37, "page");
  std::map<std::int32_t, int> owners;
  for (int i = 0; i < 20000; ++i) {
    switch (random() % 3) {
      case 0: {
        const auto id = pages.acquire();
        ASSERT_EQ(id.has_value(), owners.size() < 37);
        if (id) {
          ASSERT_TRUE(owners.emplace(*id, 1).second) << "page " << *id << " was handed out twice";
        }
        break;
      }
      case 1:
        if (!owners.empty()) {
          auto owner = std::next(owners.begin(), random() % owners.size());
          pages.retain(owner->first);
          ++owner->second;
        }
        break;
      default:
        if (!owners.empty()) {
          auto owner = std::next(owners.begin(), random() % owners.size());
          const bool last = --owner->second == 0;
          ASSERT_EQ(pages.release(owner->first), last);
          if (last) owners.erase(owner);
        }
    }
    ASSERT_EQ(pages.used(), static_cast<std::int32_t>(owners.size()));
    ASSERT_EQ(pages.used() + pages.free(), pages.capacity());
    if (i % 100 == 0) {
      ASSERT_TRUE(pages.consistent());
    }
  }
}

TEST(PageAllocatorDeathTest, MisuseStopsTheProgram) {
  PageAllocator pages(2, "page");
  const std::int32_t id = pages.acquire().value();
  pages.release(id);
  EXPECT_DEATH(pages.release(id), "released more often");
  EXPECT_DEATH(pages.retain(id), "is free");
  EXPECT_DEATH(pages.release(2), "2 of 2");
}

}  // namespace
}  // namespace pivot::test
