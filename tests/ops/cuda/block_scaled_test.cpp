// The block-scaled products of sm_120a, simulated: the kernels' own index functions fill a stage from tiled
// weights and activations, 32 lanes take their registers from it, and a model of the instruction written from
// the PTX manual multiplies them. What it yields must be the plain product.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "block_scaled_model.h"
#include "ops/cuda/placement/schedule.h"
#include "ops/knobs.h"

namespace pivot::cuda {
namespace {

// ---- one CTA ----

template <BlockKind K, BlockSize S>
struct Cta {
  static constexpr BlockTile kTile = block_tile(K, S);
  static constexpr BlockStage kStage = block_stage(K, kTile);
  static constexpr int kCodeBytes = static_cast<int>(tile_code_bytes(weight_format(K)));
  static constexpr int kScaleBytes = static_cast<int>(tile_scale_bytes(weight_format(K)));

  const Weights& w;
  const Tokens& x;
  std::vector<Words4> memory = std::vector<Words4>(kStage.bytes / 16);
  std::vector<int> written = std::vector<int>(kStage.bytes, 0);

  std::uint8_t* stage() { return reinterpret_cast<std::uint8_t*>(memory.data()); }
  void copy(int at, const std::uint8_t* from, int bytes) {
    ASSERT_EQ(at % bytes, 0);
    ASSERT_LE(at + bytes, kStage.bytes);
    std::memcpy(stage() + at, from, static_cast<std::size_t>(bytes));
    for (int i = 0; i < bytes; ++i) ++written[static_cast<std::size_t>(at + i)];
  }
  // Tile kt of the matrix's rows from 0 on and of all tokens, as the kernel's threads copy it.
  void fill(int kt) {
    std::fill(written.begin(), written.end(), 0);
    const std::int64_t tiles_k = w.view.cols / 128, cols = w.view.cols;
    for (int i = 0; i < weight_copies<K, S>(); ++i) {
      const BlockCopy c = weight_copy<K, S>(i);
      copy(c.at, &w.tiled_codes[static_cast<std::size_t>((c.row * tiles_k + kt) * kCodeBytes + c.offset)],
           16);
    }
    for (int i = 0; i < weight_scale_copies<K, S>(); ++i) {
      const BlockCopy c = weight_scale_copy<K, S>(i);
      copy(c.at, &w.tiled_scales[static_cast<std::size_t>((c.row * tiles_k + kt) * kScaleBytes + c.offset)],
           weight_scale_copy_bytes(K));
    }
    for (int i = 0; i < token_copies<K, S>(); ++i) {
      const BlockCopy c = token_copy<K, S>(i);
      copy(c.at,
           &x.codes[static_cast<std::size_t>(c.row * block_row_bytes(K, cols) + kt * token_code_bytes(K) +
                                             c.offset)],
           16);
    }
    for (int i = 0; i < kTile.tokens(); ++i) {
      const BlockCopy c = token_scale_copy<K, S>(i);
      copy(c.at,
           &x.scales[static_cast<std::size_t>(c.row * block_row_scale_bytes(K, cols) +
                                              token_scale_offset(K, kt))],
           token_scale_bytes(K));
    }
  }
  // sums[row][token] of the CTA += the stage's 128 columns.
  void multiply(int kt, std::vector<double>& sums) {
    for (int warp = 0; warp < kTile.threads() / 32; ++warp)
      for (int m = 0; m < 2; ++m)
        for (int n = 0; n < kTile.token_tiles; ++n) {
          const int row_tile = warp_row_tile<S>(warp, m), first = warp_first_token<S>(warp) + 8 * n;
          BlockWeights<K> weights[32];
          BlockTokens<K> tokens[32];
          for (int lane = 0; lane < 32; ++lane) {
            weights[lane].load(stage() + row_tile * kCodeBytes,
                               stage() + kStage.weight_scales_at + row_tile * kScaleBytes, lane);
            tokens[lane].load(stage() + kStage.tokens_at, stage() + kStage.token_scales_at, first, lane, kt);
          }
          double d[16][8] = {};
          for (int step = 0; step < block_steps(K); ++step) {
            LaneOperands lanes[32];
            for (int lane = 0; lane < 32; ++lane) {
              weights[lane].operand(step, lanes[lane].a);
              tokens[lane].operand(step, lanes[lane].b);
              lanes[lane].scale_a = weights[lane].scale(step);
              lanes[lane].scale_b = tokens[lane].scale(step);
            }
            simulate<K>(lanes, block_scale_byte(K, step), d);
          }
          // The manual's places of the accumulator against the kernels' epilogue.
          for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
              const int row = row_tile * 16 + accumulator_row(lane, i);
              const int token = warp_first_token<S>(warp) + accumulator_token(lane, n, i);
              sums[static_cast<std::size_t>(row * kTile.tokens() + token)] +=
                  d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
            }
        }
  }
};

template <BlockKind K, BlockSize S>
void expect_plain_product() {
  std::mt19937 random(static_cast<unsigned>(K) * 8 + static_cast<unsigned>(S) + 1);
  using Block = Cta<K, S>;
  constexpr BlockTile kTile = Block::kTile;
  const std::int64_t cols = 640;  // five tiles: more than one word of scale bytes a token
  const Weights w = random_weights(weight_format(K), kTile.rows(), cols, random);
  const Tokens x = random_tokens<K>(kTile.tokens(), cols, random);
  Block cta{w, x};
  std::vector<double> sums(static_cast<std::size_t>(kTile.rows() * kTile.tokens()), 0.0);
  for (int kt = 0; kt < cols / 128; ++kt) {
    cta.fill(kt);
    for (const int times : cta.written) ASSERT_LE(times, 1) << "two copies to one byte";
    cta.multiply(kt, sums);
  }
  for (std::int64_t row = 0; row < kTile.rows(); ++row)
    for (std::int64_t token = 0; token < kTile.tokens(); ++token) {
      double wanted = 0;
      for (std::int64_t k = 0; k < cols; ++k)
        wanted += w.value(row, k) * x.values[static_cast<std::size_t>(token * cols + k)];
      ASSERT_EQ(sums[static_cast<std::size_t>(row * kTile.tokens() + token)], wanted)
          << row << ", token " << token;
    }
}

TEST(BlockScaled, Fp8TilesGiveThePlainProduct) {
  expect_plain_product<BlockKind::kFp8, BlockSize::kSmall>();
  expect_plain_product<BlockKind::kFp8, BlockSize::kMedium>();
  expect_plain_product<BlockKind::kFp8, BlockSize::kWide>();
}
TEST(BlockScaled, Fp4TilesGiveThePlainProduct) {
  expect_plain_product<BlockKind::kFp4, BlockSize::kSmall>();
  expect_plain_product<BlockKind::kFp4, BlockSize::kMedium>();
  expect_plain_product<BlockKind::kFp4, BlockSize::kWide>();
}
TEST(BlockScaled, Nvfp4TilesGiveThePlainProduct) {
  expect_plain_product<BlockKind::kNvfp4, BlockSize::kSmall>();
  expect_plain_product<BlockKind::kNvfp4, BlockSize::kMedium>();
  expect_plain_product<BlockKind::kNvfp4, BlockSize::kWide>();
}

// Scales that are powers of two commute with fp32 rounding: scaling the products first, as the instruction
// does, and the sum afterwards, as the oracle does, give the same bits in the same order of sums.
TEST(BlockScaled, PowersOfTwoCommuteWithRounding) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    const float scale_w = e8m0_to_float(static_cast<std::uint8_t>(100 + random() % 50)),
                scale_x = e8m0_to_float(static_cast<std::uint8_t>(100 + random() % 50));
    float before = 0.0f, after = 0.0f;
    for (int k = 0; k < 32; ++k) {
      const float product = e2m1_to_float(random() & 15) * e4m3_to_float(random_e4m3(random));
      before += product * scale_w * scale_x;
      after += product;
    }
    after = after * scale_x * scale_w;
    ASSERT_EQ(std::memcmp(&before, &after, 4), 0) << before << ", " << after;
  }
}

