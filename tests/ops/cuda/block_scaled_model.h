// A model of the block-scaled instructions, written from the PTX manual and independent of the kernels' index
// functions, and random operands in the layouts that the kernels read.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "mma_probe.h"
#include "numeric/formats.h"
#include "ops/cuda/block_scaled/fragments.h"
#include "ops/cuda/placement/tiles.h"

namespace pivot::cuda {

// ---- the instruction ----

inline std::uint8_t byte_of(std::uint32_t word, int i) { return static_cast<std::uint8_t>(word >> (8 * i)); }
inline std::uint8_t nibble_of(std::uint32_t word, int i) { return word >> (4 * i) & 15; }
inline double e2m1_in_byte(std::uint8_t byte) {
  EXPECT_EQ(byte & 0xc3, 0) << "E2M1 lies in bits 5..2";
  return e2m1_to_float(byte >> 2 & 15);
}
// UE4M3 has no sign.
inline double ue4m3(std::uint8_t byte) { return e4m3_to_float(byte & 0x7f); }

// d[row][column] += sum over K, by the manual's tables: element (row, k) of A is in the register and at the
// place that the loops below solve for.
template <BlockKind K>
void simulate(const LaneOperands (&lanes)[32], int byte_a, double (&d)[16][8]) {
  constexpr bool kBytes = K != BlockKind::kNvfp4;
  constexpr int kDepth = kBytes ? 32 : 64, kEach = kBytes ? 4 : 8;  // elements of a register
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column)
      for (int k = 0; k < kDepth; ++k) {
        const int t = k % (kDepth / 2) / kEach, upper = k / (kDepth / 2), in = k % kEach;
        const std::uint32_t a = lanes[row % 8 * 4 + t].a[row / 8 + 2 * upper];
        const std::uint32_t b = lanes[column * 4 + t].b[upper];
        const std::uint32_t scale_a = lanes[row % 8 * 4 + row / 8].scale_a,
                            scale_b = lanes[column * 4].scale_b;
        double value;
        if constexpr (K == BlockKind::kFp8)
          value = static_cast<double>(e4m3_to_float(byte_of(a, in))) * e4m3_to_float(byte_of(b, in));
        else if constexpr (K == BlockKind::kFp4)
          value = e2m1_in_byte(byte_of(a, in)) * e4m3_to_float(byte_of(b, in));
        else
          value = static_cast<double>(e2m1_to_float(nibble_of(a, in))) * e2m1_to_float(nibble_of(b, in));
        if constexpr (kBytes)
          value *= static_cast<double>(e8m0_to_float(byte_of(scale_a, byte_a))) *
                   e8m0_to_float(byte_of(scale_b, 0));
        else
          value *= ue4m3(byte_of(scale_a, k / 16)) * ue4m3(byte_of(scale_b, k / 16));
        d[row][column] += value;
      }
}

// ---- operands ----

inline std::uint8_t random_e4m3(std::mt19937& random) {
  const auto code = static_cast<std::uint8_t>(random());
  return (code & 0x7f) == 0x7f ? 0x38 : code;
}

// A weight matrix as a checkpoint has it, and the values that it stands for.
struct Weights {
  Matrix view;
  std::vector<std::uint8_t> codes, scales, tiled_codes, tiled_scales;

