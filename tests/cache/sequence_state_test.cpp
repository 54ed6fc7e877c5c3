#include "cache/sequence_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <random>

#include "cache/snapshot.h"
#include "checkpoint/flash_config.h"
#include "ops/cpu/reference/backend.h"

namespace pivot::test {
namespace {

// Flash's geometry with the first six layers only (ratios 0, 0, 4, 128, 4, 128).
ModelConfig small_config() {
  ModelConfig config = flash_config();
  config.num_hidden_layers = 6;
  config.compress_ratios.resize(6);
  return config;
}

std::shared_ptr<CachePool> make_pool(std::int32_t slots, std::int32_t ratio4, std::int32_t ratio128,
                                     const CacheOptions& options = {}) {
  CachePoolOptions pool_options;
  pool_options.num_slots = slots;
  pool_options.num_pages[0] = ratio4;
  pool_options.num_pages[1] = ratio128;
  pool_options.poison = true;
  auto pool = CachePool::create(std::shared_ptr<Backend>(make_reference_backend()),
                                make_cache_layout(small_config(), {}, options).value(), pool_options);
  EXPECT_TRUE(pool) << pool.error().to_string();
  return *std::move(pool);
}

std::vector<TokenId> some_tokens(std::int64_t count) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(TokenId{static_cast<std::int32_t>(i % 1000)});
  return ids;
}

void advance(SequenceState& sequence, std::int64_t count) {
  const auto reserved = sequence.reserve(count);
  ASSERT_TRUE(reserved) << reserved.error().to_string();
  sequence.append(some_tokens(count));
}

TEST(CachePool, AllocatesWhatWasPlanned) {
  const auto pool = make_pool(3, 10, 4);
  EXPECT_EQ(pool->allocated_bytes(), pool->layout().planned_bytes(3, 10, 4));
  const auto options = CachePoolOptions::for_sequences(pool->layout(), 2, 1000);
  EXPECT_EQ(options.num_slots, 2);
  EXPECT_EQ(options.num_pages[0], 2 * 4);
  EXPECT_EQ(options.num_pages[1], 2 * 4);
}

TEST(CachePool, ReleasedMemoryIsPoisoned) {
  const auto pool = make_pool(1, 1, 1);
  const auto is_poison = [](const std::byte* data, std::int64_t bytes) {
    return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0xff}; });
  };
  const std::int32_t slot = pool->acquire_slot().value();
  const PageId page = pool->acquire_page(PagePool::kRatio4).value();
  EXPECT_TRUE(is_poison(pool->slot_data(slot), pool->layout().slot_bytes));
  std::memset(pool->slot_data(slot), 1, static_cast<std::size_t>(pool->layout().slot_bytes));
  std::memset(pool->page_data(PagePool::kRatio4, page), 1,
              static_cast<std::size_t>(pool->layout().page_bytes[0]));
  pool->release_slot(slot);
  pool->release_page(PagePool::kRatio4, page);
  EXPECT_TRUE(is_poison(pool->slot_data(slot), pool->layout().slot_bytes));
  EXPECT_TRUE(is_poison(pool->page_data(PagePool::kRatio4, page), pool->layout().page_bytes[0]));
}

TEST(SequenceState, PagesFollowTheEntries) {
  const auto pool = make_pool(1, 8, 8);
  const auto sequence = SequenceState::create(pool).value();
  advance(*sequence, 3);
  EXPECT_TRUE(sequence->pages(PagePool::kRatio4).empty());
  advance(*sequence, 1);
  EXPECT_EQ(sequence->pages(PagePool::kRatio4).size(), 1u);
  EXPECT_TRUE(sequence->pages(PagePool::kRatio128).empty());
  advance(*sequence, 300);
  EXPECT_EQ(sequence->pages(PagePool::kRatio4).size(), 2u);
  EXPECT_EQ(sequence->pages(PagePool::kRatio128).size(), 1u);
  EXPECT_EQ(sequence->position(), 304);
}

TEST(SequenceState, AFullPoolChangesNothing) {
  const auto pool = make_pool(2, 3, 1);
  const auto sequence = SequenceState::create(pool).value();
  advance(*sequence, 256);
  const auto failed = sequence->reserve(400);  // enough ratio-4 pages, not enough ratio-128 pages
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(sequence->pages(PagePool::kRatio4).size(), 1u);
  EXPECT_EQ(pool->pages(PagePool::kRatio4).used(), 1);
  EXPECT_EQ(pool->pages(PagePool::kRatio128).used(), 1);
}

