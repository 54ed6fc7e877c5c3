// o_h = sum_p e^(l_p - M) kv_p / (sum_p e^(l_p - M) + e^(sink_h - M)),  l_p = (q_h . kv_p) D^-0.5, keys =
// values.
//
// Bytes: 584 a key row (packed), q and o; FLOP: 4 H D a key. One CTA takes 16 heads of one query and every
// splits-th tile of 64 keys: the tile is decoded to BF16 in shared memory once and used as K and as V. Where
// queries are many, a CTA takes four such groups of heads, so that a tile is decoded once for 64 of them.
// Four warps a group, eight where the CTA has one group: for Q K^T four of them take 16 keys each, for P V
// each warp takes its share of D. P is rounded to BF16 under the running maximum; the denominator sums the
// unrounded values (specification 2.4). Where there is one split the CTA divides and rotates back itself;
// else a second kernel merges the splits first.
#include "ops/cuda/attention/attention.h"

#include <algorithm>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/latent/window.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kKeys = kAttentionKeys;
constexpr int kHeads = kAttentionHeads;

template <int D, int GROUPS>
struct Shared {
  static constexpr int kStride = D + 8;  // BF16 elements; the pad spreads rows over the banks
  std::uint16_t q[GROUPS * kHeads][kStride];
  std::uint16_t k[kKeys][kStride];
  std::uint16_t p[GROUPS][kHeads][kKeys + 8];
  float row_max[GROUPS][4][kHeads], row_sum[GROUPS][4][kHeads];
};
template <int D, int GROUPS>
constexpr bool kSharedAsPlanned = sizeof(Shared<D, GROUPS>) == attention_shared_bytes(D, GROUPS);
static_assert(kSharedAsPlanned<512, 4> && kSharedAsPlanned<512, 1> && kSharedAsPlanned<128, 4>);

__device__ __forceinline__ void ldmatrix4(std::uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(p))));
}
__device__ __forceinline__ void ldmatrix4_trans(std::uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(p))));
}

// Where one key lies: BF16 elements, or packed codes with scales; null data: a row of zeros.
struct KeyRow {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;  // null: BF16
};
__device__ __forceinline__ KeyRow key_row(const AttentionArguments& a, const SequenceSpan& span, int token,
                                          int first_raw, int raw, int keys, int key) {
  if (key >= keys) return {};
  if (key < raw) {
    const int p = first_raw + key;
    if (p >= span.start_position)
      return {static_cast<const std::uint8_t*>(a.kv) +
                  (static_cast<std::int64_t>(span.first_token) + p - span.start_position) * a.head_dim * 2,
              nullptr};
    const RowAddress at = ring_row(a.ring, span.slot, p);
    return {at.data, a.ring.layout.format == RowFormat::kBf16 ? nullptr : at.scales};
  }
  const int j = key - raw;
  const RowAddress at =
      paged_row(a.compressed, span.table,
                a.selected == nullptr ? j : a.selected[static_cast<std::int64_t>(token) * a.topk + j]);
  return {at.data, a.compressed.layout.format == RowFormat::kBf16 ? nullptr : at.scales};
}
template <class T>
__device__ __forceinline__ const T* shuffle(const T* p, int lane) {
  return reinterpret_cast<const T*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(p), lane));
}
__device__ __forceinline__ KeyRow shuffle(const KeyRow& row, int lane) {
  return {shuffle(row.data, lane), shuffle(row.scales, lane)};
}

// Eight elements as loaded: BF16, or E4M3 codes in x and y with their scale byte.
struct KeyPiece {
  uint4 raw;
  std::uint32_t scale;  // E8M0 byte; kPlain: BF16 as it is
};
constexpr std::uint32_t kPlain = 256;
template <int D>
__device__ __forceinline__ KeyPiece load_piece(const KeyRow& row, int c, int rope) {
  KeyPiece piece{{0, 0, 0, 0}, kPlain};
  if (row.data == nullptr || c >= D / 8) return piece;
  const int nope = D - rope, i = c * 8;
  if (row.scales == nullptr) {
    piece.raw = *reinterpret_cast<const uint4*>(row.data + 2 * i);
  } else if (i >= nope) {
    piece.raw = *reinterpret_cast<const uint4*>(row.data + nope + 2 * (i - nope));
  } else {
    const uint2 codes = *reinterpret_cast<const uint2*>(row.data + i);
    piece.raw.x = codes.x;
    piece.raw.y = codes.y;
    piece.scale = row.scales[i / kKvGroup];
  }
  return piece;
}
__device__ __forceinline__ uint4 decode(const KeyPiece& piece) {
  return piece.scale == kPlain
             ? piece.raw
             : decode_e4m3x8({piece.raw.x, piece.raw.y}, static_cast<std::uint8_t>(piece.scale));
}

