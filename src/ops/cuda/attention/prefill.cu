// o_h = sum_p e^(l_p - M) kv_p / (sum_p e^(l_p - M) + e^(sink_h - M)) for many queries, with wgmma.
//
// Bytes: 584 a key row (packed) or 1,024 (this step's own), 128 KB of q and o a query; FLOP: 4 H D a key.
// Bound by the tensor cores and their reads of shared memory. A CTA stays on its multiprocessor and takes one
// query after the other: 64 heads are the 64 rows of an instruction. A warpgroup of four gathers a tile of 64
// keys, decodes it to BF16 and writes it in the layout that serves as K (rows along D) and, read the other
// way, as V; two others multiply. Both of these compute all scores, 64 heads x 64 keys, and the softmax, so
// that neither waits for the other and P never leaves its registers; each then adds P V for 256 of the 512
// columns. That repeats half of Q K^T (a third more products), and while one takes its exponentials the other
// multiplies. Tiles, their order and the rounding of P under the running maximum are attention.cu's
// (specification 2.4).
#include "ops/cuda/attention/prefill.h"

#include <algorithm>

#include "ops/cuda/device/bulk_transfer.cuh"
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kHeads = kPrefillHeads, kDims = kPrefillDims, kRope = kPrefillRope, kKeys = kAttentionKeys;
constexpr int kNope = kDims - kRope;
constexpr int kPanelBytes = kKeys * 128;                // 64 dims of 64 heads or keys
constexpr int kMatrixBytes = kDims / 64 * kPanelBytes;  // a query, or a tile of keys
constexpr int kStages = 2;                              // tiles of keys
constexpr int kThreads = 384;                           // two warpgroups that multiply, one that gathers
constexpr int kConsumers = 256;
constexpr int kWarpColumns = 64;  // of 16 heads that a warp stores at a time
static_assert(kHeads == kKeys && kNope % kKvGroup == 0 && kRope == 64);

