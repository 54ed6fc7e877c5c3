// Which byte a lane of a warp holds in the block-scaled products, on the host and on the device alike: tests
// run these functions through a simulation of the instruction (tests/ops/cuda/block_scaled_test.cpp).
//
// The instructions (PTX ISA, "Warp-level matrix instructions", mma with block scaling; sm_120a only), for
// lane l with g = l / 4 and t = l % 4:
//   kind::mxf8f6f4, scale_vec::1X, m16n8k32: elements are bytes. E2M1 lies in bits 5..2 of its byte.
//     A, 4 registers: register r, byte j = row g + 8 (r % 2), column 4t + j + 16 (r / 2)
//     B, 2 registers: register r, byte j = row 4t + j + 16 r, column g
//     one E8M0 scale a row of A and a column of B. Selectors {byte-id, thread-id}: with thread-id 0, the
//     scale of row i of A is byte `byte-id` of the register of lane 4 (i % 8) + i / 8, that of column n of B
//     of lane 4n.
//   kind::mxf4nvf4, scale_vec::4X, m16n8k64: elements are nibbles, the lower one first.
//     A: register r, nibble j = row g + 8 (r % 2), column 8t + j + 32 (r / 2)
//     B: register r, nibble j = row 8t + j + 32 r, column g
//     four UE4M3 scales a row and a column, one for each 16 of K, byte i for columns 16i..: all four bytes of
//     the register of the same lanes; byte-id is 0.
//   C, D, 4 registers: register i = row g + 8 (i / 2), column 2t + i % 2.
//
// A is the weights, B the tokens. Weights keep the order of placement/tile_format.h: a lane's 16-byte pieces
// of a tile are what the instruction wants from it once the columns of K are renamed, and renaming is free
// while A and B agree:
//   kFp8    step s = 2i + h takes words 2h and 2h + 1 of piece i: columns 64i + 16t + 8h + 0..7
//   kFp4    step s takes word s: columns 32s + 8t + 0..7, whose bytes hold columns 2, 0, 3, 1 and 6, 4, 7, 5
//   kNvfp4  step s takes words 2s and 2s + 1: columns 64s + 8t + 0..7 and 64s + 32 + 8t + 0..7
// In all three a scale block of the format is exactly what the instruction scales at once: 32 columns of a
// step (kFp4), 16 of a quarter of one (kNvfp4), and the one scale of 128 columns serves four steps (kFp8,
// activations). A row's scales of a tile are one word (two for kNvfp4), so `byte-id` is the step and nothing
// is unpacked.
#pragma once

#include <cstdint>

#include "ops/cuda/device/both.h"
#include "ops/cuda/placement/block_tile.h"

