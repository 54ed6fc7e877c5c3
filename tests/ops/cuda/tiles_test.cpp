// The tiled layout, read back by a second description of it: where a lane finds the code of (row, column).
#include "ops/cuda/placement/tiles.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "numeric/formats.h"

namespace pivot::cuda {
namespace {

struct HostMatrix {
  Matrix view;
  std::vector<std::uint8_t> codes, scales;
};

HostMatrix random_matrix(MatrixFormat format, ScaleFormat scale_format, std::int64_t rows,
                         std::int64_t cols) {
  HostMatrix m;
  m.view.format = format;
  m.view.scale_format = scale_format;
  m.view.rows = rows;
  m.view.cols = cols;
  std::mt19937 random(static_cast<std::uint32_t>(rows * 131 + cols));
  m.codes.resize(static_cast<std::size_t>(m.view.code_bytes()));
  m.scales.resize(static_cast<std::size_t>(m.view.scale_bytes()));
  for (auto& byte : m.codes) byte = static_cast<std::uint8_t>(random());
  for (auto& byte : m.scales) byte = static_cast<std::uint8_t>(1 + random() % 254);
  m.view.codes = reinterpret_cast<const std::byte*>(m.codes.data());
  m.view.scales = reinterpret_cast<const std::byte*>(m.scales.data());
  return m;
}

struct Tiled {
  std::vector<std::uint8_t> codes, scales;
};
Tiled tile(const Matrix& m) {
  const TiledSize size = tiled_size(m);
  Tiled t{std::vector<std::uint8_t>(static_cast<std::size_t>(size.code_bytes), 0xaa),
          std::vector<std::uint8_t>(static_cast<std::size_t>(size.scale_bytes), 0xaa)};
  tile_matrix(m, reinterpret_cast<std::byte*>(t.codes.data()), reinterpret_cast<std::byte*>(t.scales.data()));
  return t;
}

// The tile, the lane and its row half that hold (row, column), by the figures in tile_format.h.
std::size_t tile_of(const Matrix& m, std::int64_t row, std::int64_t column) {
  return static_cast<std::size_t>(row / 16 * (m.cols / 128) + column / 128);
}
std::size_t lane_of(std::int64_t row, int t) { return static_cast<std::size_t>(row % 8 * 4 + t); }
std::size_t half_of(std::int64_t row) { return static_cast<std::size_t>(row % 16 / 8); }

const std::int64_t kRowCounts[] = {1, 16, 17, 144};

TEST(Tiles, Bf16RoundTrip) {
  for (const std::int64_t rows : kRowCounts) {
    const HostMatrix m = random_matrix(MatrixFormat::kBF16, ScaleFormat::kNone, rows, 256);
    const Tiled t = tile(m.view);
    for (std::int64_t r = 0; r < (rows + 15) / 16 * 16; ++r)
      for (std::int64_t c = 0; c < 256; ++c) {
        const std::size_t j = static_cast<std::size_t>(c % 128 / 32), at8 = static_cast<std::size_t>(c % 32);
        const std::size_t offset = tile_of(m.view, r, c) * 4096 +
                                   ((j * 2 + half_of(r)) * 32 + lane_of(r, static_cast<int>(at8 / 8))) * 16 +
                                   at8 % 8 * 2;
        std::uint16_t stored, wanted = 0;
        std::memcpy(&stored, &t.codes[offset], 2);
        if (r < rows) std::memcpy(&wanted, &m.codes[static_cast<std::size_t>((r * 256 + c) * 2)], 2);
        ASSERT_EQ(stored, wanted) << rows << " rows, " << r << ", " << c;
      }
  }
}

TEST(Tiles, Fp8RoundTripWithBothScaleFormats) {
  for (const ScaleFormat scale_format : {ScaleFormat::kE8M0, ScaleFormat::kF32})
    for (const std::int64_t rows : kRowCounts) {
      const HostMatrix m = random_matrix(MatrixFormat::kFP8, scale_format, rows, 384);
      const Tiled t = tile(m.view);
      for (std::int64_t r = 0; r < (rows + 15) / 16 * 16; ++r)
        for (std::int64_t c = 0; c < 384; ++c) {
          const std::size_t i = static_cast<std::size_t>(c % 128 / 64),
                            in64 = static_cast<std::size_t>(c % 64);
          const std::size_t offset =
              tile_of(m.view, r, c) * 2048 +
              ((i * 2 + half_of(r)) * 32 + lane_of(r, static_cast<int>(in64 / 16))) * 16 + in64 % 16;
          ASSERT_EQ(t.codes[offset], r < rows ? m.codes[static_cast<std::size_t>(r * 384 + c)] : 0)
              << r << ", " << c;
          if (r >= rows) continue;
          const std::size_t block = static_cast<std::size_t>(r / 128 * 3 + c / 128);
          float stored, wanted;
          std::memcpy(&stored, &t.scales[tile_of(m.view, r, c) * 4], 4);
          if (scale_format == ScaleFormat::kF32)
            std::memcpy(&wanted, &m.scales[block * 4], 4);
          else
            wanted = e8m0_to_float(m.scales[block]);
          ASSERT_EQ(std::memcmp(&stored, &wanted, 4), 0) << r << ", " << c;
        }
    }
}

TEST(Tiles, Fp4RoundTrip) {
  for (const MatrixFormat format : {MatrixFormat::kFP4, MatrixFormat::kNVFP4})
    for (const std::int64_t rows : kRowCounts) {
      const std::int64_t cols = 256, group = format == MatrixFormat::kFP4 ? 32 : 16, groups = 128 / group;
      const HostMatrix m = random_matrix(
          format, format == MatrixFormat::kFP4 ? ScaleFormat::kE8M0 : ScaleFormat::kE4M3, rows, cols);
      const Tiled t = tile(m.view);
      for (std::int64_t r = 0; r < (rows + 15) / 16 * 16; ++r)
        for (std::int64_t c = 0; c < cols; c += 8) {
          const std::size_t q = static_cast<std::size_t>(c % 128 / 32);
          const std::size_t offset = tile_of(m.view, r, c) * 1024 +
                                     (half_of(r) * 32 + lane_of(r, static_cast<int>(c % 32 / 8))) * 16 +
                                     q * 4;
          std::uint32_t word;
          std::memcpy(&word, &t.codes[offset], 4);
          std::uint8_t codes[8];
          deinterleave_fp4(word, codes);
          for (std::int64_t k = 0; k < 8; ++k) {
            const std::uint8_t byte =
                r < rows ? m.codes[static_cast<std::size_t>((r * cols + c + k) / 2)] : 0;
            ASSERT_EQ(codes[k], k % 2 == 0 ? byte & 15 : byte >> 4) << r << ", " << c + k;
          }
          const std::size_t scale = tile_of(m.view, r, c) * static_cast<std::size_t>(16 * groups) +
                                    static_cast<std::size_t>(r % 16 * groups + c % 128 / group);
          ASSERT_EQ(t.scales[scale],
                    r < rows ? m.scales[static_cast<std::size_t>(r * (cols / group) + c / group)] : 0);
        }
    }
}

// The word's bytes are the high bytes of F16 bit patterns: the kernels' expansion, restated on the host.
TEST(Tiles, InterleavedWordsExpandToScaledHalves) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::uint8_t codes[8], back[8];
    for (auto& code : codes) code = static_cast<std::uint8_t>(random() & 15u);
    const std::uint32_t word = interleave_fp4(codes);
    deinterleave_fp4(word, back);
    ASSERT_EQ(std::memcmp(codes, back, 8), 0);
    const std::uint32_t second = ((word >> 3) & 0x7f7f7f7fu) | ((word << 7) & 0x80808080u);
    const std::uint32_t pairs[4] = {word & 0x8e008e00u, (word << 8) & 0x8e008e00u, second & 0x8e008e00u,
                                    (second << 8) & 0x8e008e00u};
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t bits = pairs[k / 2] >> (k % 2 * 16) & 0xffffu;
      // F16 bits eem at 11..9 with the other exponent bits clear: e2m1 times 2^-14.
      const int exponent = static_cast<int>(bits >> 10 & 3), mantissa = static_cast<int>(bits >> 9 & 1);
      const float magnitude = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                            : (1.0f + 0.5f * static_cast<float>(mantissa)) *
                                                  static_cast<float>(1 << (exponent - 1));
      ASSERT_EQ((bits & 0x8000u) != 0 ? -magnitude : magnitude, e2m1_to_float(codes[k])) << int{codes[k]};
    }
  }
}

TEST(Tiles, RefusesWhatTheKernelsCannotTake) {
  Matrix m;
  m.format = MatrixFormat::kFP8;
  m.rows = 16;
  m.cols = 200;
  const Result<> columns = check_tileable(m, "layers.0.attn.wq_a");
  ASSERT_FALSE(columns);
  EXPECT_NE(columns.error().to_string().find("200"), std::string::npos) << columns.error().to_string();
  m.cols = 256;
  EXPECT_TRUE(check_tileable(m, ""));
  m.format = MatrixFormat::kF32;
  EXPECT_FALSE(check_tileable(m, ""));
}

}  // namespace
}  // namespace pivot::cuda
