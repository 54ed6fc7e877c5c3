#include "cache/cache_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "checkpoint/flash_config.h"

namespace pivot::test {
namespace {

CacheLayout layout_of(const Knobs& knobs, const CacheOptions& options = {}) {
  const auto layout = make_cache_layout(flash_config(), knobs, options);
  EXPECT_TRUE(layout) << layout.error().to_string();
  return *layout;
}

Knobs knobs_of(KvPrecision kv, IndexPrecision index) {
  Knobs knobs;
  knobs.kv = kv;
  knobs.index_keys = index;
  return knobs;
}

// Specification 5.2, the whole table, and public-faults F7.
TEST(CacheLayout, BytesPerTokenOfFlash) {
  struct Row {
    KvPrecision kv;
    IndexPrecision index;
    double csa, hca, total;
  };
  const Row rows[] = {{KvPrecision::kBf16, IndexPrecision::kBf16, 320, 8, 6880},
                      {KvPrecision::kFp8, IndexPrecision::kBf16, 210, 4.5625, 4501.25},
                      {KvPrecision::kFp8, IndexPrecision::kFp8, 179, 4.5625, 3850.25},
                      {KvPrecision::kFp8, IndexPrecision::kFp4, 163, 4.5625, 3514.25}};
  for (const Row& row : rows) {
    const CacheLayout layout = layout_of(knobs_of(row.kv, row.index));
    EXPECT_EQ(layout.bytes_per_token(0), 0);
    EXPECT_EQ(layout.bytes_per_token(2), row.csa);
    EXPECT_EQ(layout.bytes_per_token(3), row.hca);
    EXPECT_EQ(layout.bytes_per_token(), row.total);
  }
}

// Specification 5.3.
TEST(CacheLayout, FixedBytesOfFlash) {
  const CacheLayout packed = layout_of({});
  EXPECT_EQ(packed.kv.row_bytes(), 584);
  EXPECT_EQ(packed.index_key.row_bytes(), 68);
  EXPECT_EQ(packed.window_payload_bytes(), 43 * 128 * 584);  // 3.21 MB
  EXPECT_EQ(packed.compressor_payload_bytes(), 21 * (65536 + 16384) + 20 * 524288);
  EXPECT_NEAR(static_cast<double>(packed.compressor_payload_bytes()), 12.2e6, 0.05e6);
  const CacheLayout wide = layout_of(knobs_of(KvPrecision::kBf16, IndexPrecision::kBf16));
  EXPECT_EQ(wide.window_payload_bytes(), 43 * 128 * 1024);  // 5.64 MB
}

// B39: what is planned per token stays close to what is stored per token.
TEST(CacheLayout, PaddingIsSmall) {
  const CacheLayout layout = layout_of({});
  EXPECT_EQ(layout.page_rows(PagePool::kRatio4), 64);
  EXPECT_EQ(layout.page_rows(PagePool::kRatio128), 2);
  const std::int64_t tokens = 1 << 20;
  const double per_token =
      static_cast<double>(layout.planned_bytes_for(1, tokens) - layout.planned_bytes_for(1, 0)) /
      static_cast<double>(tokens);
  EXPECT_GE(per_token, layout.bytes_per_token());
  EXPECT_LE(per_token, 1.02 * layout.bytes_per_token());
  const auto payload = static_cast<double>(layout.window_payload_bytes() + layout.compressor_payload_bytes());
  EXPECT_GE(static_cast<double>(layout.slot_bytes), payload);
  EXPECT_LE(static_cast<double>(layout.slot_bytes), 1.01 * payload);
}

TEST(CacheLayout, PagesAreCountedPerEntry) {
  const CacheLayout layout = layout_of({});
  EXPECT_EQ(layout.pages_for(PagePool::kRatio4, 0), 0);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio4, 3), 0);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio4, 4), 1);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio4, 259), 1);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio4, 260), 2);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio128, 127), 0);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio128, 128), 1);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio128, 383), 1);
  EXPECT_EQ(layout.pages_for(PagePool::kRatio128, 384), 2);
}