// What the gathering warps tell of a query besides its vectors.
struct QueryFacts {
  std::int32_t keys;
  float2 rotation[kRope / 2];  // cosine and sine of its position
};
struct Shared {
  std::uint8_t q[kMatrixBytes];
  std::uint8_t k[kStages][kMatrixBytes];
  std::uint8_t out[kConsumers / 32][16 * kWarpColumns * 2];
  QueryFacts facts[2];                       // of even and odd queries
  float maxima[2][kHeads], sums[2][kHeads];  // of the warpgroups, where they split the scores
  std::uint64_t filled[kStages], emptied[kStages], query_filled, query_emptied;
};
static_assert(sizeof(Shared) + 1024 <= kPrefillAttentionBytes);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void barrier_init(std::uint64_t& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Until the phase with this parity has ended; before any has, parity 1 passes.
__device__ __forceinline__ void barrier_wait(const std::uint64_t& barrier, int parity) {
  bulk_barrier_wait(shared_address(&barrier), static_cast<std::uint32_t>(parity));
}
__device__ __forceinline__ void store_shared(std::uint32_t at, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
// Rows of the cache: each CTA reads a row once, other CTAs find it in the L2.
__device__ __forceinline__ uint4 load_codes(const std::uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ std::uint32_t round_pair(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float power_of_two(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// ---- Gathering ----

// The keys of a query in order: raw rows from `first_raw` on, then compressed entries.
struct VisibleKeys {
  SequenceSpan span;
  std::int32_t token, first_raw, raw, keys;

  __device__ __forceinline__ bool is_entry(int key) const { return key >= raw && key < keys; }
};
__device__ __forceinline__ VisibleKeys visible_keys(const AttentionArguments& a, int token, int position) {
  VisibleKeys v;
  v.span = a.batch.spans[a.batch.span_of[token]];
  v.token = token;
  v.first_raw = max(0, position - a.window + 1);
  v.raw = position - v.first_raw + 1;
  v.keys = v.raw + (a.ratio == 0            ? 0
                    : a.selected == nullptr ? (position + 1) / a.ratio
                                            : a.selected_count[token]);
  return v;
}

// Finding a row takes two loads that depend on each other: which entry a key is, and where its page lies.
// They are made one and two tiles ahead.
__device__ __forceinline__ int find_entry(const AttentionArguments& a, const VisibleKeys& v, int key) {
  if (!v.is_entry(key)) return 0;
  const int j = key - v.raw;
  return a.selected == nullptr ? j : a.selected[static_cast<std::int64_t>(v.token) * a.topk + j];
}
__device__ __forceinline__ int find_page(const AttentionArguments& a, const VisibleKeys& v, int key,
                                         int entry) {
  if (!v.is_entry(key)) return 0;
  return a.compressed.page_table[static_cast<std::int64_t>(v.span.table) * a.compressed.table_stride +
                                 entry / a.compressed.page_rows];
}

// The 16 rows of a tile that a warp gathers; lanes r and r + 16 know row r.
struct Rows {
  const std::uint8_t* data = nullptr;
  uint2 scales{};                       // the row's E8M0 bytes, if it is packed
  std::uint32_t packed = 0, plain = 0;  // bit r: row r is packed, is BF16; neither: zeros
};
__device__ __forceinline__ Rows find_rows(const AttentionArguments& a, const VisibleKeys& v, int key,
                                          int entry, int page) {
  Rows rows;
  bool packed = false;
  const std::uint8_t* scales = nullptr;
  if (key < v.raw) {
    const int p = v.first_raw + key;
    if (p >= v.span.start_position) {
      rows.data = static_cast<const std::uint8_t*>(a.kv) +
                  (static_cast<std::int64_t>(v.span.first_token) + p - v.span.start_position) * kDims * 2;
    } else {
      const RowAddress at = ring_row(a.ring, v.span.slot, p);
      rows.data = at.data;
      scales = at.scales;
      packed = a.ring.layout.format != RowFormat::kBf16;
    }
  } else if (key < v.keys) {
    const PagedView& c = a.compressed;
    const auto* base = reinterpret_cast<const std::uint8_t*>(c.base) + page * c.page_bytes;
    const int row = entry % c.page_rows;
    rows.data = base + static_cast<std::int64_t>(row) * c.layout.data_bytes;
    scales = base + static_cast<std::int64_t>(c.page_rows) * c.layout.data_bytes +
             static_cast<std::int64_t>(row) * c.layout.scale_bytes;
    packed = c.layout.format != RowFormat::kBf16;
  }
  if (packed) rows.scales = *reinterpret_cast<const uint2*>(scales);
  rows.packed = __ballot_sync(0xffffffffu, packed) & 0xffffu;
  rows.plain = __ballot_sync(0xffffffffu, rows.data != nullptr && !packed) & 0xffffu;
  return rows;
}
__device__ __forceinline__ const std::uint8_t* data_of(const Rows& rows, int r) {
  return reinterpret_cast<const std::uint8_t*>(
      __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(rows.data), r));
}

// What needs no decoding goes straight to shared memory: BF16 rows, zeros, the rotary dims of packed rows.
// `k`: the tile; `row0`: the warp's first row of it.
__device__ __forceinline__ void copy_plain(const Rows& rows, std::uint32_t k, int row0, int lane) {
  for (std::uint32_t left = rows.plain; left != 0; left &= left - 1) {
    const int r = __ffs(static_cast<int>(left)) - 1;
    const std::uint8_t* data = data_of(rows, r);
    const std::uint32_t at = k + lane / 8 * kPanelBytes + swizzled(row0 + r, lane % 8);
    copy_async16(at, data + lane * 16);
    copy_async16(at + 4 * kPanelBytes, data + 512 + lane * 16);
  }
  for (std::uint32_t left = ~(rows.plain | rows.packed) & 0xffffu; left != 0; left &= left - 1) {
    const int r = __ffs(static_cast<int>(left)) - 1;
    const std::uint32_t at = k + lane / 8 * kPanelBytes + swizzled(row0 + r, lane % 8);
    store_shared(at, uint4{});
    store_shared(at + 4 * kPanelBytes, uint4{});
  }
  if (rows.packed == 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = 4 * i + lane / 8;
    const std::uint8_t* data = data_of(rows, r);
    if (rows.packed >> r & 1)
      copy_async16(k + kNope / 64 * kPanelBytes + swizzled(row0 + r, lane % 8), data + kNope + lane % 8 * 16);
  }
}

// Two E4M3 codes of a word as BF16 values times 2^-120: sign, four zeros, exponent and mantissa, from the
// codes with copies of their sign above them.
template <int FIRST>
__device__ __forceinline__ std::uint32_t expand_pair(std::uint32_t word) {
  std::uint32_t spread;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(spread) : "r"(word), "n"(FIRST == 0 ? 0x9180 : 0xb3a2));
  return spread << 4 & 0x87f087f0u;
}
// Bits 7, 15, 23, 31: which of four codes is NaN; others: anything.
__device__ __forceinline__ std::uint32_t nan_bits(std::uint32_t word) {
  return (word & 0x7f7f7f7fu) + 0x01010101u;
}
// Sixteen codes of one group, exact: one multiplication undoes the 2^-120 and scales. True where it does not:
// a code is NaN, or the scale is above 2^7 (rows beyond 57,344), so that the factor is no BF16 number.
__device__ __forceinline__ std::uint32_t decode16(uint4 codes, std::uint32_t scale, uint4& low, uint4& high) {
  const std::uint32_t factor = (scale + 120) * 0x00800080u;  // 2^120 2^(scale - 127)
  low = {mul_bf16x2(expand_pair<0>(codes.x), factor), mul_bf16x2(expand_pair<2>(codes.x), factor),
         mul_bf16x2(expand_pair<0>(codes.y), factor), mul_bf16x2(expand_pair<2>(codes.y), factor)};
  high = {mul_bf16x2(expand_pair<0>(codes.z), factor), mul_bf16x2(expand_pair<2>(codes.z), factor),
          mul_bf16x2(expand_pair<0>(codes.w), factor), mul_bf16x2(expand_pair<2>(codes.w), factor)};
  return ((nan_bits(codes.x) | nan_bits(codes.y) | nan_bits(codes.z) | nan_bits(codes.w)) & 0x80808080u) |
         ((scale + 121) & 0x100u);
}

// A warp decodes two rows at a time, 0..7 of such pairs: lane l takes row l / 4 % 2, 16 codes l % 4 of groups
// l / 8 and l / 8 + 4. Then eight lanes' stores of 16 bytes fall on different banks: even pieces of one row,
// odd ones of the other.
struct PairCodes {
  uint4 codes[2];
};
struct PairLane {
  int row, chunk, group;
  explicit __device__ __forceinline__ PairLane(int lane)
      : row(lane / 4 % 2), chunk(lane % 4), group(lane / 8) {}
  __device__ __forceinline__ bool second() const { return group + 4 < kNope / 64; }
};
__device__ __forceinline__ void load_pair(const Rows& rows, int pair, const PairLane& at, PairCodes& out) {
  const int r = 2 * pair + at.row;
  const std::uint8_t* data = data_of(rows, r) + at.group * 64 + at.chunk * 16;
  if ((rows.packed >> r & 1) == 0) return;
  out.codes[0] = load_codes(data);
  if (at.second()) out.codes[1] = load_codes(data + 256);
}
// Non-zero: the pair has to be decoded again, by restore_pairs.
__device__ __forceinline__ std::uint32_t store_pair(const Rows& rows, int pair, const PairLane& at,
                                                    const PairCodes& in, std::uint32_t k, int row0) {
  const int r = 2 * pair + at.row;
  const std::uint32_t first = __shfl_sync(0xffffffffu, rows.scales.x, r) >> 8 * at.group & 0xffu;
  const std::uint32_t second = __shfl_sync(0xffffffffu, rows.scales.y, r) >> 8 * at.group & 0xffu;
  if ((rows.packed >> r & 1) == 0) return 0;
  const std::uint32_t to = k + at.group * kPanelBytes + swizzled(row0 + r, 2 * at.chunk);
  uint4 low, high;
  std::uint32_t again = decode16(in.codes[0], first, low, high);
  store_shared(to, low);
  store_shared(to ^ 16, high);
  if (!at.second()) return again;
  again |= decode16(in.codes[1], second, low, high);
  store_shared(to + 4 * kPanelBytes, low);
  store_shared((to ^ 16) + 4 * kPanelBytes, high);
  return again;
}
// The warp's packed rows once more, with every code and scale taken for what it is.
__device__ __forceinline__ void restore_pairs(const Rows& rows, const PairLane& at, std::uint32_t k,
                                              int row0) {
#pragma unroll 1
  for (int i = 0; i < 16; ++i) {
    const int r = i / 2 * 2 + at.row, group = at.group + i % 2 * 4;
    const std::uint8_t* data = data_of(rows, r) + group * 64 + at.chunk * 16;
    const std::uint32_t scales =
        __shfl_sync(0xffffffffu, i % 2 == 0 ? rows.scales.x : rows.scales.y, r) >> 8 * at.group;
    if ((rows.packed >> r & 1) == 0 || group >= kNope / 64) continue;
    const uint4 codes = load_codes(data);
    const auto scale = static_cast<std::uint8_t>(scales);
    const std::uint32_t to = k + group * kPanelBytes + swizzled(row0 + r, 2 * at.chunk);
    store_shared(to, decode_e4m3x8({codes.x, codes.y}, scale));
    store_shared(to ^ 16, decode_e4m3x8({codes.z, codes.w}, scale));
  }
}

__device__ __forceinline__ void gather_query(const AttentionArguments& a, Shared& s, int token, int position,
                                             int keys, QueryFacts& facts, int thread) {
  const auto* q =
      static_cast<const std::uint8_t*>(a.q) + static_cast<std::int64_t>(token) * (kHeads * kDims * 2);
  const int column = thread % 64;
  const std::uint32_t to = shared_address(s.q) + column / 8 * kPanelBytes;
#pragma unroll 8
  for (int head = thread / 64; head < kHeads; head += 2)
    copy_async16(to + swizzled(head, column % 8), q + head * (kDims * 2) + column * 16);
  copy_async_commit();
  if (thread < kRope / 2) {
    float sine, cosine;
    sincosf(static_cast<float>(position) * a.frequencies[thread], &sine, &cosine);
    facts.rotation[thread] = {cosine, sine};
  }
  if (thread == 0) facts.keys = keys;
  copy_async_wait<0>();
  fence_operands();
  barrier_arrive(s.query_filled);
}

__device__ __forceinline__ void gather(const AttentionArguments& a, Shared& s, int warp, int lane) {
  const int row0 = warp * 16, own = row0 + lane % 16;
  const PairLane at(lane);
  std::uint32_t stage = 0, parity = 1;  // of the next tile
  for (int token = blockIdx.x, n = 0; token < a.batch.num_tokens; token += gridDim.x, ++n) {
    const int position = a.batch.positions[token];
    const VisibleKeys v = visible_keys(a, token, position);
    const int tiles = (v.keys + kKeys - 1) / kKeys;
    int entry = find_entry(a, v, own);
    Rows rows = find_rows(a, v, own, entry, find_page(a, v, own, entry));
    entry = find_entry(a, v, own + kKeys);
    PairCodes pairs[4];  // half a tile on its way
#pragma unroll
    for (int i = 0; i < 4; ++i) load_pair(rows, i, at, pairs[i]);
    for (int tile = 0; tile < tiles; ++tile) {
      const int key = tile * kKeys + own;
      const int page = find_page(a, v, key + kKeys, entry), after = find_entry(a, v, key + 2 * kKeys);
      barrier_wait(s.emptied[stage], static_cast<int>(parity));
      const std::uint32_t k = shared_address(s.k[stage]);
      copy_plain(rows, k, row0, lane);
      copy_async_commit();
      Rows next;
      std::uint32_t again = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i == 4) next = find_rows(a, v, key + kKeys, entry, page);
        again |= store_pair(rows, i, at, pairs[i % 4], k, row0);
        load_pair(i < 4 ? rows : next, (i + 4) % 8, at, pairs[i % 4]);
      }
      if (__any_sync(0xffffffffu, again != 0)) restore_pairs(rows, at, k, row0);
      rows = next;
      entry = after;
      copy_async_wait<0>();
      fence_operands();
      barrier_arrive(s.filled[stage]);
      stage ^= 1;
      parity ^= stage == 0 ? 1u : 0u;
      // A query's vectors follow its first keys, which can come while those of the query before are in use.
      if (tile == 0) {
        barrier_wait(s.query_emptied, (n & 1) ^ 1);
        gather_query(a, s, token, position, v.keys, s.facts[n & 1], warp * 32 + lane);
      }
    }
  }
}

// ---- Multiplying ----

// S = Q K^T, 64 heads x 64 (32) keys: SCORES values a thread.
template <int SCORES>
__device__ __forceinline__ void multiply_scores(std::uint32_t q, std::uint32_t k, float (&score)[SCORES]) {
#pragma unroll
  for (float& v : score) v = 0.0f;
  const std::uint64_t left = wgmma_k_major(q), right = wgmma_k_major(k);
  warpgroup_fence();
#pragma unroll
  for (int d = 0; d < kDims / 16; ++d) {
    const int step = d / 4 * (kPanelBytes / 16) + d % 4 * 2;  // the address counts 16 bytes
    wgmma_shared(score, left + step, right + step);
  }
  warpgroup_commit();
  warpgroup_wait<0>();
}

// Both warpgroups that multiply.
__device__ __forceinline__ void consumers_barrier() {
  asm volatile("barrier.cta.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// Softmax of two heads, rows g and g + 8 of a warp's 16: maximum of the scores so far, and this thread's
// share of the sum of exponentials under it.
struct Running {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
};
template <int SCORES>
__device__ __forceinline__ void find_maxima(const float (&score)[SCORES], float (&most)[2]) {
  most[0] = most[1] = -INFINITY;
#pragma unroll
  for (int i = 0; i < SCORES; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], score[i]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
  }
}
// Scores become the left operand of P V; `most`: the tile's maxima; `rescale`: what the sums so far are to be
// multiplied by.
template <int SCORES>
__device__ __forceinline__ void exponentials(const float (&score)[SCORES], const float (&most)[2],
                                             float scale_log2, Running& running, float (&rescale)[2],
                                             std::uint32_t (&p)[SCORES / 8][4]) {
  float offset[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float before = running.maximum[r], now = fmaxf(before, most[r]);
    rescale[r] = before == -INFINITY ? 0.0f : power_of_two((before - now) * scale_log2);
    running.maximum[r] = now;
    running.sum[r] *= rescale[r];
    offset[r] = -(now * scale_log2);
  }
#pragma unroll
  for (int i = 0; i < SCORES; i += 2) {
    const int r = i / 2 % 2;
    const float e0 = power_of_two(__fmaf_rn(score[i], scale_log2, offset[r]));
    const float e1 = power_of_two(__fmaf_rn(score[i + 1], scale_log2, offset[r]));
    running.sum[r] += e0 + e1;
    p[i / 8][i / 2 % 4] = round_pair(e0, e1);
  }
}

// Two neighbouring dims of the rotary part, rotated back as attention.cu does it.
__device__ __forceinline__ std::uint32_t rotate_back(std::uint32_t pair, float2 rotation) {
  const float x = __uint_as_float(pair << 16), y = __uint_as_float(pair & 0xffff0000u);
  return round_pair(x * rotation.x + y * rotation.y, y * rotation.x - x * rotation.y);
}

// The four lanes' sums of a head; where scores are split, the other warpgroup's too.
template <ScoreSharing SHARING>
__device__ __forceinline__ void complete_sums(Running& running, Shared& s, int half, int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    running.sum[r] += __shfl_xor_sync(0xffffffffu, running.sum[r], 1);
    running.sum[r] += __shfl_xor_sync(0xffffffffu, running.sum[r], 2);
  }
  if constexpr (SHARING == ScoreSharing::kSplit) {
    const int row = warp * 16 + lane / 4;
    if (lane % 4 == 0) {
      s.sums[half][row] = running.sum[0];
      s.sums[half][row + 8] = running.sum[1];
    }
    consumers_barrier();  // it has also read this warp's last P, whose place becomes that of the output
    running.sum[0] = s.sums[0][row] + s.sums[1][row];
    running.sum[1] = s.sums[0][row + 8] + s.sums[1][row + 8];
  }
}

// Divides, rounds, rotates back and stores this warp's 16 heads x 256 columns, 64 columns at a time through
// shared memory, so that rows are stored by whole lines.
__device__ __forceinline__ void finish(const AttentionArguments& a, const float (&o)[128],
                                       const Running& running, const QueryFacts& facts, int token, int half,
                                       int warp, int lane, std::uint32_t staging) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sink = a.sink[warp * 16 + lane / 4 + 8 * r], maximum = running.maximum[r] * a.scale;
    const float top = fmaxf(maximum, sink), weight = expf(maximum - top);
    factor[r] = weight / (weight * running.sum[r] + expf(sink - top));
  }
  BF16* out = static_cast<BF16*>(a.o) +
              (static_cast<std::int64_t>(token) * kHeads + warp * 16 + lane / 8) * kDims +
              half * (kDims / 2) + lane % 8 * 8;
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    std::uint32_t pair[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = block * 32 + 2 * i;
      pair[i] = round_pair(o[at] * factor[i % 2], o[at + 1] * factor[i % 2]);
    }
    if (block == 3 && half == 1) {
#pragma unroll
      for (int i = 0; i < 16; ++i) pair[i] = rotate_back(pair[i], facts.rotation[i / 2 * 4 + lane % 4]);
    }
    // Matrices of 8 heads x 8 columns: heads 0-7 and 8-15 of columns 8j, then of columns 8j + 8.