TEST(SequenceState, TruncationStopsWhereTheRingsEnd) {
  const auto pool = make_pool(1, 16, 16);
  const auto sequence = SequenceState::create(pool).value();
  advance(*sequence, 1000);
  EXPECT_TRUE(sequence->can_truncate(1000));
  EXPECT_TRUE(sequence->can_truncate(0));
  // At 999 the ratio-4 block before 996 (rows 992..995) is needed, the ring of 8 holds 992 on; the window
  // needs 872 on, the ring of 128 holds just that; the ratio-128 block begins at 896.
  EXPECT_TRUE(sequence->can_truncate(999));
  EXPECT_FALSE(sequence->can_truncate(998));
  EXPECT_FALSE(sequence->can_truncate(1001));
  EXPECT_FALSE(sequence->can_truncate(-1));
  const auto refused = sequence->truncate(500);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  ASSERT_TRUE(sequence->truncate(999));
  EXPECT_EQ(sequence->position(), 999);
  ASSERT_TRUE(sequence->truncate(0));
  EXPECT_EQ(pool->pages(PagePool::kRatio4).used(), 0);
}

TEST(SequenceState, LongerRingsAllowLongerTruncation) {
  const auto pool =
      make_pool(1, 16, 16, {.window_rows = 144, .ratio4_state_rows = 32, .ratio128_state_rows = 144});
  const auto sequence = SequenceState::create(pool).value();
  advance(*sequence, 1000);
  for (std::int64_t n = 983; n <= 1000; ++n) EXPECT_TRUE(sequence->can_truncate(n)) << n;
  EXPECT_FALSE(sequence->can_truncate(982));
}

TEST(SequenceState, ASharedPageIsCopiedBeforeItIsWritten) {
  const auto pool = make_pool(1, 4, 4);
  const auto sequence = SequenceState::create(pool).value();
  advance(*sequence, 8);
  const PageId shared{sequence->pages(PagePool::kRatio4)[0]};
  std::memset(pool->page_data(PagePool::kRatio4, shared), 0x5a, 100);
  pool->retain_page(PagePool::kRatio4, shared);  // as a prefix cache would
  advance(*sequence, 4);
  const PageId own{sequence->pages(PagePool::kRatio4)[0]};
  EXPECT_NE(raw(own), raw(shared));
  EXPECT_EQ(
      std::memcmp(pool->page_data(PagePool::kRatio4, own), pool->page_data(PagePool::kRatio4, shared), 100),
      0);
  EXPECT_EQ(pool->pages(PagePool::kRatio4).references(raw(shared)), 1);
}

// B39: many sequences of many lengths come, grow, are cut and go; the pools never drift.
TEST(SequenceState, PoolsDoNotDrift) {
  const auto pool = make_pool(8, 24, 16);
  const std::int64_t lengths[] = {1, 3, 4, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1021};
  std::mt19937 random(39);
  std::vector<std::unique_ptr<SequenceState>> live;
  for (int round = 0; round < 600; ++round) {
    if (live.size() == 8 || (!live.empty() && random() % 3 == 0)) {
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
    } else {
      live.push_back(SequenceState::create(pool).value());
      const std::int64_t length = lengths[random() % std::size(lengths)];
      if (live.back()->reserve(length))
        live.back()->append(some_tokens(length));
      else
        live.pop_back();
    }
    std::int64_t used[kNumPagePools] = {0, 0};
    for (const auto& sequence : live)
      for (PagePool kind : {PagePool::kRatio4, PagePool::kRatio128}) {
        EXPECT_EQ(static_cast<std::int64_t>(sequence->pages(kind).size()),
                  pool->layout().pages_for(kind, sequence->position()));
        used[static_cast<int>(kind)] += static_cast<std::int64_t>(sequence->pages(kind).size());
      }
    for (PagePool kind : {PagePool::kRatio4, PagePool::kRatio128}) {
      ASSERT_EQ(pool->pages(kind).used(), used[static_cast<int>(kind)]);
      ASSERT_TRUE(pool->pages(kind).consistent());
    }
    ASSERT_EQ(pool->slots().used(), static_cast<std::int32_t>(live.size()));
  }
  live.clear();
  EXPECT_EQ(pool->slots().free(), 8);
  EXPECT_EQ(pool->pages(PagePool::kRatio4).free(), 24);
  EXPECT_EQ(pool->pages(PagePool::kRatio128).free(), 16);
}

// ---- snapshots ----

// A sequence whose memory holds random bytes: a snapshot has to carry every byte a continuation reads.
std::unique_ptr<SequenceState> random_sequence(const std::shared_ptr<CachePool>& pool, std::int64_t length) {
  auto sequence = SequenceState::create(pool).value();
  if (length > 0) advance(*sequence, length);
  std::mt19937 random(static_cast<std::uint32_t>(length));
  const auto fill = [&](std::byte* data, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
  };
  fill(pool->slot_data(sequence->slot()), pool->layout().slot_bytes);
  for (PagePool kind : {PagePool::kRatio4, PagePool::kRatio128})
    for (std::int32_t page : sequence->pages(kind))
      fill(pool->page_data(kind, PageId{page}), pool->layout().page_bytes[static_cast<int>(kind)]);
  return sequence;
}