// Output of one head without a merge: divide, round, rotate back. `o`: the thread's pair of dims `dim`, `dim`
// + 1.
template <int D>
__device__ __forceinline__ void finish_pair(const AttentionArguments& a, std::int64_t row, int dim, float x,
                                            float y, float position) {
  x = round_bf16(x);
  y = round_bf16(y);
  if (const int first = D - a.rope; dim >= first) {
    float sine, cosine;
    sincosf(position * a.frequencies[(dim - first) / 2], &sine, &cosine);
    const float rotated = round_bf16(x * cosine + y * sine);
    y = round_bf16(y * cosine - x * sine);
    x = rotated;
  }
  *reinterpret_cast<std::uint32_t*>(static_cast<BF16*>(a.o) + row * D + dim) = pack_bf16x2(x, y);
}

// GROUPS: of 16 heads and four warps, which share the decoded tile.
template <int GROUPS>
constexpr int kGroupWarps = GROUPS == 1 ? 8 : 4;
template <int D, int GROUPS>
__global__ void __launch_bounds__(32 * kGroupWarps<GROUPS> * GROUPS)
    attention_kernel(const __grid_constant__ AttentionArguments a) {
  constexpr int kWarps = kGroupWarps<GROUPS>, kThreads = 32 * kWarps * GROUPS;
  extern __shared__ __align__(128) unsigned char raw_shared[];
  Shared<D, GROUPS>& s = *reinterpret_cast<Shared<D, GROUPS>*>(raw_shared);
  const int group = threadIdx.x / (32 * kWarps), warp = threadIdx.x / 32 % kWarps, lane = threadIdx.x % 32,
            g = lane / 4, t = lane % 4;
  const int token = blockIdx.z, split = blockIdx.x, cta_head0 = blockIdx.y * GROUPS * kHeads,
            head0 = cta_head0 + group * kHeads;
  const SequenceSpan span = a.batch.spans[a.batch.span_of[token]];  // the step's description: not a kernel's
  const int position = a.batch.positions[token];
  wait_for_predecessor();
  release_successor();
  const int first_raw = max(0, position - a.window + 1), raw = position - first_raw + 1;
  const int visible = a.ratio == 0 ? 0 : (position + 1) / a.ratio;
  const int compressed = a.ratio == 0 ? 0 : a.selected == nullptr ? visible : a.selected_count[token];
  const int keys = raw + compressed, tiles = (keys + kKeys - 1) / kKeys;

  const std::int64_t slot = (static_cast<std::int64_t>(token) * a.splits + split) * a.heads;
  if (split >= tiles) {  // nothing to do: an empty part for the merge
    for (int h = threadIdx.x; h < GROUPS * kHeads && cta_head0 + h < a.heads; h += kThreads) {
      a.partial_ml[(slot + cta_head0 + h) * 2] = -INFINITY;
      a.partial_ml[(slot + cta_head0 + h) * 2 + 1] = 0.0f;
    }
    return;
  }
  // A warp decodes its share of the rows: lane r finds row r.
  constexpr int kOwn = kKeys / (kWarps * GROUPS), kBatch = kOwn < 8 ? kOwn : 8;
  const int own0 = static_cast<int>(threadIdx.x) / 32 * kOwn;
  const auto find_row = [&](int tile) {
    return lane < kOwn ? key_row(a, span, token, first_raw, raw, keys, tile * kKeys + own0 + lane) : KeyRow{};
  };
  KeyRow row = find_row(split);
  const BF16* q = static_cast<const BF16*>(a.q) + static_cast<std::int64_t>(token) * a.heads * D;
  for (int i = threadIdx.x; i < GROUPS * kHeads * D / 8; i += kThreads) {
    const int h = i / (D / 8), c = i % (D / 8) * 8;
    uint4 v{};
    if (cta_head0 + h < a.heads) v = *reinterpret_cast<const uint4*>(q + (cta_head0 + h) * D + c);
    *reinterpret_cast<uint4*>(&s.q[h][c]) = v;
  }
  constexpr int kWarpD = D / kWarps, kTilesD = kWarpD / 8;  // a warp's share of D, and its n-tiles
  float o[kTilesD][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY}, denominator[2] = {0.0f, 0.0f};  // rows g and g + 8

  for (int tile = split; tile < tiles; tile += a.splits) {
    __syncthreads();  // the previous tile has been used
    // The rows' pieces of 8 elements are loaded several rows at a time, so that one memory latency covers
    // them all.
#pragma unroll 1
    for (int r0 = 0; r0 < kOwn; r0 += kBatch) {
      KeyPiece piece[kBatch][D / 256 > 0 ? D / 256 : 1];
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        const KeyRow source = shuffle(row, r0 + r);
#pragma unroll
        for (int c = 0; c < D / 8; c += 32) piece[r][c / 32] = load_piece<D>(source, c + lane, a.rope);
      }
#pragma unroll
      for (int r = 0; r < kBatch; ++r)
#pragma unroll
        for (int c = 0; c < D / 8; c += 32)
          if (c + lane < D / 8)
            *reinterpret_cast<uint4*>(&s.k[own0 + r0 + r][(c + lane) * 8]) = decode(piece[r][c / 32]);
    }
    if (tile + a.splits < tiles) row = find_row(tile + a.splits);
    __syncthreads();

    // S: 16 heads x 16 keys of each of four warps. Four chains of sums, so that none waits for itself.
    const bool scores_here = kWarps == 4 || warp < 4;
    float score[2][4] = {}, odd[2][4] = {};
    if (scores_here) {
#pragma unroll 2
      for (int d = 0; d < D; d += 32) {
        std::uint32_t qa[4], kb[4], qc[4], kd[4];
        ldmatrix4(qa, &s.q[group * kHeads + lane % 16][d + lane / 16 * 8]);
        ldmatrix4(kb, &s.k[warp * 16 + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
        ldmatrix4(qc, &s.q[group * kHeads + lane % 16][d + 16 + lane / 16 * 8]);
        ldmatrix4(kd, &s.k[warp * 16 + lane % 8 + lane / 16 * 8][d + 16 + lane / 8 % 2 * 8]);
        OperandBf16::mma(score[0], qa[0], qa[1], qa[2], qa[3], kb[0], kb[1]);
        OperandBf16::mma(score[1], qa[0], qa[1], qa[2], qa[3], kb[2], kb[3]);
        OperandBf16::mma(odd[0], qc[0], qc[1], qc[2], qc[3], kd[0], kd[1]);
        OperandBf16::mma(odd[1], qc[0], qc[1], qc[2], qc[3], kd[2], kd[3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) score[n][i] += odd[n][i];
    }
    float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kKeys + warp * 16 + n * 8 + 2 * t + i % 2;
        score[n][i] = key < keys ? score[n][i] * a.scale : -INFINITY;
        tile_max[i / 2] = fmaxf(tile_max[i / 2], score[n][i]);
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tile_max[i] = fmaxf(tile_max[i], __shfl_xor_sync(0xffffffffu, tile_max[i], 1));
      tile_max[i] = fmaxf(tile_max[i], __shfl_xor_sync(0xffffffffu, tile_max[i], 2));
      if (t == 0 && scores_here) s.row_max[group][warp][g + 8 * i] = tile_max[i];
    }
    __syncthreads();
    float rescale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float next = maximum[i];
#pragma unroll
      for (int w = 0; w < 4; ++w) next = fmaxf(next, s.row_max[group][w][g + 8 * i]);
      rescale[i] = maximum[i] == -INFINITY ? 0.0f : expf(maximum[i] - next);
      maximum[i] = next;
    }
    float sum[2] = {0.0f, 0.0f};
    if (scores_here)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float e0 = expf(score[n][2 * i] - maximum[i]), e1 = expf(score[n][2 * i + 1] - maximum[i]);
          sum[i] += e0 + e1;
          *reinterpret_cast<std::uint32_t*>(&s.p[group][g + 8 * i][warp * 16 + n * 8 + 2 * t]) =
              pack_bf16x2(e0, e1);
        }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
      if (t == 0 && scores_here) s.row_sum[group][warp][g + 8 * i] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      denominator[i] *= rescale[i];
#pragma unroll
      for (int w = 0; w < 4; ++w) denominator[i] += s.row_sum[group][w][g + 8 * i];
    }
#pragma unroll
    for (int n = 0; n < kTilesD; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] *= rescale[i / 2];
        // O += P V: this warp's share of D.
#pragma unroll
    for (int kk = 0; kk < kKeys; kk += 16) {
      std::uint32_t pa[4];
      ldmatrix4(pa, &s.p[group][lane % 16][kk + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kTilesD; n += 2) {
        std::uint32_t vb[4];
        ldmatrix4_trans(vb, &s.k[kk + lane % 16][warp * kWarpD + n * 8 + lane / 16 * 8]);
        OperandBf16::mma(o[n], pa[0], pa[1], pa[2], pa[3], vb[0], vb[1]);
        OperandBf16::mma(o[n + 1], pa[0], pa[1], pa[2], pa[3], vb[2], vb[3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = head0 + g + 8 * i;
    if (head >= a.heads) continue;
    if (a.splits == 1) {  // nothing to merge
      const float sink = a.sink[head], top = fmaxf(maximum[i], sink), factor = expf(maximum[i] - top);
      const float total = factor * denominator[i] + expf(sink - top);
      const std::int64_t out_row = static_cast<std::int64_t>(token) * a.heads + head;
#pragma unroll
      for (int n = 0; n < kTilesD; ++n)
        finish_pair<D>(a, out_row, warp * kWarpD + n * 8 + 2 * t, factor * o[n][2 * i] / total,
                       factor * o[n][2 * i + 1] / total, static_cast<float>(position));
      continue;
    }
    float* out = a.partial_o + (slot + head) * D + warp * kWarpD;
#pragma unroll
    for (int n = 0; n < kTilesD; ++n)
      *reinterpret_cast<float2*>(out + n * 8 + 2 * t) = float2{o[n][2 * i], o[n][2 * i + 1]};
    if (warp == 0 && t == 0) {
      a.partial_ml[(slot + head) * 2] = maximum[i];
      a.partial_ml[(slot + head) * 2 + 1] = denominator[i];
    }
  }
}

// A split without tiles has the denominator 0, one with tiles at least 1 (its maximum's own term).
__device__ __forceinline__ bool part_is_empty(float factor, float denominator) {
  return factor == 0.0f || denominator == 0.0f;
}

// A warp takes kMergeDims of a head: merge, divide, round, rotate back.
constexpr int kMergeDims = 128;

template <int D>
__global__ void __launch_bounds__(256)
    merge_kernel(const __grid_constant__ AttentionArguments a, const __grid_constant__ WindowArguments window,
                 unsigned merge_ctas) {
  __shared__ WindowScratch shared;
  // The rows of the step enter the ring once no CTA reads it any more: the last CTAs of this launch.
  if (blockIdx.x >= merge_ctas) {
    wait_for_predecessor();
    release_successor();
    return commit_window(window, blockIdx.x - merge_ctas, shared);
  }
  constexpr int kParts = D / kMergeDims, kValues = kMergeDims / 32;
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32, at = warp / kParts;
  const int dim0 = static_cast<int>(warp % kParts) * kMergeDims;
  if (at >= static_cast<std::int64_t>(a.batch.num_tokens) * a.heads) return;
  const int lane = threadIdx.x % 32;
  const std::int64_t token = at / a.heads;
  const int head = static_cast<int>(at % a.heads);
  // What needs no result of the kernel before: angles from the step's description, weights.
  const float sink = a.sink[head], position = static_cast<float>(a.batch.positions[token]);
  float sine[kValues], cosine[kValues];
#pragma unroll
  for (int k = 0; k < kValues; ++k)
    if (const int first = D - a.rope, dim = dim0 + k * 32; dim >= first)
      sincosf(position * a.frequencies[(dim - first + lane) / 2], &sine[k], &cosine[k]);
  wait_for_predecessor();
  release_successor();
  // Lane l holds maximum and denominator of splits l and l + 32.
  static_assert(kMaxAttentionSplits <= 64);
  const std::int64_t first_part = token * a.splits * a.heads + head;
  float2 part[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    part[i] = {-INFINITY, 0.0f};
    if (lane + 32 * i < a.splits)
      part[i] = *reinterpret_cast<const float2*>(
          a.partial_ml + (first_part + static_cast<std::int64_t>(lane + 32 * i) * a.heads) * 2);
  }
  float maximum = fmaxf(part[0].x, part[1].x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
  maximum = fmaxf(maximum, sink);
  float factor[2], denominator = 0.0f, o[kValues] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) factor[i] = part[i].x == -INFINITY ? 0.0f : expf(part[i].x - maximum);
  const float* values = a.partial_o + first_part * D + dim0 + lane;
#pragma unroll 8
  for (int i = 0; i < a.splits; ++i) {  // in order of the splits
    const float f = __shfl_sync(0xffffffffu, i < 32 ? factor[0] : factor[1], i % 32);
    const float d = __shfl_sync(0xffffffffu, i < 32 ? part[0].y : part[1].y, i % 32);
    const bool empty = part_is_empty(f, d);  // its values were never written: loaded, not used
    float v[kValues];
#pragma unroll
    for (int k = 0; k < kValues; ++k) v[k] = values[static_cast<std::int64_t>(i) * a.heads * D + k * 32];
    denominator += f * d;
#pragma unroll
    for (int k = 0; k < kValues; ++k) o[k] += empty ? 0.0f : f * v[k];
  }
  denominator += expf(sink - maximum);
  BF16* out = static_cast<BF16*>(a.o) + at * D;
#pragma unroll
  for (int k = 0; k < kValues; ++k) {
    float v = round_bf16(o[k] / denominator);
    const int first = D - a.rope, dim = dim0 + k * 32;
    if (dim >= first) {
      const float partner = __shfl_xor_sync(0xffffffffu, v, 1);
      v = round_bf16(lane % 2 == 0 ? v * cosine[k] + partner * sine[k] : v * cosine[k] - partner * sine[k]);
    }
    out[dim + lane] = to_bf16(v);
  }
}

template <int D, int GROUPS>
void launch_groups(const AttentionArguments& a, cudaStream_t stream) {
  launch({dim3(static_cast<unsigned>(a.splits),
               static_cast<unsigned>((a.heads + GROUPS * kHeads - 1) / (GROUPS * kHeads)),
               static_cast<unsigned>(a.batch.num_tokens)),
          dim3(32 * kGroupWarps<GROUPS> * GROUPS), sizeof(Shared<D, GROUPS>), stream, true, "attention"},
         attention_kernel<D, GROUPS>, a);
}

template <int D>
void launch_all(const AttentionArguments& a, const WindowArguments* window, cudaStream_t stream) {
  const auto tokens = static_cast<unsigned>(a.batch.num_tokens);
  if (a.head_groups == 4)
    launch_groups<D, 4>(a, stream);
  else
    launch_groups<D, 1>(a, stream);
  if (a.splits == 1) {
    if (window != nullptr) launch_commit_window(*window, stream);
    return;
  }
  const unsigned merge_ctas = (tokens * static_cast<unsigned>(a.heads * (D / kMergeDims)) + 7) / 8;
  launch({dim3(merge_ctas + (window == nullptr ? 0 : tokens)), dim3(256), 0, stream, true, "attention_merge"},
         merge_kernel<D>, a, window == nullptr ? WindowArguments{} : *window, merge_ctas);
}

}  // namespace

void launch_attention(const AttentionArguments& a, const WindowArguments* window, cudaStream_t stream) {
  require(a.rope % 32 == 0 && a.splits >= 1, "rotary dims in multiples of 32");
  switch (a.head_dim) {
    case 512:
      return launch_all<512>(a, window, stream);
    case 128:
      return launch_all<128>(a, window, stream);
    default:
      require(false, "head_dim 512 or 128");
  }
}

}  // namespace pivot::cuda
