// Launch decisions: what every choice must satisfy, over all sizes.
#include "ops/cuda/placement/schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace pivot::cuda {
namespace {

// Bytes of shared memory that a CTA may have.
constexpr std::int64_t kH200 = 227 * 1024, kRtx = 99 * 1024;

TEST(Schedule, StripeWarpsFitACtaAndKeepTilesForEveryWarp) {
  for (const bool bf16 : {false, true})
    for (std::int64_t tiles = 1; tiles <= 512; ++tiles) {
      const int warps = stripe_warps(tiles, bf16);
      EXPECT_GE(warps, 4) << "the epilogue needs 128 threads";
      EXPECT_LE(warps, 16);
      EXPECT_EQ(warps & (warps - 1), 0) << warps;
      if (warps > 4) {
        EXPECT_GE(tiles / warps, bf16 ? 2 : 4) << tiles;
      }
    }
  EXPECT_EQ(stripe_warps(32, false), 8);   // 4096 columns
  EXPECT_EQ(stripe_warps(32, true), 16);   // the LM head
  EXPECT_EQ(stripe_warps(8, false), 4);    // q_lora_rank
  EXPECT_EQ(stripe_warps(64, false), 16);  // wo_b
}

TEST(Schedule, TokenTilesCoverTheStepWithAtMostThirtyTwoTokens) {
  for (std::int64_t tokens = 1; tokens <= 4096; ++tokens) {
    const int tiles = token_tiles(tokens);
    EXPECT_TRUE(tiles == 1 || tiles == 2 || tiles == 4);
    EXPECT_TRUE(tiles * 8 >= tokens || tiles == 4) << tokens;
    if (tiles > 1) {
      EXPECT_LT(tiles * 4, tokens) << "half the tile would do";
    }
  }
}

TEST(Schedule, AttentionSplitsNeverExceedTilesRoomOrTheMergeKernel) {
  for (const std::int64_t tokens : {1, 2, 8, 32, 128, 1024})
    for (const std::int32_t heads : {1, 8, 16, 64})
      for (const std::int64_t keys : {1, 64, 65, 640, 8320, 262272})
        for (const int multiprocessors : {1, 132, 188}) {
          const std::int32_t splits = attention_splits(tokens, heads, keys, multiprocessors);
          EXPECT_GE(splits, 1);
          EXPECT_LE(splits, kMaxAttentionSplits);
          EXPECT_LE(splits, (keys + kAttentionKeys - 1) / kAttentionKeys);
          const std::int64_t groups = tokens * ((heads + kAttentionHeads - 1) / kAttentionHeads);
          if (splits > 1) {
            EXPECT_LE(splits * groups, 3 * multiprocessors);
          }
        }
  EXPECT_EQ(attention_splits(1, 64, 640, 132), 10);  // one tile a CTA: window and 512 selected entries
}

TEST(Schedule, HeadsShareATileOnceTheQueriesFillTheCard) {
  EXPECT_EQ(attention_head_groups(1, 64, 512, 132, kH200), 1);
  EXPECT_EQ(attention_head_groups(263, 64, 512, 132, kH200), 1);
  EXPECT_EQ(attention_head_groups(264, 64, 512, 132, kH200), 4);
  EXPECT_EQ(attention_head_groups(8192, 16, 512, 132, kH200), 1) << "one group of heads is all there is";
  EXPECT_EQ(attention_head_groups(8192, 64, 512, 188, kRtx), 1) << "144 KB of queries and keys";
  EXPECT_EQ(attention_head_groups(8192, 64, 128, 188, kRtx), 4);
  EXPECT_LE(attention_shared_bytes(512, 1), kRtx);
}

TEST(Schedule, LongStepsHaveTheirOwnAttentionWhereItsShapesAndMemoryFit) {
  EXPECT_TRUE(prefill_attention_takes(64, 512, 64, kH200));
  EXPECT_FALSE(prefill_attention_takes(64, 512, 64, kRtx)) << "a query and two tiles of keys are 192 KB";
  EXPECT_FALSE(prefill_attention_takes(32, 512, 64, kH200)) << "half of every instruction would be empty";
  EXPECT_FALSE(prefill_attention_takes(128, 512, 64, kH200));
  EXPECT_FALSE(prefill_attention_takes(64, 128, 64, kH200));
  EXPECT_FALSE(prefill_attention_takes(64, 512, 32, kH200)) << "a panel of 64 dims would be of two kinds";
}

TEST(Schedule, LongStepsHaveTheirOwnIndexScoresWhereShapesAndMemoryFit) {
  EXPECT_TRUE(prefill_scores_take(64, 128, kH200));
  EXPECT_FALSE(prefill_scores_take(64, 128, kRtx)) << "eight queries are 128 KB";
  EXPECT_FALSE(prefill_scores_take(32, 128, kH200));
  EXPECT_FALSE(prefill_scores_take(64, 64, kH200));
}

TEST(Schedule, ExpertsTakeWideTilesOnlyWhenTheyFillThem) {
  EXPECT_FALSE(experts_fill_tiles(128 * 6, 256));
  EXPECT_TRUE(experts_fill_tiles(2048 * 6, 256));
}

TEST(Schedule, TopkRowsGoToAClusterOnceTheyAreLong) {
  EXPECT_EQ(topk_ctas(0, true), 1);
  EXPECT_EQ(topk_ctas(kTopkOneCta, true), 1);
  EXPECT_EQ(topk_ctas(kTopkOneCta + 1, true), kTopkClusterCtas);
  EXPECT_EQ(topk_ctas(262144, true), kTopkClusterCtas);  // 1M tokens
  EXPECT_EQ(topk_ctas(std::int64_t{1} << 33, true), kTopkClusterCtas);
  EXPECT_EQ(topk_ctas(262144, false), 1) << "the switch is off";
}

TEST(Schedule, ScoreSlicesStayWithinOneGibibyte) {
  for (const std::int64_t tokens : {1, 7, 1024, 8192})
    for (const std::int64_t stride : {0, 1, 64, 1024, 262144}) {
      const std::int64_t slice = score_slice_tokens(tokens, stride);
      EXPECT_GE(slice, 1);
      EXPECT_LE(slice, tokens);
      EXPECT_LE(slice * stride * 4, std::int64_t{1} << 30);
      if (slice < tokens) {
        EXPECT_GT((slice + 1) * stride * 4, std::int64_t{1} << 30) << "a larger slice would do";
      }
    }
}

}  // namespace
}  // namespace pivot::cuda