namespace pivot::cuda {

// Instructions of a tile of 128 columns, and columns of one.
constexpr int block_steps(BlockKind kind) { return kind == BlockKind::kNvfp4 ? 2 : 4; }
// The byte-id of A's scale in step `step`; B's is always 0.
constexpr int block_scale_byte(BlockKind kind, int step) { return kind == BlockKind::kFp4 ? step : 0; }

struct alignas(16) Words4 {
  std::uint32_t w[4];
};
struct alignas(8) Words2 {
  std::uint32_t w[2];
};

// ---- E2M1 codes out of an interleaved word (tile_format.h) ----

// Bytes 00 s mmm 00 of codes A (columns 2, 0, 3, 1 of the word's eight) and of codes B (6, 4, 7, 5).
constexpr std::uint32_t e2m1_bytes_a(std::uint32_t word) {
  return ((word << 1) & 0x1c1c1c1cu) | ((word >> 2) & 0x20202020u);
}
constexpr std::uint32_t e2m1_bytes_b(std::uint32_t word) {
  return ((word >> 2) & 0x1c1c1c1cu) | ((word << 5) & 0x20202020u);
}
// Nibbles s mmm: A in the lower nibble of each byte, B in the upper one, so columns 2, 6, 0, 4, 3, 7, 1, 5.
constexpr std::uint32_t e2m1_nibbles(std::uint32_t word) {
  return (word & 0x70707070u) | ((word >> 1) & 0x07070707u) | ((word << 7) & 0x80808080u) |
         ((word >> 4) & 0x08080808u);
}
// Four activation bytes in the order of e2m1_bytes_a and _b: 2, 0, 3, 1.
constexpr std::uint32_t in_e2m1_order(std::uint32_t four) {
  return (four >> 16 & 0xffu) | (four & 0xffu) << 8 | (four >> 24) << 16 | (four >> 8 & 0xffu) << 24;
}
// The column, of eight, whose NVFP4 activation code lies in nibble i of a word: what e2m1_nibbles makes of
// weights.
constexpr int nvfp4_column(int nibble) {
  return 4 * (nibble % 2) + (nibble / 2 == 0 ? 2 : nibble / 2 == 1 ? 0 : nibble / 2 == 2 ? 3 : 1);
}

// ---- activations in device memory ----
//
// kFp8, kFp4: codes [rows][cols], E8M0 bytes [rows][block_scale_stride(cols)].
// kNvfp4: per 128 columns 64 bytes, word 4t + q = columns 32q + 8t + 0..7 in the order of nvfp4_column; E4M3
// bytes [rows][cols / 16].
constexpr std::int64_t block_scale_stride(std::int64_t cols) { return (cols / 128 + 3) / 4 * 4; }
constexpr std::int64_t block_row_bytes(BlockKind kind, std::int64_t cols) {
  return kind == BlockKind::kNvfp4 ? cols / 2 : cols;
}
constexpr std::int64_t block_row_scale_bytes(BlockKind kind, std::int64_t cols) {
  return kind == BlockKind::kNvfp4 ? cols / 16 : block_scale_stride(cols);
}
// The byte of a row's words where columns 32q + 8t of a tile of 128 lie.
constexpr int nvfp4_word_at(int q, int t) { return 16 * t + 4 * q; }

// ---- a stage of the pipeline ----

// Where the stage keeps the 16-byte piece `piece` of token `token`. Rows of 128 bytes would put the pieces
// that eight lanes read at once (kFp8: four of two tokens; kFp4: two of four tokens) into the same banks;
// rows of 64 do not.
constexpr int token_piece_at(BlockKind kind, int token, int piece) {
  if (kind == BlockKind::kNvfp4) return token * 64 + piece * 16;
  return token * 128 + (piece ^ ((token & 1) << 2 | (token & 2))) * 16;
}

// Copies that fill a stage, numbered 0.. for each part; thread i of n makes copies i, i + n, ...
struct BlockCopy {
  int row = 0;     // row tile of the CTA, or token of the CTA
  int offset = 0;  // bytes from the start of that row's 128 columns in device memory
  int at = 0;      // bytes from the start of the stage
};
template <BlockKind K, BlockSize S>
constexpr int weight_copies() {
  return block_tile(K, S).row_tiles() * static_cast<int>(tile_code_bytes(weight_format(K)) / 16);
}
template <BlockKind K, BlockSize S>
constexpr BlockCopy weight_copy(int i) {
  constexpr auto kPieces = static_cast<int>(tile_code_bytes(weight_format(K)) / 16);
  return {i / kPieces, i % kPieces * 16, i * 16};
}
// Of 16 bytes; kFp8 has one fp32 scale a tile and copies 4.
constexpr int weight_scale_copy_bytes(BlockKind kind) { return kind == BlockKind::kFp8 ? 4 : 16; }
template <BlockKind K, BlockSize S>
constexpr int weight_scale_copies() {
  return block_tile(K, S).row_tiles() * static_cast<int>(tile_scale_bytes(weight_format(K))) /
         weight_scale_copy_bytes(K);
}
template <BlockKind K, BlockSize S>
constexpr BlockCopy weight_scale_copy(int i) {
  constexpr int kBytes = weight_scale_copy_bytes(K);
  constexpr int kPieces = static_cast<int>(tile_scale_bytes(weight_format(K))) / kBytes;
  constexpr int kStart = block_stage(K, block_tile(K, S)).weight_scales_at;
  return {i / kPieces, i % kPieces * kBytes, kStart + i * kBytes};
}
template <BlockKind K, BlockSize S>
constexpr int token_copies() {
  return block_tile(K, S).tokens() * token_code_bytes(K) / 16;
}
template <BlockKind K, BlockSize S>
constexpr BlockCopy token_copy(int i) {
  constexpr int kPieces = token_code_bytes(K) / 16, kStart = block_stage(K, block_tile(K, S)).tokens_at;
  return {i / kPieces, i % kPieces * 16, kStart + token_piece_at(K, i / kPieces, i % kPieces)};
}
// One copy a token, of token_scale_bytes(K), from token_scale_offset on.
template <BlockKind K, BlockSize S>
constexpr BlockCopy token_scale_copy(int i) {
  constexpr int kStart = block_stage(K, block_tile(K, S)).token_scales_at;
  return {i, 0, kStart + i * token_scale_bytes(K)};
}
// Of a token's scales: the word that holds the byte of tile kt (a copy has at least four bytes), or the
// tile's eight.
constexpr int token_scale_offset(BlockKind kind, int kt) {
  return kind == BlockKind::kNvfp4 ? 8 * kt : kt / 4 * 4;
}

// ---- what a lane takes from a stage ----

// Weights of one stripe: the pieces of a tile and the scales of the row whose scale this lane provides.
template <BlockKind K>
struct BlockWeights {
  Words4 piece[K == BlockKind::kFp8 ? 4 : 2];
  std::uint32_t scales[2];