  double value(std::int64_t row, std::int64_t col) const {
    const auto at = [&](const std::vector<std::uint8_t>& v, std::int64_t i) {
      return v[static_cast<std::size_t>(i)];
    };
    const std::int64_t cols = view.cols;
    if (view.format == MatrixFormat::kFP8)
      return static_cast<double>(e4m3_to_float(at(codes, row * cols + col))) *
             e8m0_to_float(at(scales, row / 128 * (cols / 128) + col / 128));
    const double code =
        e2m1_to_float(static_cast<std::uint8_t>(at(codes, (row * cols + col) / 2) >> (col % 2 * 4)) & 15);
    return view.format == MatrixFormat::kFP4 ? code * e8m0_to_float(at(scales, row * (cols / 32) + col / 32))
                                             : code * e4m3_to_float(at(scales, row * (cols / 16) + col / 16));
  }
};
inline Weights random_weights(MatrixFormat format, std::int64_t rows, std::int64_t cols,
                              std::mt19937& random) {
  Weights w;
  w.view.format = format;
  w.view.scale_format = format == MatrixFormat::kNVFP4 ? ScaleFormat::kE4M3 : ScaleFormat::kE8M0;
  w.view.rows = rows;
  w.view.cols = cols;
  w.codes.resize(static_cast<std::size_t>(w.view.code_bytes()));
  w.scales.resize(static_cast<std::size_t>(w.view.scale_bytes()));
  for (auto& code : w.codes)
    code = format == MatrixFormat::kFP8 ? random_e4m3(random) : static_cast<std::uint8_t>(random());
  // Exponents close enough that sums in double are exact, so that every order of a sum gives the same.
  for (auto& scale : w.scales)
    scale =
        static_cast<std::uint8_t>(format == MatrixFormat::kNVFP4 ? 0x30 + random() % 24 : 124 + random() % 7);
  w.view.codes = reinterpret_cast<const std::byte*>(w.codes.data());
  w.view.scales = reinterpret_cast<const std::byte*>(w.scales.data());
  const TiledSize size = tiled_size(w.view);
  w.tiled_codes.resize(static_cast<std::size_t>(size.code_bytes));
  w.tiled_scales.resize(static_cast<std::size_t>(size.scale_bytes));
  tile_matrix(w.view, reinterpret_cast<std::byte*>(w.tiled_codes.data()),
              reinterpret_cast<std::byte*>(w.tiled_scales.data()));
  return w;
}

// Activations as the operand kernels write them, and the values that they stand for.
struct Tokens {
  std::vector<std::uint8_t> codes, scales;
  std::vector<double> values;
};
template <BlockKind K>
Tokens random_tokens(std::int64_t rows, std::int64_t cols, std::mt19937& random) {
  Tokens x;
  x.codes.resize(static_cast<std::size_t>(rows * block_row_bytes(K, cols)));
  x.scales.resize(static_cast<std::size_t>(rows * block_row_scale_bytes(K, cols)), 0xee);
  x.values.resize(static_cast<std::size_t>(rows * cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::uint8_t* scales = &x.scales[static_cast<std::size_t>(row * block_row_scale_bytes(K, cols))];
    std::uint8_t* codes = &x.codes[static_cast<std::size_t>(row * block_row_bytes(K, cols))];
    for (std::int64_t col = 0; col < cols; ++col) {
      double& value = x.values[static_cast<std::size_t>(row * cols + col)];
      if constexpr (K == BlockKind::kNvfp4) {
        if (col % 16 == 0) scales[col / 16] = static_cast<std::uint8_t>(0x30 + random() % 24);
        // The word of columns 32q + 8t, and which of its nibbles is this column's.
        const int q = static_cast<int>(col % 128 / 32), t = static_cast<int>(col % 32 / 8);
        int nibble = 0;
        while (nvfp4_column(nibble) != col % 8) ++nibble;
        const std::uint8_t code = random() & 15;
        codes[col / 128 * 64 + nvfp4_word_at(q, t) + nibble / 2] |=
            static_cast<std::uint8_t>(code << (nibble % 2 * 4));
        value = static_cast<double>(e2m1_to_float(code)) * e4m3_to_float(scales[col / 16]);
      } else {
        if (col % 128 == 0) scales[col / 128] = static_cast<std::uint8_t>(124 + random() % 7);
        codes[col] = random_e4m3(random);
        value = static_cast<double>(e4m3_to_float(codes[col])) * e8m0_to_float(scales[col / 128]);
      }
    }
  }
  return x;
}

}  // namespace pivot::cuda
