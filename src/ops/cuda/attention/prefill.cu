// o_h = sum_p e^(l_p - M) kv_p / (sum_p e^(l_p - M) + e^(sink_h - M)) for many queries, with wgmma.
//
// Bytes: 584 a key row (packed) or 1,024 (this step's own), 128 KB of q and o a query; FLOP: 4 H D a key.
// Bound by the tensor cores and their reads of shared memory. A CTA stays on its multiprocessor and takes one
// query after the other: 64 heads are the 64 rows of an instruction. Two warpgroups gather, each a tile of 64
// keys for its own buffer: they decode it to BF16 and write it in the layout that serves as K (rows along D)
// and, read the other way, as V. Two others multiply: each computes the scores of half of a tile's keys,
// exchanges maxima with the other, takes its exponentials, and adds P V for 256 of the 512 columns, its own
// half of the keys from registers and then the other's from shared memory. Tiles, their order and the
// rounding of P under the running maximum are attention.cu's (specification 2.4).
#include "ops/cuda/attention/prefill.h"

#include <algorithm>

#include "ops/cuda/attention/prefill_gather.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

using namespace prefill;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- Multiplying ----

constexpr int kOwnKeys = kKeys / 2;    // of a tile, whose scores a warpgroup computes
constexpr int kScores = kOwnKeys / 2;  // of a thread: 64 heads x 32 keys over 128 threads

// S = Q K^T for 64 heads and the 32 keys from `k` on.
__device__ __forceinline__ void multiply_scores(std::uint32_t q, std::uint32_t k, float (&score)[kScores]) {
#pragma unroll
  for (float& v : score) v = 0.0f;
  const std::uint64_t left = wgmma_k_major(q), right = wgmma_k_major(k);
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < kDims / 16; ++d) {
    const int step = d / 4 * (kPanelBytes / 16) + d % 4 * 2;  // the address counts 16 bytes
    wgmma_64x32_shared(score, left + step, right + step);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// o += P V for 16 keys and the 256 columns from `values` on. Two instructions: a kernel of four warpgroups
// starts with 128 registers a thread, and the compiler then refuses the one for 256 columns.
__device__ __forceinline__ void multiply_values(float (&o)[128], const std::uint32_t (&p)[4],
                                                std::uint64_t values) {
  wgmma_64x128_n_major<0>(o, p, values);
  wgmma_64x128_n_major<64>(o, p, values + 2 * kPanelBytes / 16);
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
__device__ __forceinline__ void find_maxima(const float (&score)[kScores], float (&most)[2]) {
  most[0] = most[1] = -INFINITY;
#pragma unroll
  for (int i = 0; i < kScores; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], score[i]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
  }
}
// Scores become the left operand of P V; `most`: the tile's maxima; `rescale`: what the sums so far are to be
// multiplied by.
__device__ __forceinline__ void exponentials(const float (&score)[kScores], const float (&most)[2],
                                             float scale_log2, Running& running, float (&rescale)[2],
                                             std::uint32_t (&p)[kScores / 8][4]) {
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
  for (int i = 0; i < kScores; i += 2) {
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

// The sums of a head's four lanes, in both warpgroups.
__device__ __forceinline__ void complete_sums(Running& running, Shared& s, int half, int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    running.sum[r] += __shfl_xor_sync(0xffffffffu, running.sum[r], 1);
    running.sum[r] += __shfl_xor_sync(0xffffffffu, running.sum[r], 2);
  }
  const int row = warp * 16 + lane / 4;
  if (lane % 4 == 0) {
    s.sums[half][row] = running.sum[0];
    s.sums[half][row + 8] = running.sum[1];
  }
  consumers_barrier();  // it has also read this warp's last P, whose place becomes that of the output
  running.sum[0] = s.sums[0][row] + s.sums[1][row];
  running.sum[1] = s.sums[0][row + 8] + s.sums[1][row + 8];
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
template <int HALF>
__device__ __forceinline__ void multiply(const AttentionArguments& a, Shared& s, int warp, int lane) {
  constexpr float kLog2E = 1.44269504f;
  const float scale_log2 = a.scale * kLog2E;
  constexpr int kOwn = HALF * kOwnKeys, kTheirs = (1 - HALF) * kOwnKeys;  // first keys of both halves
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
      float score[kScores];
      multiply_scores(q, k + kOwn * 128, score);
      if (left <= kKeys) {
        if (lane == 0) barrier_arrive(s.query_emptied);
#pragma unroll
        for (int i = 0; i < kScores; ++i)
          if (kOwn + i / 4 * 8 + lane % 4 * 2 + i % 2 >= left) score[i] = -INFINITY;
      }
      float most[2], rescale[2];
      find_maxima(score, most);
      if (lane % 4 == 0) {
        s.maxima[HALF][row] = most[0];
        s.maxima[HALF][row + 8] = most[1];
      }
      consumers_barrier();
      most[0] = fmaxf(most[0], s.maxima[1 - HALF][row]);
      most[1] = fmaxf(most[1], s.maxima[1 - HALF][row + 8]);
      std::uint32_t p[kOwnKeys / 16][4];
      exponentials(score, most, scale_log2, running, rescale, p);
      store_shared(staging + lane * 16, {p[0][0], p[0][1], p[0][2], p[0][3]});
      store_shared(staging + 512 + lane * 16, {p[1][0], p[1][1], p[1][2], p[1][3]});
      if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i] *= rescale[i / 2 % 2];
      }
      const std::uint64_t values = wgmma_n_major(k + HALF * 4 * kPanelBytes, kPanelBytes);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kOwnKeys / 16; ++step)
        multiply_values(o, p[step], values + (kOwn / 16 + step) * (16 * 128 / 16));
      wgmma_commit();
      consumers_barrier();
      const uint4 p0 = load_shared(others), p1 = load_shared(others + 512);
      const std::uint32_t their[2][4] = {{p0.x, p0.y, p0.z, p0.w}, {p1.x, p1.y, p1.z, p1.w}};
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kOwnKeys / 16; ++step)
        multiply_values(o, their[step], values + (kTheirs / 16 + step) * (16 * 128 / 16));
      wgmma_commit();
      wgmma_wait<0>();
      if (lane == 0) barrier_arrive(s.emptied[stage]);
      stage ^= 1;
      parity ^= stage == 0 ? 1u : 0u;
    }
    complete_sums(running, s, HALF, warp, lane);
    finish(a, o, running, facts, token, HALF, warp, lane, staging);
  }
}
#endif