  // `codes` and `scale_bytes`: the tile's parts of the stage.
  PIVOT_BOTH void load(const std::uint8_t* codes, const std::uint8_t* scale_bytes, int lane) {
    constexpr int kPieces = K == BlockKind::kFp8 ? 4 : 2;
    for (int i = 0; i < kPieces; ++i)
      piece[i] = *reinterpret_cast<const Words4*>(codes + i * 512 + lane * 16);
    const int row =
        lane / 4 + 8 * (lane % 2);  // of lanes with lane % 4 < 2; the others' registers are not read
    if constexpr (K == BlockKind::kFp8) {
      scales[0] = *reinterpret_cast<const std::uint32_t*>(scale_bytes) >> 23;  // fp32 power of two -> E8M0
    } else if constexpr (K == BlockKind::kFp4) {
      scales[0] = *reinterpret_cast<const std::uint32_t*>(scale_bytes + row * 4);
    } else {
      const Words2 both = *reinterpret_cast<const Words2*>(scale_bytes + row * 8);
      scales[0] = both.w[0];
      scales[1] = both.w[1];
    }
  }
  // Operand A of step `step`.
  PIVOT_BOTH void operand(int step, std::uint32_t (&a)[4]) const {
    if constexpr (K == BlockKind::kFp8) {
      const int i = step / 2, h = step % 2;
      a[0] = piece[2 * i].w[2 * h];
      a[1] = piece[2 * i + 1].w[2 * h];
      a[2] = piece[2 * i].w[2 * h + 1];
      a[3] = piece[2 * i + 1].w[2 * h + 1];
    } else if constexpr (K == BlockKind::kFp4) {
      a[0] = e2m1_bytes_a(piece[0].w[step]);
      a[1] = e2m1_bytes_a(piece[1].w[step]);
      a[2] = e2m1_bytes_b(piece[0].w[step]);
      a[3] = e2m1_bytes_b(piece[1].w[step]);
    } else {
      a[0] = e2m1_nibbles(piece[0].w[2 * step]);
      a[1] = e2m1_nibbles(piece[1].w[2 * step]);
      a[2] = e2m1_nibbles(piece[0].w[2 * step + 1]);
      a[3] = e2m1_nibbles(piece[1].w[2 * step + 1]);
    }
  }
  PIVOT_BOTH std::uint32_t scale(int step) const { return K == BlockKind::kNvfp4 ? scales[step] : scales[0]; }
};

// Eight tokens: this lane's columns of token `first` + lane / 4, and that token's scale.
template <BlockKind K>
struct BlockTokens {
  std::uint32_t words[8];
  std::uint32_t scales[2];

  // `codes` and `scale_bytes`: the tokens' parts of the stage. `kt`: the tile of 128 columns that it holds.
  PIVOT_BOTH void load(const std::uint8_t* codes, const std::uint8_t* scale_bytes, int first, int lane,
                       int kt) {
    const int token = first + lane / 4, t = lane % 4;
    if constexpr (K == BlockKind::kFp8) {
      for (int i = 0; i < 2; ++i) {
        const Words4 v = *reinterpret_cast<const Words4*>(codes + token_piece_at(K, token, 4 * i + t));
        for (int j = 0; j < 4; ++j) words[4 * i + j] = v.w[j];
      }
    } else if constexpr (K == BlockKind::kFp4) {
      for (int q = 0; q < 4; ++q) {
        const Words2 v =
            *reinterpret_cast<const Words2*>(codes + token_piece_at(K, token, 2 * q + t / 2) + t % 2 * 8);
        words[2 * q] = in_e2m1_order(v.w[0]);
        words[2 * q + 1] = in_e2m1_order(v.w[1]);
      }
    } else {
      const Words4 v = *reinterpret_cast<const Words4*>(codes + token_piece_at(K, token, t));
      for (int j = 0; j < 4; ++j) words[j] = v.w[j];
    }
    if constexpr (K == BlockKind::kNvfp4) {
      const Words2 both = *reinterpret_cast<const Words2*>(scale_bytes + token * 8);
      scales[0] = both.w[0];
      scales[1] = both.w[1];
    } else {
      scales[0] = *reinterpret_cast<const std::uint32_t*>(scale_bytes + token * 4) >> (kt % 4 * 8);
    }
  }
  PIVOT_BOTH void operand(int step, std::uint32_t (&b)[2]) const {
    b[0] = words[2 * step];
    b[1] = words[2 * step + 1];
  }
  PIVOT_BOTH std::uint32_t scale(int step) const { return K == BlockKind::kNvfp4 ? scales[step] : scales[0]; }
};

// Where register i of the accumulator of token tile n lies: row of the stripe, token of the warp.
constexpr int accumulator_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
constexpr int accumulator_token(int lane, int n, int i) { return 8 * n + lane % 4 * 2 + i % 2; }

// Stripe `stripe` of warp `warp` is this row tile of its CTA; its tokens start at warp_first_token.
template <BlockSize S>
constexpr int warp_row_tile(int warp, int stripe) {
  constexpr int kRowWarps = block_tile(BlockKind::kFp8, S).row_warps;  // of every kind
  return stripe * kRowWarps + warp % kRowWarps;
}
template <BlockSize S>
constexpr int warp_first_token(int warp) {
  constexpr BlockTile kTile = block_tile(BlockKind::kFp8, S);
  return warp / kTile.row_warps * kTile.token_tiles * 8;
}

}  // namespace pivot::cuda