TEST(BlockScaled, CodesExpandToWhatTheInstructionReads) {
  for (int round = 0; round < 4096; ++round) {
    std::uint8_t codes[8];
    std::mt19937 random(static_cast<unsigned>(round));
    for (auto& code : codes) code = random() & 15;
    const std::uint32_t word = interleave_fp4(codes);
    const int order[8] = {2, 0, 3, 1, 6, 4, 7, 5};
    for (int j = 0; j < 4; ++j) {
      ASSERT_EQ(byte_of(e2m1_bytes_a(word), j), codes[order[j]] << 2);
      ASSERT_EQ(byte_of(e2m1_bytes_b(word), j), codes[order[4 + j]] << 2);
    }
    for (int j = 0; j < 8; ++j) ASSERT_EQ(nibble_of(e2m1_nibbles(word), j), codes[nvfp4_column(j)]);
    const std::uint32_t four = random();
    for (int j = 0; j < 4; ++j) ASSERT_EQ(byte_of(in_e2m1_order(four), j), byte_of(four, order[j]));
  }
}

// Shared memory serves a warp's 16-byte (8-byte) loads by quarters (halves) of 128 bytes: these must not
// share a bank.
TEST(BlockScaled, LanesReadTokensWithoutBankConflicts) {
  for (int first = 0; first < 128; first += 8)
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 2; ++i) {
        std::set<int> banks;
        for (int lane = 8 * quarter; lane < 8 * quarter + 8; ++lane)
          banks.insert(token_piece_at(BlockKind::kFp8, first + lane / 4, 4 * i + lane % 4) % 128);
        EXPECT_EQ(banks.size(), 8u);
      }
      std::set<int> banks;
      for (int lane = 8 * quarter; lane < 8 * quarter + 8; ++lane)
        banks.insert(token_piece_at(BlockKind::kNvfp4, first + lane / 4, lane % 4) % 128);
      EXPECT_EQ(banks.size(), 8u);
    }
  for (int half = 0; half < 2; ++half)
    for (int q = 0; q < 4; ++q) {
      std::set<int> banks;
      for (int lane = 16 * half; lane < 16 * half + 16; ++lane)
        banks.insert((token_piece_at(BlockKind::kFp4, lane / 4, 2 * q + lane % 4 / 2) + lane % 2 * 8) % 128);
      EXPECT_EQ(banks.size(), 16u);
    }
}

