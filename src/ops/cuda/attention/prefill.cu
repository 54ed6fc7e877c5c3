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
#include <type_traits>

#include "ops/cuda/attention/prefill_gather.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

using namespace prefill;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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

// o += P V for 128 of the columns, those from FIRST on; `values`: of these columns. Beside two gathering
// warpgroups a kernel starts with 128 registers a thread, and the compiler refuses the instruction for 256.
template <int FIRST>
__device__ __forceinline__ void multiply_values(float (&o)[128], const std::uint32_t (&p)[4],
                                                std::uint64_t values) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "{%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : "+f"(o[FIRST + 0]), "+f"(o[FIRST + 1]), "+f"(o[FIRST + 2]), "+f"(o[FIRST + 3]), "+f"(o[FIRST + 4]),
        "+f"(o[FIRST + 5]), "+f"(o[FIRST + 6]), "+f"(o[FIRST + 7]), "+f"(o[FIRST + 8]), "+f"(o[FIRST + 9]),
        "+f"(o[FIRST + 10]), "+f"(o[FIRST + 11]), "+f"(o[FIRST + 12]), "+f"(o[FIRST + 13]),
        "+f"(o[FIRST + 14]), "+f"(o[FIRST + 15]), "+f"(o[FIRST + 16]), "+f"(o[FIRST + 17]),
        "+f"(o[FIRST + 18]), "+f"(o[FIRST + 19]), "+f"(o[FIRST + 20]), "+f"(o[FIRST + 21]),
        "+f"(o[FIRST + 22]), "+f"(o[FIRST + 23]), "+f"(o[FIRST + 24]), "+f"(o[FIRST + 25]),
        "+f"(o[FIRST + 26]), "+f"(o[FIRST + 27]), "+f"(o[FIRST + 28]), "+f"(o[FIRST + 29]),
        "+f"(o[FIRST + 30]), "+f"(o[FIRST + 31]), "+f"(o[FIRST + 32]), "+f"(o[FIRST + 33]),
        "+f"(o[FIRST + 34]), "+f"(o[FIRST + 35]), "+f"(o[FIRST + 36]), "+f"(o[FIRST + 37]),
        "+f"(o[FIRST + 38]), "+f"(o[FIRST + 39]), "+f"(o[FIRST + 40]), "+f"(o[FIRST + 41]),
        "+f"(o[FIRST + 42]), "+f"(o[FIRST + 43]), "+f"(o[FIRST + 44]), "+f"(o[FIRST + 45]),
        "+f"(o[FIRST + 46]), "+f"(o[FIRST + 47]), "+f"(o[FIRST + 48]), "+f"(o[FIRST + 49]),
        "+f"(o[FIRST + 50]), "+f"(o[FIRST + 51]), "+f"(o[FIRST + 52]), "+f"(o[FIRST + 53]),
        "+f"(o[FIRST + 54]), "+f"(o[FIRST + 55]), "+f"(o[FIRST + 56]), "+f"(o[FIRST + 57]),
        "+f"(o[FIRST + 58]), "+f"(o[FIRST + 59]), "+f"(o[FIRST + 60]), "+f"(o[FIRST + 61]),
        "+f"(o[FIRST + 62]), "+f"(o[FIRST + 63])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(values));
}
template <int GATHERING>
__device__ __forceinline__ void multiply_values(float (&o)[128], const std::uint32_t (&p)[4],
                                                std::uint64_t values,
                                                std::integral_constant<int, GATHERING>) {
  if constexpr (GATHERING == 1) {
    wgmma_64x256_n_major(o, p, values);
  } else {
    multiply_values<0>(o, p, values);
    multiply_values<64>(o, p, values + 2 * kPanelBytes / 16);
  }
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
template <ScoreSharing SHARING, int GATHERING, int HALF>
__device__ __forceinline__ void multiply(const AttentionArguments& a, Shared& s, int warp, int lane) {
  constexpr bool kSplit = SHARING == ScoreSharing::kSplit;
  constexpr int kOwn = kSplit ? kKeys / 2 : kKeys;  // keys whose scores this warpgroup computes
  constexpr std::integral_constant<int, GATHERING> kGathering;
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
    fence_operands();
    for (int left = facts.keys; left > 0; left -= kKeys) {
      const std::uint32_t k = shared_address(s.k[stage]);
      barrier_wait(s.filled[stage], static_cast<int>(parity));
      fence_operands();
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
        multiply_values(o, p[step], values + (kOwn0 / 16 + step) * (16 * 128 / 16), kGathering);
      warpgroup_commit();
      if constexpr (kSplit) {
        consumers_barrier();
        const uint4 p0 = load_shared(others), p1 = load_shared(others + 512);
        const std::uint32_t their[2][4] = {{p0.x, p0.y, p0.z, p0.w}, {p1.x, p1.y, p1.z, p1.w}};
        warpgroup_fence();
#pragma unroll
        for (int step = 0; step < 2; ++step)
          multiply_values(o, their[step], values + ((kOwn - kOwn0) / 16 + step) * (16 * 128 / 16),
                          kGathering);
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

// Registers of a thread that multiplies and of one that gathers: together those of a multiprocessor.
template <ScoreSharing SHARING, int GATHERING>
struct Division {
  static constexpr int kThreads = kConsumers + GATHERING * kGatherers;
  static constexpr int kMultiply = GATHERING == 1 ? 200 : SHARING == ScoreSharing::kSplit ? 184 : 192;
  static constexpr int kGather = GATHERING == 1 ? 104 : SHARING == ScoreSharing::kSplit ? 72 : 64;
  static_assert(kConsumers * kMultiply + GATHERING * kGatherers * kGather <= 65536);
};

template <ScoreSharing SHARING, int GATHERING>
__global__ void __launch_bounds__(Division<SHARING, GATHERING>::kThreads, 1)
    prefill_kernel(const __grid_constant__ AttentionArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::uint8_t raw_shared[];
  Shared& s = *reinterpret_cast<Shared*>(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(s.filled[i], kGatherers * kArrivals);
      barrier_init(s.emptied[i], kConsumers / 32);
    }
    barrier_init(s.query_filled, kGatherers * kArrivals);
    barrier_init(s.query_emptied, kConsumers / 32);
  }
  __syncthreads();
  wait_for_predecessor();
  release_successor();
  // The same for all lanes, and the shuffle lets the compiler know.
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (warpgroup >= 2) {
    leave_registers<Division<SHARING, GATHERING>::kGather>();
    gather<GATHERING>(a, s, warpgroup - 2, warp, lane);
  } else if (warpgroup == 0) {
    take_registers<Division<SHARING, GATHERING>::kMultiply>();
    multiply<SHARING, GATHERING, 0>(a, s, warp, lane);
  } else {
    take_registers<Division<SHARING, GATHERING>::kMultiply>();
    multiply<SHARING, GATHERING, 1>(a, s, warp, lane);
  }
#endif
}

template <ScoreSharing SHARING, int GATHERING>
void launch_as(const AttentionArguments& a, int multiprocessors, cudaStream_t stream) {
  launch({dim3(static_cast<unsigned>(std::min(a.batch.num_tokens, multiprocessors))),
          dim3(Division<SHARING, GATHERING>::kThreads), static_cast<std::size_t>(kPrefillAttentionBytes),
          stream, true, "prefill_attention"},
         prefill_kernel<SHARING, GATHERING>, a);
}

}  // namespace

void launch_prefill_attention(const AttentionArguments& a, int multiprocessors, cudaStream_t stream,
                              ScoreSharing sharing, int gathering_warpgroups) {
  require(a.heads == kHeads && a.head_dim == kDims && a.rope == kRope, "64 heads of 448 + 64 dims");
  require(gathering_warpgroups == 1 || gathering_warpgroups == 2, "one or two warpgroups that gather");
  const auto as = sharing == ScoreSharing::kSplit
                      ? (gathering_warpgroups == 1 ? launch_as<ScoreSharing::kSplit, 1>
                                                   : launch_as<ScoreSharing::kSplit, 2>)
                      : (gathering_warpgroups == 1 ? launch_as<ScoreSharing::kRepeated, 1>
                                                   : launch_as<ScoreSharing::kRepeated, 2>);
  as(a, multiprocessors, stream);
}

}  // namespace pivot::cuda
