// v = bf(silu(min(g, L)) clamp(u, -L, L) w) with g = bf(w1 x), u = bf(w3 x);  y_e = bf(w2 Q(v)), on sm_120a.
//
// Bytes: every touched expert once per token tile (13.4 MB in FP4; from L2 after the first tile); FLOP: 6 d I
// a pair. Bound by bytes while experts have few tokens, by the tensor cores in a long step. One grid over
// (rows, token tiles of the work list). In `up` a warp's two stripes are the same 16 rows of w1 and of w3, so
// that SwiGLU is its epilogue.
#include <algorithm>

#include "ops/cuda/block_scaled/block_scaled.h"
#include "ops/cuda/block_scaled/multiply.cuh"
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/moe/swiglu.cuh"
#include "ops/cuda/placement/schedule.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

// The expert of token tile blockIdx.y, its first place and how many places are the tile's; count 0: no such
// tile.
struct ExpertTile {
  const DeviceExpert* expert;
  int first, count;
};
[[maybe_unused]] __device__ __forceinline__ ExpertTile find_tile(const BlockExperts& e, int tile_tokens) {
  const ExpertArguments& a = e.a;
  const int tile = blockIdx.y;
  if (e.shared) {
    const int first = tile * tile_tokens;
    return {a.table + a.experts, first, min(tile_tokens, a.tokens - first)};
  }
  if (a.direct_ids != nullptr) return {a.table + __ldcg(a.direct_ids + tile), tile, 1};
  if (tile >= e.tiles[a.list.slots]) return {nullptr, 0, 0};
  const int slot = slot_of_tile(e.tiles, a.list.slots, tile);
  const int offset = (tile - e.tiles[slot]) * tile_tokens;
  return {a.list.weights + slot, a.list.first[slot] + offset, min(tile_tokens, a.list.count[slot] - offset)};
}

[[maybe_unused]] __device__ __forceinline__ const std::uint8_t* device_bytes(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}

// grid (CTA rows, most token tiles there can be)
template <BlockKind K, BlockSize S, bool UP>
__global__ void __launch_bounds__(BlockProduct<K, S>::kThreads)
    block_experts_kernel(const __grid_constant__ BlockExperts e) {
  if constexpr (kBlockScaledMma) {
    using Product = BlockProduct<K, S>;
    extern __shared__ __align__(16) std::uint8_t stages[];
    const ExpertArguments& a = e.a;
    // The list of `up` may be the previous kernel's work; that of `down` is older (moe/experts.cu).
    if constexpr (UP) {
      wait_for_predecessor();
      release_successor();
    }
    const ExpertTile at = find_tile(e, Product::kTokens);
    if (at.count == 0) {
      if constexpr (!UP) wait_for_predecessor();  // a CTA that ends has released its successor
      return;
    }
    const DeviceExpert& expert = *at.expert;
    const Matrix& m0 = UP ? expert.w1 : expert.w2;
    const Matrix& m1 = UP ? expert.w3 : expert.w2;
    const int first_tile = static_cast<int>(blockIdx.x) * (UP ? Product::kRowWarps : Product::kRowTiles);
    const BlockRows rows{
        {device_bytes(m0.codes), device_bytes(m0.scales), first_tile},
        {device_bytes(m1.codes), device_bytes(m1.scales), UP ? first_tile : first_tile + Product::kRowWarps},
        static_cast<int>((m0.rows + 15) / 16) - 1,
        static_cast<int>(m0.cols / 128)};
    // Rows of `up` are tokens (of the one token of a step without list: 0) except those of kNvfp4.
    const bool by_token = UP && !e.shared && K != BlockKind::kNvfp4;
    const bool direct = a.direct_ids != nullptr;
    const BlockColumns in{e.input.codes,
                          e.input.scales,
                          e.input.row_bytes,
                          e.input.row_scale_bytes,
                          by_token && !direct ? a.list.tokens : nullptr,
                          by_token && direct ? 0 : at.first,
                          at.count};
    typename Product::Sums acc;
    Product product(rows, stages);
    product.template run<!UP>(in, stages, acc);
    float post[2] = {1.0f, 1.0f};
    if constexpr (K == BlockKind::kNvfp4) {
      post[0] = m0.global_scale * m0.input_scale;
      post[1] = m1.global_scale * m1.input_scale;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t shared_rows = e.shared ? static_cast<std::int64_t>(a.tokens) * a.chosen : 0;
#pragma unroll
    for (int n = 0; n < Product::kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = warp_first_token<S>(warp) + accumulator_token(lane, n, i);
        if (token >= at.count) continue;
        const int place = at.first + token;
        if constexpr (UP) {
          const int row = (first_tile + warp_row_tile<S>(warp, 0)) * 16 + accumulator_row(lane, i);
          if (row >= a.inner) continue;
          const float weight = e.shared ? 1.0f : a.route_weights[direct ? place : a.list.pairs[place]];
          const float g = round_bf16(acc[0][n][i] * post[0]), u = round_bf16(acc[1][n][i] * post[1]);
          store_bf16(a.hidden, (shared_rows + place) * a.inner + row, swiglu(g, u, a.limit, weight));
        } else {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const int row = (first_tile + warp_row_tile<S>(warp, m)) * 16 + accumulator_row(lane, i);
            if (row < a.width)
              store_bf16(a.partial, (shared_rows + place) * a.width + row, acc[m][n][i] * post[m]);
          }
        }
      }
  }
}