TEST(BlockScaled, TilesFitTheSharedMemoryOfAMultiprocessor) {
  for (const BlockKind kind : {BlockKind::kFp8, BlockKind::kFp4, BlockKind::kNvfp4})
    for (const BlockSize size : {BlockSize::kSmall, BlockSize::kMedium, BlockSize::kWide}) {
      const BlockTile tile = block_tile(kind, size);
      const BlockStage stage = block_stage(kind, tile);
      EXPECT_GE(tile.stages, 3) << "two stages on their way while one is multiplied";
      EXPECT_LE(tile.stages, kMaxBlockStages);
      EXPECT_LE(block_shared_bytes(kind, size), 99 * 1024);
      if (size != BlockSize::kWide) {
        EXPECT_LE(2 * (block_shared_bytes(kind, size) + 1024), 100 * 1024)
            << "two CTAs share a multiprocessor";
      }
      for (const int at : {stage.tokens_at, stage.weight_scales_at, stage.token_scales_at, stage.bytes})
        EXPECT_EQ(at % 16, 0);
      EXPECT_LE(tile.tokens(), tile.threads()) << "one thread copies a token's scales";
      EXPECT_EQ(tile.row_warps, block_tile(BlockKind::kFp8, size).row_warps) << "fragments.h counts on it";
      EXPECT_EQ(tile.token_tiles, block_tile(BlockKind::kFp8, size).token_tiles);
    }
}

TEST(BlockScaled, SizesFollowTheTokens) {
  EXPECT_EQ(dense_block_size(1), BlockSize::kSmall);
  EXPECT_EQ(dense_block_size(9), BlockSize::kMedium);
  EXPECT_EQ(dense_block_size(65), BlockSize::kWide);
  EXPECT_EQ(expert_block_size(6, 256), BlockSize::kSmall);
  EXPECT_EQ(expert_block_size(64 * 6, 256), BlockSize::kSmall);  // 1.9 tokens a touched expert
  EXPECT_EQ(expert_block_size(512 * 6, 256), BlockSize::kMedium);
  EXPECT_EQ(expert_block_size(8192 * 6, 256), BlockSize::kWide);
}

TEST(BlockScaled, TheGridCoversEveryTileOfEveryDistribution) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    const int slots = 1 + static_cast<int>(random() % 40), tile = 8 << random() % 3 * 2;
    std::vector<std::int32_t> counts(static_cast<std::size_t>(slots)), tiles(counts.size() + 1, 0);
    std::int64_t pairs = 0;
    for (std::size_t s = 0; s < counts.size(); ++s) {
      counts[s] = random() % 4 == 0 ? 0 : static_cast<std::int32_t>(random() % 100);
      pairs += counts[s];
      tiles[s + 1] = tiles[s] + (counts[s] + tile - 1) / tile;
    }
    ASSERT_LE(tiles.back(), most_expert_tiles(pairs, slots, tile));
    for (std::int32_t i = 0; i < tiles.back(); ++i) {
      const int slot = slot_of_tile(tiles.data(), slots, i);
      const auto at = static_cast<std::size_t>(slot);
      ASSERT_TRUE(tiles[at] <= i && i < tiles[at + 1]) << "tile " << i << " of slot " << slot;
    }
  }
}

TEST(BlockScaled, TakesOnlyWhatTheInstructionsScale) {
  Matrix m;
  m.rows = 64;
  m.cols = 256;
  m.format = MatrixFormat::kFP8;
  m.scale_format = ScaleFormat::kF32;
  EXPECT_FALSE(block_kind(m, ActQuant::kFp8)) << "fp32 block scales are no powers of two";
  m.scale_format = ScaleFormat::kE8M0;
  EXPECT_EQ(block_kind(m, ActQuant::kFp8), BlockKind::kFp8);
  EXPECT_FALSE(block_kind(m, ActQuant::kBf16));
  m.format = MatrixFormat::kFP4;
  EXPECT_EQ(block_kind(m, ActQuant::kFp8), BlockKind::kFp4);
  EXPECT_FALSE(block_kind(m, ActQuant::kNvfp4));
  m.format = MatrixFormat::kNVFP4;
  EXPECT_EQ(block_kind(m, ActQuant::kNvfp4), BlockKind::kNvfp4);
  EXPECT_FALSE(block_kind(m, ActQuant::kFp8));
  m.format = MatrixFormat::kBF16;
  EXPECT_FALSE(block_kind(m, ActQuant::kFp8));
  m.format = MatrixFormat::kFP4;
  m.cols = 96;
  EXPECT_FALSE(block_kind(m, ActQuant::kFp8));
  EXPECT_TRUE(has_block_scaled(12, 0));
  EXPECT_FALSE(has_block_scaled(9, 0));
  EXPECT_FALSE(has_block_scaled(12, 1));
}

}  // namespace
}  // namespace pivot::cuda