TEST(Snapshot, RoundTripsBetweenPoolsOfOtherDimensions) {
  for (std::int64_t length : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256, 257, 511, 515, 700}) {
    const auto pool = make_pool(1, 8, 8);
    const auto sequence = random_sequence(pool, length);
    const Snapshot snapshot = export_sequence(*sequence, 42);
    EXPECT_EQ(snapshot.tokens.size(), static_cast<std::size_t>(length));

    const auto other_pool = make_pool(
        2, 8, 8,
        {.block_tokens = 512, .window_rows = 200, .ratio4_state_rows = 16, .ratio128_state_rows = 256});
    const auto occupant = SequenceState::create(other_pool).value();
    advance(*occupant, 300);  // so that slot and page ids differ
    const auto restored = SequenceState::create(other_pool).value();
    const auto imported = import_sequence(*restored, snapshot, 42);
    ASSERT_TRUE(imported) << imported.error().to_string();
    EXPECT_EQ(restored->position(), length);
    const Snapshot again = export_sequence(*restored, 42);
    EXPECT_EQ(again.bytes, snapshot.bytes) << length;
    ASSERT_EQ(again.parts.size(), snapshot.parts.size());
    for (std::size_t i = 0; i < again.parts.size(); ++i)
      EXPECT_EQ(again.parts[i].checksum, snapshot.parts[i].checksum);
  }
}

// Specification 5.3 and docs/design.md section 4: what a snapshot at a multiple of 256 needs.
TEST(Snapshot, HoldsWhatAContinuationReads) {
  const CacheLayout layout = make_cache_layout(small_config(), {}).value();
  std::map<std::pair<Component, int>, std::pair<std::int64_t, std::int64_t>> ranges;
  for (const SnapshotPart& part : required_parts(layout, 512))
    ranges[{part.component, part.layer}] = {part.begin, part.end};
  using Range = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ((ranges[{Component::kWindow, 0}]), (Range{385, 512}));
  EXPECT_EQ((ranges[{Component::kCompressed, 2}]), (Range{0, 128}));
  EXPECT_EQ((ranges[{Component::kIndexKeys, 2}]), (Range{0, 128}));
  EXPECT_EQ((ranges[{Component::kCompressor, 2}]), (Range{508, 512}));
  EXPECT_EQ((ranges[{Component::kIndexCompressor, 2}]), (Range{508, 512}));
  EXPECT_EQ((ranges[{Component::kCompressed, 3}]), (Range{0, 4}));
  EXPECT_EQ(ranges.count({Component::kCompressor, 3}), 0u)
      << "the ratio-128 block is empty at a multiple of 128";
}

TEST(Snapshot, IsCompleteOrRefusedByName) {
  const auto pool = make_pool(2, 8, 8);
  const auto sequence = random_sequence(pool, 515);
  const Snapshot good = export_sequence(*sequence, 42);
  const auto refused = [&](const Snapshot& snapshot, std::uint64_t fingerprint, const std::string& words) {
    const auto target = SequenceState::create(pool).value();
    const auto result = import_sequence(*target, snapshot, fingerprint);
    ASSERT_FALSE(result) << words;
    EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
    EXPECT_EQ(target->position(), 0);
    EXPECT_TRUE(target->pages(PagePool::kRatio4).empty());
  };
  for (std::size_t i = 0; i < good.parts.size(); ++i) {
    const std::string name =
        fmt::format("{} of layer {}", to_string(good.parts[i].component), good.parts[i].layer);
    Snapshot missing = good;
    missing.parts.erase(missing.parts.begin() + static_cast<std::ptrdiff_t>(i));
    refused(missing, 42, "the " + name + " (rows");
    Snapshot damaged = good;
    damaged.bytes[static_cast<std::size_t>(good.parts[i].offset)] ^= std::byte{1};
    refused(damaged, 42, name + " is damaged");
    Snapshot twice = good;
    twice.parts.push_back(good.parts[i]);
    refused(twice, 42, name + " twice");
    Snapshot shifted = good;
    ++shifted.parts[i].begin;
    refused(shifted, 42, name + " covers rows");
    Snapshot other_layout = good;
    other_layout.parts[i].byte_layout = "bf16:7";
    refused(other_layout, 42, "laid out as bf16:7");
    Snapshot outside = good;
    outside.parts[i].offset = static_cast<std::int64_t>(good.bytes.size());
    refused(outside, 42, name + " lies at");
  }
  Snapshot foreign = good;
  foreign.parts[0].layer = 77;
  refused(foreign, 42, "window of layer 77");
  refused(good, 43, "another checkpoint");
  Snapshot knobs = good;
  ++knobs.knobs_hash;
  refused(knobs, 42, "other knobs");
}

}  // namespace
}  // namespace pivot::test
