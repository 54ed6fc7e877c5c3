// What the multiplying and the gathering warpgroups of attention for long steps share, and the gathering:
// rows of the cache and of this step become tiles of 64 keys in BF16 (prefill.cu).
//
// Two warpgroups gather, each every other tile. Copies that need no decoding are asynchronous and arrive at
// the tile's barrier by themselves, so that no warp waits for one; who multiplies makes what it finds visible
// to the tensor cores (fence_operands), because that fence would make a gathering warp wait for the loads
// that it has sent ahead.
#pragma once

#include "ops/cuda/attention/prefill.h"
#include "ops/cuda/device/bulk_transfer.cuh"
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/device/wgmma.cuh"

namespace pivot::cuda::prefill {

constexpr int kHeads = kPrefillHeads, kDims = kPrefillDims, kRope = kPrefillRope, kKeys = kAttentionKeys;
constexpr int kNope = kDims - kRope;
constexpr int kPanelBytes = kKeys * 128;                // 64 dims of 64 heads or keys
constexpr int kMatrixBytes = kDims / 64 * kPanelBytes;  // a query, or a tile of keys
constexpr int kStages = 2;                              // tiles of keys
constexpr int kConsumers = 256;                         // threads of the two warpgroups that multiply
constexpr int kGatherers = 128;                         // and of each that gathers
constexpr int kWarpColumns = 64;                        // of 16 heads that a warp stores at a time
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
  float maxima[2][kHeads], sums[2][kHeads];  // of the warpgroups that multiply
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
// Arrives once all copies that this thread has asked for so far are there; counts like any other arrival.
__device__ __forceinline__ void barrier_arrive_copies(std::uint64_t& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
               : "memory");
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
// `to`: where the lane's first piece of pair 0 lies: a row further is 128 bytes, and its pieces are XORed
// with the row. Non-zero: the pair has to be decoded again, by restore_pairs.
__device__ __forceinline__ std::uint32_t store_pair(const Rows& rows, int pair, const PairLane& at,
                                                    const PairCodes& in, std::uint32_t to) {
  const int r = 2 * pair + at.row;
  const std::uint32_t first = __shfl_sync(0xffffffffu, rows.scales.x, r) >> 8 * at.group & 0xffu;
  const std::uint32_t second = __shfl_sync(0xffffffffu, rows.scales.y, r) >> 8 * at.group & 0xffu;
  if ((rows.packed >> r & 1) == 0) return 0;
  const std::uint32_t low_at = (to ^ 2 * pair % 8 * 16) + pair * 256,
                      high_at = (to ^ (2 * pair % 8 * 16 + 16)) + pair * 256;
  uint4 low, high;
  std::uint32_t again = decode16(in.codes[0], first, low, high);
  store_shared(low_at, low);
  store_shared(high_at, high);
  if (!at.second()) return again;
  again |= decode16(in.codes[1], second, low, high);
  store_shared(low_at + 4 * kPanelBytes, low);
  store_shared(high_at + 4 * kPanelBytes, high);
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

// Arrivals of one thread at the barrier of a tile, or of a query: its stores and its copies.
constexpr int kArrivals = 2;

__device__ __forceinline__ void gather_query(const AttentionArguments& a, Shared& s, int token, int position,
                                             int keys, QueryFacts& facts, int thread) {
  constexpr int kQueryBytes = kHeads * kDims * 2;
  const auto* q = static_cast<const std::uint8_t*>(a.q) + static_cast<std::int64_t>(token) * kQueryBytes;
  const int column = thread % 64;
  const std::uint32_t to = shared_address(s.q) + column / 8 * kPanelBytes;
#pragma unroll 8
  for (int head = thread / 64; head < kHeads; head += 2)
    copy_async16(to + swizzled(head, column % 8), q + head * (kDims * 2) + column * 16);
  barrier_arrive_copies(s.query_filled);
  if (thread < kRope / 2) {
    float sine, cosine;
    sincosf(static_cast<float>(position) * a.frequencies[thread], &sine, &cosine);
    facts.rotation[thread] = {cosine, sine};
  }
  if (thread == 0) facts.keys = keys;
  barrier_arrive(s.query_filled);
  const int next = static_cast<int>(gridDim.x);
  if (thread == 0 && token + next < a.batch.num_tokens)
    bulk_prefetch(q + static_cast<std::int64_t>(next) * kQueryBytes, kQueryBytes);
}

// `who`: which of the two gathering warpgroups. Each fills its own stage, and the second one fetches the
// queries' vectors: one and the same, so that it sees every phase of their barrier.
__device__ __forceinline__ void gather(const AttentionArguments& a, Shared& s, int who, int warp, int lane) {
  constexpr int kWarpgroups = kStages, kAhead = 2;  // pairs of rows on their way
  const int row0 = warp * 16, own = row0 + lane % 16;
  const PairLane at(lane);
  std::uint32_t before = 0;  // tiles of all queries so far
  for (int token = blockIdx.x, n = 0; token < a.batch.num_tokens; token += gridDim.x, ++n) {
    const int position = a.batch.positions[token];
    const VisibleKeys v = visible_keys(a, token, position);
    const int tiles = (v.keys + kKeys - 1) / kKeys;
    const int first = static_cast<int>((before ^ static_cast<std::uint32_t>(who)) & 1);
    int entry = find_entry(a, v, first * kKeys + own);
    Rows rows = find_rows(a, v, first * kKeys + own, entry, find_page(a, v, first * kKeys + own, entry));
    entry = find_entry(a, v, (first + kWarpgroups) * kKeys + own);
    PairCodes pairs[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_pair(rows, i, at, pairs[i]);
    const auto fetch_query = [&] {
      barrier_wait(s.query_emptied, (n & 1) ^ 1);
      gather_query(a, s, token, position, v.keys, s.facts[n & 1], warp * 32 + lane);
    };
    // A query's vectors follow its first keys, which can come while those of the query before are in use.
    const bool fetches = who == kWarpgroups - 1;
    if (fetches && first != 0) fetch_query();
    for (int tile = first; tile < tiles; tile += kWarpgroups) {
      const int key = tile * kKeys + own;
      const int page = find_page(a, v, key + kWarpgroups * kKeys, entry),
                after = find_entry(a, v, key + 2 * kWarpgroups * kKeys);
      const std::uint32_t number = before + static_cast<std::uint32_t>(tile), stage = number % kStages;
      barrier_wait(s.emptied[stage], static_cast<int>(number / kStages & 1) ^ 1);
      const std::uint32_t k = shared_address(s.k[stage]);
      copy_plain(rows, k, row0, lane);
      barrier_arrive_copies(s.filled[stage]);
      const std::uint32_t to = k + at.group * kPanelBytes + swizzled(row0 + at.row, 2 * at.chunk);
      Rows next;
      std::uint32_t again = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i == 8 - kAhead) next = find_rows(a, v, key + kWarpgroups * kKeys, entry, page);
        again |= store_pair(rows, i, at, pairs[i % kAhead], to);
        load_pair(i < 8 - kAhead ? rows : next, (i + kAhead) % 8, at, pairs[i % kAhead]);
      }
      if (__any_sync(0xffffffffu, again != 0)) restore_pairs(rows, at, k, row0);
      barrier_arrive(s.filled[stage]);
      rows = next;
      entry = after;
      if (fetches && tile == 0) fetch_query();
    }
    before += static_cast<std::uint32_t>(tiles);
  }
}
#endif

}  // namespace pivot::cuda::prefill