constexpr int kThreads = kConsumers + 2 * kGatherers;
// Registers of a thread that multiplies and of one that gathers: together those of a multiprocessor.
constexpr int kMultiplyRegisters = 184, kGatherRegisters = 72;
static_assert(kConsumers * kMultiplyRegisters + 2 * kGatherers * kGatherRegisters <= 65536);

__global__ void __launch_bounds__(kThreads, 1) prefill_kernel(const __grid_constant__ AttentionArguments a) {
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
    leave_registers<kGatherRegisters>();
    gather(a, s, warpgroup - 2, warp, lane);
  } else if (warpgroup == 0) {
    take_registers<kMultiplyRegisters>();
    multiply<0>(a, s, warp, lane);
  } else {
    take_registers<kMultiplyRegisters>();
    multiply<1>(a, s, warp, lane);
  }
#endif
}

}  // namespace

void launch_prefill_attention(const AttentionArguments& a, int multiprocessors, cudaStream_t stream) {
  require(a.heads == kHeads && a.head_dim == kDims && a.rope == kRope, "64 heads of 448 + 64 dims");
  launch({dim3(static_cast<unsigned>(std::min(a.batch.num_tokens, multiprocessors))), dim3(kThreads),
          static_cast<std::size_t>(kPrefillAttentionBytes), stream, true, "prefill_attention"},
         prefill_kernel, a);
}

}  // namespace pivot::cuda