// Every part of every layer, in a slot and in a page, is aligned and overlaps no other.
TEST(CacheLayout, PartsDoNotOverlap) {
  for (const auto kv : {KvPrecision::kFp8, KvPrecision::kBf16})
    for (const auto index : {IndexPrecision::kFp4, IndexPrecision::kFp8, IndexPrecision::kBf16}) {
      const CacheLayout layout =
          layout_of(knobs_of(kv, index), {.window_rows = 160, .ratio4_state_rows = 16});
      std::set<std::pair<std::int64_t, std::int64_t>> slot;
      std::set<std::pair<std::int64_t, std::int64_t>> pages[kNumPagePools];
      for (const LayerLayout& layer : layout.layers) {
        slot.insert({layer.window_offset, layout.kv.page_bytes(160)});
        if (layer.ratio == 4) {
          slot.insert({layer.compressor_offset, 16 * 2 * 1024 * 4});
          slot.insert({layer.index_compressor_offset, 16 * 2 * 256 * 4});
          pages[0].insert({layer.compressed_offset, layout.kv.page_bytes(64)});
          pages[0].insert({layer.index_keys_offset, layout.index_key.page_bytes(64)});
        } else if (layer.ratio == 128) {
          slot.insert({layer.compressor_offset, 128 * 2 * 512 * 4});
          pages[1].insert({layer.compressed_offset, layout.kv.page_bytes(2)});
        }
      }
      EXPECT_EQ(slot.size(), 43u + 2 * 21 + 20);
      EXPECT_EQ(pages[0].size(), 2u * 21);
      EXPECT_EQ(pages[1].size(), 20u);
      const auto check = [](const auto& parts, std::int64_t total) {
        std::int64_t end = 0;
        for (const auto& [offset, bytes] : parts) {
          EXPECT_EQ(offset % kPartAlignmentBytes, 0);
          EXPECT_GE(offset, end);
          end = offset + bytes;
        }
        EXPECT_LE(end, total);
        EXPECT_EQ(total % kPartAlignmentBytes, 0);
      };
      check(slot, layout.slot_bytes);
      check(pages[0], layout.page_bytes[0]);
      check(pages[1], layout.page_bytes[1]);
    }
}

TEST(CacheLayout, RowsFollowTheKnobs) {
  const ModelConfig config = flash_config();
  Knobs knobs;
  EXPECT_EQ(kv_row_layout(config, knobs).format, RowFormat::kKvPacked);
  knobs.kv_layout = KvLayout::kWide;
  EXPECT_EQ(kv_row_layout(config, knobs).format, RowFormat::kBf16);
  knobs = {};
  knobs.kv = KvPrecision::kBf16;
  EXPECT_EQ(kv_row_layout(config, knobs).format, RowFormat::kBf16);
  knobs.activations = Activations::kF32;
  EXPECT_EQ(kv_row_layout(config, knobs).format, RowFormat::kF32);
  knobs.kv = KvPrecision::kFp8;
  EXPECT_EQ(kv_row_layout(config, knobs).format, RowFormat::kF32);
  EXPECT_EQ(index_key_layout(config, knobs).format, RowFormat::kIndexFp4);
  knobs.index_keys = IndexPrecision::kBf16;
  EXPECT_EQ(index_key_layout(config, knobs).format, RowFormat::kF32);
}

TEST(CacheLayout, RefusesOptionsOutOfRange) {
  const auto refused = [](const CacheOptions& options, const char* name) {
    const auto layout = make_cache_layout(flash_config(), {}, options);
    ASSERT_FALSE(layout);
    EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(layout.error().message.find(name), std::string::npos) << layout.error().message;
  };
  refused({.block_tokens = 0}, "block_tokens");
  refused({.block_tokens = 200}, "block_tokens");
  refused({.window_rows = 127}, "window_rows");
  refused({.ratio4_state_rows = 7}, "ratio4_state_rows");
  refused({.ratio128_state_rows = 127}, "ratio128_state_rows");
}

}  // namespace
}  // namespace pivot::test