#pragma unroll
    for (int j = 0; j < 8; j += 2)
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                       staging + swizzled(lane % 16, j + lane / 16)),
                   "r"(pair[2 * j]), "r"(pair[2 * j + 1]), "r"(pair[2 * j + 2]), "r"(pair[2 * j + 3])
                   : "memory");
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<uint4*>(out + i * 4 * kDims + block * kWarpColumns) =
          load_shared(staging + swizzled(i * 4 + lane / 8, lane % 8));
    __syncwarp();
  }
}

// HALF: which warpgroup; known to the compiler, so that addresses of operands are the same for all lanes.
template <ScoreSharing SHARING, int HALF>
__device__ __forceinline__ void multiply(const AttentionArguments& a, Shared& s, int warp, int lane) {
  constexpr bool kSplit = SHARING == ScoreSharing::kSplit;
  constexpr int kOwn = kSplit ? kKeys / 2 : kKeys;  // keys whose scores this warpgroup computes
  constexpr float kLog2E = 1.44269504f;
  const float scale_log2 = a.scale * kLog2E;
  constexpr int kOwn0 = kSplit ? HALF * kOwn : 0;  // and the first of them
  const int row = warp * 16 + lane / 4;
  const std::uint32_t staging = shared_address(s.out[HALF * 4 + warp]), q = shared_address(s.q);
  const std::uint32_t others = shared_address(s.out[(1 - HALF) * 4 + warp]) + lane * 16;
  std::uint32_t stage = 0, parity = 0;
  for (int token = blockIdx.x, n = 0; token < a.batch.num_tokens; token += gridDim.x, ++n) {
    const QueryFacts& facts = s.facts[n & 1];
    float o[128];
#pragma unroll
    for (float& v : o) v = 0.0f;
    Running running;
    barrier_wait(s.query_filled, n & 1);
    for (int left = facts.keys; left > 0; left -= kKeys) {
      const std::uint32_t k = shared_address(s.k[stage]);
      barrier_wait(s.filled[stage], static_cast<int>(parity));
      float score[kOwn / 2];
      multiply_scores(q, k + kOwn0 * 128, score);
      if (left <= kKeys) {
        if (lane == 0) barrier_arrive(s.query_emptied);
#pragma unroll
        for (int i = 0; i < kOwn / 2; ++i)
          if (kOwn0 + i / 4 * 8 + lane % 4 * 2 + i % 2 >= left) score[i] = -INFINITY;
      }
      float most[2], rescale[2];
      find_maxima(score, most);
      if constexpr (kSplit) {
        if (lane % 4 == 0) {
          s.maxima[HALF][row] = most[0];
          s.maxima[HALF][row + 8] = most[1];
        }
        consumers_barrier();
        most[0] = fmaxf(most[0], s.maxima[1 - HALF][row]);
        most[1] = fmaxf(most[1], s.maxima[1 - HALF][row + 8]);
      }
      std::uint32_t p[kOwn / 16][4];
      exponentials(score, most, scale_log2, running, rescale, p);
      if constexpr (kSplit) {
        store_shared(staging + lane * 16, {p[0][0], p[0][1], p[0][2], p[0][3]});
        store_shared(staging + 512 + lane * 16, {p[1][0], p[1][1], p[1][2], p[1][3]});
      }
      if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i] *= rescale[i / 2 % 2];
      }
      const std::uint64_t values = wgmma_n_major(k + HALF * 4 * kPanelBytes, kPanelBytes);
      warpgroup_fence();
#pragma unroll
      for (int step = 0; step < kOwn / 16; ++step)
        wgmma_64x256_n_major(o, p[step], values + (kOwn0 / 16 + step) * (16 * 128 / 16));
      warpgroup_commit();
      if constexpr (kSplit) {
        consumers_barrier();
        const uint4 p0 = load_shared(others), p1 = load_shared(others + 512);
        const std::uint32_t their[2][4] = {{p0.x, p0.y, p0.z, p0.w}, {p1.x, p1.y, p1.z, p1.w}};
        warpgroup_fence();
#pragma unroll
        for (int step = 0; step < 2; ++step)
          wgmma_64x256_n_major(o, their[step], values + ((kOwn - kOwn0) / 16 + step) * (16 * 128 / 16));
        warpgroup_commit();
      }
      warpgroup_wait<0>();
      if (lane == 0) barrier_arrive(s.emptied[stage]);
      stage ^= 1;
      parity ^= stage == 0 ? 1u : 0u;
    }
    complete_sums<SHARING>(running, s, HALF, warp, lane);
    finish(a, o, running, facts, token, HALF, warp, lane, staging);
  }
}
#endif

