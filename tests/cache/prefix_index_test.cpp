#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "cache/filled_sequence.h"

namespace pivot::test {
namespace {

constexpr std::int64_t kPlenty = std::int64_t{1} << 30;

std::span<const TokenId> first(const std::vector<TokenId>& ids, std::int64_t count) {
  return std::span(ids).first(static_cast<std::size_t>(count));
}

TEST(StateImage, ASequenceGoesOnWhereTheImageWasTaken) {
  const auto pool = narrow_pool(3, 40);
  for (const std::int64_t n : {1, 3, 4, 5, 127, 128, 129, 130, 255, 256, 257, 383, 384, 1000}) {
    const std::vector<TokenId> ids = family(1, n + 300);
    auto source = SequenceState::create(pool).value();
    ASSERT_TRUE(compute(*source, first(ids, n)));
    const auto image = StateImage::capture(*source);
    ASSERT_TRUE(compute(*source, family(2, 200)));  // goes its own way, on its own copies
    auto other = SequenceState::create(pool).value();
    image->restore(*other, first(ids, n));
    EXPECT_EQ(fault(*other), "") << n;
    ASSERT_TRUE(compute(*other, std::span(ids).subspan(static_cast<std::size_t>(n))));
    EXPECT_EQ(fault(*other), "") << n;
    EXPECT_EQ(fault(*source), "") << n;
  }
  EXPECT_EQ(pool->pages(PagePool::kRatio4).used(), 0);
  EXPECT_EQ(pool->pages(PagePool::kRatio128).used(), 0);
}

TEST(StateImage, PagesHeldByImagesAloneCountAsCached) {
  const auto pool = narrow_pool(2, 10);
  auto sequence = SequenceState::create(pool).value();
  ASSERT_TRUE(compute(*sequence, family(1, 600)));
  const auto image = StateImage::capture(*sequence);
  const PageAllocator& pages = pool->pages(PagePool::kRatio4);
  EXPECT_EQ(pages.used(), 3);
  EXPECT_EQ(pages.cached_only(), 0);
  sequence.reset();
  EXPECT_EQ(pages.used(), 3);
  EXPECT_EQ(pages.cached_only(), 3);
  sequence = SequenceState::create(pool).value();
  image->restore(*sequence, family(1, 600));
  EXPECT_EQ(pages.cached_only(), 0);
  ASSERT_TRUE(compute(*sequence, family(3, 10)));  // the partly filled page was copied
  EXPECT_EQ(pages.used(), 4);
  EXPECT_EQ(pages.cached_only(), 1);
}

TEST(PrefixIndex, FindsTheLongestAndTellsWhereOthersBranchedOff) {
  const auto pool = narrow_pool(2, 60);
  PrefixIndex index(256, kPlenty);
  std::vector<TokenId> ids = family(1, 1000);
  auto sequence = SequenceState::create(pool).value();
  const std::vector<float> logits = {1.0f};
  for (const std::int64_t at : {100, 256, 700, 1000}) {
    ASSERT_TRUE(
        compute(*sequence, std::span(ids).subspan(static_cast<std::size_t>(sequence->position()),
                                                  static_cast<std::size_t>(at - sequence->position()))));
    ASSERT_TRUE(index.insert(first(ids, at),
                             StateImage::capture(*sequence, at == 1000 ? logits : std::vector<float>{})));
  }
  EXPECT_EQ(index.entries(), 4);
  EXPECT_EQ(index.find(ids).image->position(), 1000);             // it has logits
  EXPECT_EQ(index.find(first(ids, 999)).image->position(), 700);  // 1000 is too long
  EXPECT_EQ(index.find(first(ids, 700)).image->position(), 256);  // no logits there: a token must be left
  EXPECT_EQ(index.find(first(ids, 257)).image->position(), 256);
  EXPECT_EQ(index.find(first(ids, 256)).image->position(), 100);
  EXPECT_EQ(index.find(first(ids, 100)).image, nullptr);
  std::vector<TokenId> other = ids;
  other[600] = TokenId{-1};
  const PrefixIndex::Match match = index.find(other);
  EXPECT_EQ(match.image->position(), 256);
  EXPECT_EQ(match.shared_tokens, 512);
  EXPECT_NE(index.peek(first(ids, 700)), nullptr);
  EXPECT_EQ(index.peek(first(ids, 701)), nullptr);
  index.erase(first(ids, 700));
  EXPECT_EQ(index.find(first(ids, 999)).image->position(), 256);
}

TEST(PrefixIndex, TheLeastRecentlyUsedGoesAndTheLimitHolds) {
  const auto pool = narrow_pool(2, 60);
  auto sequence = SequenceState::create(pool).value();
  ASSERT_TRUE(compute(*sequence, family(1, 300)));
  const std::int64_t bytes = StateImage::capture(*sequence)->host_bytes() + 300 * 4;
  PrefixIndex index(256, 3 * bytes);
  for (std::uint32_t f = 1; f <= 3; ++f) {
    sequence = SequenceState::create(pool).value();
    ASSERT_TRUE(compute(*sequence, family(f, 300)));
    ASSERT_TRUE(index.insert(family(f, 300), StateImage::capture(*sequence)));
  }
  EXPECT_NE(index.find(family(1, 301)).image, nullptr);  // used: 2 is the oldest now
  sequence = SequenceState::create(pool).value();
  ASSERT_TRUE(compute(*sequence, family(4, 300)));
  ASSERT_TRUE(index.insert(family(4, 300), StateImage::capture(*sequence)));
  EXPECT_LE(index.host_bytes(), 3 * bytes);
  EXPECT_EQ(index.evictions(), 1u);
  EXPECT_EQ(index.find(family(2, 301)).image, nullptr);
  EXPECT_NE(index.find(family(1, 301)).image, nullptr);
  PrefixIndex tiny(256, 100);
  EXPECT_FALSE(tiny.insert(family(4, 300), StateImage::capture(*sequence)));
}

// Fault B39 and its kin: ten thousand random operations of everything that takes and gives back pages. Every
// byte of every sequence is known from its tokens, so a page with two owners, a stale copy or a lost page
// cannot hide.
TEST(CacheProperty, TenThousandRandomOperationsLoseNothing) {
  constexpr std::int32_t kSlots = 6;
  const auto pool = narrow_pool(kSlots, 32);
  PrefixIndex index(256, std::int64_t{4} << 20);
  std::vector<std::unique_ptr<SequenceState>> running;
  std::vector<Snapshot> preempted;
  std::mt19937 random(20240601);
  const auto pick = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  std::map<std::string, int> counts;

  const auto preempt = [&](std::size_t i) {
    preempted.push_back(export_sequence(*running[i], 1));
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    ++counts["preempt"];
  };
  // As the engine does: cached prefixes give way first, then another sequence.
  const auto grow = [&](std::size_t i, std::span<const TokenId> ids) {
    SequenceState* const sequence = running[i].get();
    while (!compute(*sequence, ids)) {
      if (index.evict_one()) continue;
      if (running.size() == 1) return false;
      preempt(running.front().get() == sequence ? running.size() - 1 : 0);
    }
    return true;
  };
  const auto check_books = [&] {
    for (const PagePool kind : {PagePool::kRatio4, PagePool::kRatio128}) {
      const PageAllocator& pages = pool->pages(kind);
      ASSERT_TRUE(pages.consistent());
      std::set<std::int32_t> of_sequences;
      for (const auto& sequence : running)
        of_sequences.insert(sequence->pages(kind).begin(), sequence->pages(kind).end());
      ASSERT_EQ(pages.used() - pages.cached_only(), static_cast<std::int32_t>(of_sequences.size()));
      if (index.entries() == 0) {
        ASSERT_EQ(pages.cached_only(), 0);
      }
    }
    ASSERT_EQ(pool->slots().used(), static_cast<std::int32_t>(running.size()));
    ASSERT_TRUE(pool->slots().consistent());
  };

  for (int step = 0; step < 10000; ++step) {
    const std::size_t what = pick(100);
    if (what < 22) {  // a request starts, from the cache where it can
      if (running.size() == kSlots) continue;
      std::vector<TokenId> ids =
          family(static_cast<std::uint32_t>(pick(5)), static_cast<std::int64_t>(pick(600)) + 1);
      for (std::size_t i = pick(4); i > 0; --i) ids.push_back(TokenId{static_cast<std::int32_t>(pick(1000))});
      running.push_back(SequenceState::create(pool).value());
      const PrefixIndex::Match match = index.find(ids);
      if (match.image != nullptr) {
        match.image->restore(*running.back(), first(ids, match.image->position()));
        ++counts["hit"];
      }
      const auto done = static_cast<std::size_t>(running.back()->position());
      if (!grow(running.size() - 1, std::span(ids).subspan(done))) running.pop_back();
    } else if (what < 55 && !running.empty()) {  // tokens
      const std::size_t i = pick(running.size());
      const std::span<const TokenId> told = running[i]->tokens();
      // Most go on as their family does, so that others meet them again.
      const std::size_t more = pick(20) + 1;
      std::vector<TokenId> ids;
      for (std::uint32_t f = 0; f < 5 && ids.empty(); ++f) {
        if (told.empty() || family(f, 1).front() != told.front()) continue;
        ids = family(f, std::ssize(told) + static_cast<std::int64_t>(more));
        ids.erase(ids.begin(), ids.begin() + std::ssize(told));
      }
      if (ids.empty() || pick(8) == 0) ids.assign(more, TokenId{static_cast<std::int32_t>(pick(1000))});
      if (!grow(i, ids)) running.erase(running.begin());
    } else if (what < 70 && !running.empty()) {  // a state is kept
      const SequenceState& sequence = *running[pick(running.size())];
      if (sequence.position() > 0) index.insert(sequence.tokens(), StateImage::capture(sequence));
      ++counts["keep"];
    } else if (what < 82 && !running.empty()) {  // finished or cancelled
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(pick(running.size())));
    } else if (what < 86 && !running.empty()) {
      preempt(pick(running.size()));
    } else if (what < 92 && !preempted.empty()) {  // resumed, or cancelled while it waited
      const std::size_t i = pick(preempted.size());
      const Snapshot snapshot = std::move(preempted[i]);
      preempted.erase(preempted.begin() + static_cast<std::ptrdiff_t>(i));
      if (running.size() == kSlots) continue;
      auto sequence = SequenceState::create(pool).value();
      Result<> imported = import_sequence(*sequence, snapshot, 1);
      while (!imported && index.evict_one()) imported = import_sequence(*sequence, snapshot, 1);
      if (imported) {
        EXPECT_EQ(fault(*sequence), "");
        running.push_back(std::move(sequence));
        ++counts["resume"];
      }
    } else if (what < 93) {
      index.evict_one();
    } else if (what == 99 && pick(20) == 0) {
      index.clear();
    } else if (!running.empty()) {  // a draft is taken back
      SequenceState& sequence = *running[pick(running.size())];
      const std::int64_t to = sequence.position() - 1;
      if (to > 0 && sequence.can_truncate(to)) {
        ASSERT_TRUE(sequence.truncate(to));
        ++counts["truncate"];
      }
    }
    check_books();
    if (HasFatalFailure()) FAIL() << "after operation " << step;
    if (step % 32 == 0) {
      for (const auto& sequence : running) {
        if (sequence->position() == 0) continue;
        ASSERT_EQ(fault(*sequence), "") << "after operation " << step;
      }
    }
  }
  for (const char* kind : {"hit", "keep", "preempt", "resume", "truncate"})
    EXPECT_GT(counts[kind], 100) << kind;
  running.clear();
  index.clear();
  for (const PagePool kind : {PagePool::kRatio4, PagePool::kRatio128})
    EXPECT_EQ(pool->pages(kind).free(), pool->pages(kind).capacity());
  EXPECT_EQ(pool->slots().free(), kSlots);
}

}  // namespace
}  // namespace pivot::test
