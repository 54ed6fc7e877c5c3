// Tiles of the products with many tokens: the operand against the tiles of weights, cuts of tokens, order of
// items.
#include "ops/cuda/placement/gemm_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "ops/cuda/placement/tiles.h"

namespace pivot::cuda {
namespace {

// The column of 128 of every code that a lane decodes for step s of a tile, read from a tile whose codes name
// their columns: [step][lane % 4][which of the instruction's four columns].
using LaneColumns = std::array<std::array<std::array<int, 4>, 4>, 8>;

// Rows of one format whose codes in row 0 are made by `code(column)`, as tiles.
template <class Code>
std::vector<std::byte> one_tile(MatrixFormat format, std::int64_t row_bytes, const Code& put) {
  std::vector<std::byte> codes(static_cast<std::size_t>(kTileRows * row_bytes));
  put(codes);
  std::vector<std::byte> scales(static_cast<std::size_t>(kTileRows * 8), std::byte{1});
  Matrix m;
  m.format = format;
  m.scale_format = format == MatrixFormat::kFP8 ? ScaleFormat::kE8M0 : ScaleFormat::kNone;
  m.rows = kTileRows;
  m.cols = kTileCols;
  m.codes = codes.data();
  m.scales = scales.data();
  std::vector<std::byte> out(static_cast<std::size_t>(tile_code_bytes(format)));
  std::vector<std::byte> out_scales(static_cast<std::size_t>(tile_scale_bytes(format)) + 1);
  tile_matrix(m, out.data(), out_scales.data());
  return out;
}

LaneColumns bf16_columns() {
  const auto tile = one_tile(MatrixFormat::kBF16, 256, [](std::vector<std::byte>& codes) {
    for (int c = 0; c < 128; ++c) codes[static_cast<std::size_t>(2 * c)] = static_cast<std::byte>(c);
  });
  LaneColumns out{};
  // Step 2q + j of lane t: words 2j and 2j + 1 of its 16 bytes of piece q.
  for (int s = 0; s < 8; ++s)
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < 4; ++i)
        out[static_cast<std::size_t>(s)][static_cast<std::size_t>(t)][static_cast<std::size_t>(i)] =
            static_cast<int>(tile[static_cast<std::size_t>(s / 2 * 1024 + t * 16 + s % 2 * 8 + i * 2)]);
  return out;
}
LaneColumns fp8_columns() {
  const auto tile = one_tile(MatrixFormat::kFP8, 128, [](std::vector<std::byte>& codes) {
    for (int c = 0; c < 128; ++c) codes[static_cast<std::size_t>(c)] = static_cast<std::byte>(c);
  });
  LaneColumns out{};
  // Four steps a piece of 64 columns, four bytes each.
  for (int s = 0; s < 8; ++s)
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < 4; ++i)
        out[static_cast<std::size_t>(s)][static_cast<std::size_t>(t)][static_cast<std::size_t>(i)] =
            static_cast<int>(tile[static_cast<std::size_t>(s / 4 * 1024 + t * 16 + s % 4 * 4 + i)]);
  return out;
}
LaneColumns fp4_columns() {
  LaneColumns out{};
  for (int digit = 0; digit < 3; ++digit) {  // four bits name a column only in three tiles
    const auto tile = one_tile(MatrixFormat::kFP4, 64, [&](std::vector<std::byte>& codes) {
      for (int c = 0; c < 128; ++c) {
        const int code = c >> (4 * digit) & 15;
        codes[static_cast<std::size_t>(c / 2)] |= static_cast<std::byte>(c % 2 == 0 ? code : code << 4);
      }
    });
    for (int s = 0; s < 8; ++s)
      for (int t = 0; t < 4; ++t) {
        std::uint32_t word;
        std::memcpy(&word, &tile[static_cast<std::size_t>(t * 16 + s / 2 * 4)], 4);
        std::uint8_t eight[8];
        deinterleave_fp4(word, eight);
        for (int i = 0; i < 4; ++i)
          out[static_cast<std::size_t>(s)][static_cast<std::size_t>(t)][static_cast<std::size_t>(i)] |=
              eight[s % 2 * 4 + i] << (4 * digit);
      }
  }
  return out;
}

// Lane t meets in step s positions 2t, 2t + 1, 2t + 8, 2t + 9 of the right operand: they must hold its
// columns.
void expect_same_columns(MatrixFormat format, const LaneColumns& columns) {
  for (int s = 0; s < 8; ++s)
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < 4; ++i) {
        const int position = s % 4 * 16 + i / 2 * 8 + 2 * t + i % 2;
        EXPECT_EQ(
            s / 4 * kGemmPanel + operand_column(format, position),
            columns[static_cast<std::size_t>(s)][static_cast<std::size_t>(t)][static_cast<std::size_t>(i)])
            << "step " << s << " lane " << t << " column " << i;
      }
}

TEST(GemmOperand, MeetsTheColumnsOfWeightTiles) {
  expect_same_columns(MatrixFormat::kBF16, bf16_columns());
  expect_same_columns(MatrixFormat::kFP8, fp8_columns());
  expect_same_columns(MatrixFormat::kFP4, fp4_columns());
  for (int p = 0; p < kGemmPanel; ++p)
    EXPECT_EQ(operand_column(MatrixFormat::kNVFP4, p), operand_column(MatrixFormat::kFP4, p));
}