template <ScoreSharing SHARING>
__global__ void __launch_bounds__(kThreads, 1) prefill_kernel(const __grid_constant__ AttentionArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::uint8_t raw_shared[];
  Shared& s = *reinterpret_cast<Shared*>(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(s.filled[i], kThreads - kConsumers);
      barrier_init(s.emptied[i], kConsumers / 32);
    }
    barrier_init(s.query_filled, kThreads - kConsumers);
    barrier_init(s.query_emptied, kConsumers / 32);
  }
  __syncthreads();
  wait_for_predecessor();
  release_successor();
  // The same for all lanes, and the shuffle lets the compiler know.
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (warpgroup == 2) {
    leave_registers<104>();
    gather(a, s, warp, lane);
  } else if (warpgroup == 0) {
    take_registers<200>();
    multiply<SHARING, 0>(a, s, warp, lane);
  } else {
    take_registers<200>();
    multiply<SHARING, 1>(a, s, warp, lane);
  }
#endif
}

}  // namespace

void launch_prefill_attention(const AttentionArguments& a, int multiprocessors, cudaStream_t stream,
                              ScoreSharing sharing) {
  require(a.heads == kHeads && a.head_dim == kDims && a.rope == kRope, "64 heads of 448 + 64 dims");
  launch({dim3(static_cast<unsigned>(std::min(a.batch.num_tokens, multiprocessors))), dim3(kThreads),
          static_cast<std::size_t>(kPrefillAttentionBytes), stream, true, "prefill_attention"},
         sharing == ScoreSharing::kSplit ? prefill_kernel<ScoreSharing::kSplit>
                                         : prefill_kernel<ScoreSharing::kRepeated>,
         a);
}

}  // namespace pivot::cuda