template <bool UP, BlockKind K, BlockSize S>
void launch_tile(const BlockExperts& e, cudaStream_t stream) {
  constexpr BlockTile kTile = block_tile(K, S);
  const ExpertArguments& a = e.a;
  const std::int64_t rows = UP ? a.inner : a.width, rows_each = UP ? kTile.rows() / 2 : kTile.rows();
  const std::int64_t pairs = static_cast<std::int64_t>(a.tokens) * a.chosen;
  const std::int64_t tiles = e.shared ? (a.tokens + kTile.tokens() - 1) / kTile.tokens()
                             : a.direct_ids != nullptr
                                 ? a.chosen
                                 : most_expert_tiles(pairs, a.list.slots, kTile.tokens());
  require(e.shared || a.direct_ids != nullptr || e.tiles != nullptr, "routed experts need their token tiles");
  launch({dim3(static_cast<unsigned>((rows + rows_each - 1) / rows_each), static_cast<unsigned>(tiles)),
          dim3(static_cast<unsigned>(kTile.threads())), block_shared_bytes(K, S), stream, true,
          UP ? "block_experts_up" : "block_experts_down"},
         block_experts_kernel<K, S, UP>, e);
}
template <bool UP, BlockKind K>
void launch_kind(const BlockExperts& e, cudaStream_t stream) {
  switch (e.size) {
    case BlockSize::kSmall:
      return launch_tile<UP, K, BlockSize::kSmall>(e, stream);
    case BlockSize::kMedium:
      return launch_tile<UP, K, BlockSize::kMedium>(e, stream);
    case BlockSize::kWide:
      return launch_tile<UP, K, BlockSize::kWide>(e, stream);
  }
}
template <bool UP>
void launch_experts(const BlockExperts& e, cudaStream_t stream) {
  switch (e.kind) {
    case BlockKind::kFp8:
      return launch_kind<UP, BlockKind::kFp8>(e, stream);
    case BlockKind::kFp4:
      return launch_kind<UP, BlockKind::kFp4>(e, stream);
    case BlockKind::kNvfp4:
      return launch_kind<UP, BlockKind::kNvfp4>(e, stream);
  }
}

}  // namespace

void launch_block_experts_up(const BlockExperts& e, cudaStream_t stream) { launch_experts<true>(e, stream); }
void launch_block_experts_down(const BlockExperts& e, cudaStream_t stream) {
  launch_experts<false>(e, stream);
}

}  // namespace pivot::cuda