TEST(GemmOperand, KeepsPairsOfColumnsTogether) {  // the kernel moves them as words
  for (const MatrixFormat format : {MatrixFormat::kFP8, MatrixFormat::kFP4})
    for (int p = 0; p < kGemmPanel; p += 2) {
      EXPECT_EQ(operand_column(format, p) % 2, 0);
      EXPECT_EQ(operand_column(format, p + 1), operand_column(format, p) + 1);
    }
}

TEST(GemmOperand, EveryElementHasItsOwnPlaceAndEightRowsAreABlock) {
  const std::int64_t rows = 24, panels = 3;
  std::set<std::int64_t> seen;
  for (std::int64_t panel = 0; panel < panels; ++panel)
    for (std::int64_t row = 0; row < rows; ++row)
      for (int p = 0; p < kGemmPanel; ++p) {
        const std::int64_t at = operand_offset(panel, rows, row, p);
        EXPECT_TRUE(seen.insert(at).second);
        // Rows from a multiple of eight on are contiguous within a panel, 128 bytes each.
        EXPECT_EQ(at / kGemmPanel, panel * rows + row);
        // The swizzle is that of shared memory: piece XOR row mod 8.
        EXPECT_EQ(at % kGemmPanel / 8, (p / 8) ^ (row % 8));
      }
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), rows * panels * kGemmPanel);
  EXPECT_EQ(*seen.rbegin(), rows * panels * kGemmPanel - 1);
}

TEST(GemmTokens, CutsCoverEveryTokenOnce) {
  for (const int step : {32, 64})
    for (const int most : {64, 128, 192, 256})
      for (int count = 0; count <= 3000; ++count) {
        const TokenTiles cut = cut_tokens(count, most, step);
        if (count == 0) {
          EXPECT_EQ(cut.tiles, 0);
          continue;
        }
        EXPECT_GE(cut.tokens, 1);
        EXPECT_LE(cut.tokens, most) << count;
        EXPECT_EQ(cut.tokens % step, 0);
        EXPECT_GE(cut.tiles * cut.tokens, count);
        EXPECT_LT((cut.tiles - 1) * cut.tokens, count) << "an empty tile, " << count << " by " << most;
      }
}

TEST(GemmTokens, TheTableOfExpertTilesAndTheOperandHaveRoom) {
  const std::vector<std::vector<int>> lists = {
      {0, 1, 127, 128, 129, 300}, {1, 1, 1, 1}, {4096}, {0, 0, 7}, {64, 65, 63}};
  for (const std::vector<int>& counts : lists)
    for (const int most : {64, 128, 192, 256}) {
      const std::int64_t pairs = std::accumulate(counts.begin(), counts.end(), 0);
      std::int64_t tiles = 0, rows = 0;
      for (const int count : counts) {
        tiles += cut_tokens(count, most, std::min(most, 64)).tiles;
        rows += round_up(count, 8);
      }
      const auto slots = static_cast<std::int64_t>(counts.size());
      EXPECT_LE(tiles, most_expert_tiles(pairs, slots));
      EXPECT_LE(rows, expert_operand_rows(pairs, slots));
    }
}

TEST(GemmTokens, ARingHoldsAtLeastTwoTilesOfColumns) {
  for (int tokens = 32; tokens <= kGemmTokens; tokens += 32) {
    const int stages = gemm_stages(tokens);
    EXPECT_GE(stages, 4) << "two stages are multiplied while two are on their way";
    EXPECT_LE(stages, kGemmMaxStages);
    EXPECT_LE(stages * tokens * 2 * kGemmPanel, kGemmRingBytes);
    EXPECT_EQ(tokens * 2 * kGemmPanel % 1024, 0) << "stages start where the swizzle does";
  }
}

TEST(GemmTokens, DenseTilesFillTheCard) {
  const int clusters = 66;
  for (const std::int64_t units : {1, 2, 6, 10, 16, 128, 160})
    for (const std::int64_t tokens : {129, 200, 512, 1000, 2048, 8192, 65536}) {
      const int most = dense_tile_tokens(tokens, units, clusters);
      EXPECT_TRUE(most == 64 || most == 128 || most == 192 || most == 256) << most;
    }
  EXPECT_EQ(dense_tile_tokens(8192, 160, clusters), 256);  // wq_b: far more items than clusters
  EXPECT_EQ(dense_tile_tokens(8192, 16, clusters), 256);   // wo_b
  EXPECT_LT(dense_tile_tokens(512, 6, clusters), 256) << "smaller tiles use more clusters";
}

TEST(GemmTokens, SmallExpertsTakeSmallTiles) {
  EXPECT_EQ(expert_tile_tokens(8192 * 6, 256), 256);
  EXPECT_EQ(expert_tile_tokens(2048 * 6, 256), 128);
}

TEST(GemmOrder, VisitsEveryItemOnceAndBandByBand) {
  for (const int units : {1, 5, 8, 20})
    for (const int tiles : {1, 3, 32})
      for (const int band : {1, 4, 8, 1 << 20}) {
        std::set<std::pair<int, int>> seen;
        int last_band = 0;
        for (int i = 0; i < units * tiles; ++i) {
          const GemmItem at = gemm_item(i, units, tiles, band);
          EXPECT_GE(at.unit, 0);
          EXPECT_LT(at.unit, units);
          EXPECT_GE(at.tile, 0);
          EXPECT_LT(at.tile, tiles);
          EXPECT_TRUE(seen.insert({at.unit, at.tile}).second);
          EXPECT_GE(at.unit / band, last_band);
          last_band = at.unit / band;
        }
      }
}

}  // namespace
}  // namespace pivot::cuda
