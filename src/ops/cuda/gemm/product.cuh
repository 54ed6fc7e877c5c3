// The persistent kernel behind every product with many tokens.
//
// A CTA takes 128 rows (64 of w1 and the same 64 of w3) and up to 256 tokens: two warpgroups of 64 rows and a
// warp that fetches. Activations go through a ring of stages, 64 columns each, that bulk copies fill; a
// cluster of CTAs works on the same tokens and different rows, and each CTA fetches its share of a stage for
// all of them. Weights go straight into registers (weights.cuh). Every 32 columns are one group of products;
// a warp decodes the next group while one is in flight.
//
// The warpgroups share nothing but the ring, so while one waits for a tile's last product or finishes an item
// (rounds, stores) the other has the tensor cores. That they do not finish at the same time is arranged once,
// at the start.
//
// `Work` says what the items are. Device members, all cheap enough to be asked twice:
//   kTwo                          whether a stripe is of two matrices
//   kFormat, kTokenStep           of the weights; TOKENS are multiples of it
//   items(), panels()             of this launch; panels of 64 columns, an even number
//   panel_rows()                  of the operand
//   item(index, rank)             -> Work::Item with `row` (first operand row), `count` (tokens), `panels`
//   stripe(index, rank, warp, l)  -> LaneStripe<kTwo> of the item
//   ahead(index, rank, warp)      -> codes of the stripe as memory, for the L2
//   bring(item)                   what a consumer thread wants at the end, asked for at the start
//
//   finish<TOKENS>(item, brought, sums, place)
#pragma once

#include "ops/cuda/device/bulk_transfer.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/gemm/weights.cuh"
#include "ops/cuda/placement/gemm_tile.h"

namespace pivot::cuda {

inline constexpr int kGemmConsumers = 256;                 // threads
inline constexpr int kGemmThreads = kGemmConsumers + 128;  // registers move between whole warpgroups
inline constexpr int kGemmStagingBytes = 16 * 1024;        // of a warpgroup: 128 tokens x 64 rows in BF16
inline constexpr int kGemmSharedBytes =
    1024 + kGemmRingBytes + 2 * kGemmStagingBytes + 2 * 8 * kGemmMaxStages;

// What measured best on an H200 at 8,192 tokens (README.md); none of it changes a bit of the result.
inline constexpr int kGemmCluster = 2;  // CTAs that share activations
inline constexpr int kGemmAhead = 4;    // tiles of 128 columns by which the L2 is asked before a warp asks

// The ring of a launch: its stages, each large enough for the launch's largest tile.
struct GemmRing {
  int stages, stage_bytes;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The CTA's shared memory, as addresses.
struct GemmShared {
  std::uint32_t ring, staging, full, empty;

  static __device__ __forceinline__ GemmShared of(const void* raw) {
    GemmShared s;
    s.ring = (shared_address(raw) + 1023u) & ~1023u;
    s.staging = s.ring + kGemmRingBytes;
    s.full = s.staging + 2 * kGemmStagingBytes;
    s.empty = s.full + 8 * kGemmMaxStages;
    return s;
  }
};

struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// A consumer thread's place, for the end of an item.
struct ConsumerPlace {
  int group, warp, lane;  // warpgroup, warp of the CTA
  std::uint32_t staging;  // of the warpgroup
};

__device__ __forceinline__ void warpgroup_barrier(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Consumer side of the ring.
struct RingReader {
  std::uint32_t ring, full, empty_of_lane;  // the last is an address of the CTA whose rank is the lane
  int stages, stage_bytes;
  bool releases;  // this lane tells a CTA of the cluster
  RingPlace at;
  int held[2];  // stages of the current tile

  __device__ __forceinline__ void advance(int half) {
    held[half] = at.stage;
    at.advance(stages);
  }
  __device__ __forceinline__ void release(int half) {
    cluster_barrier_arrive(empty_of_lane + 8 * held[half], releases);
  }
};

// sums = the stripe times TOKENS tokens, over all `tiles` tiles of 128 columns. `started` runs once, after
// the first tile. Between the first product of a tile and the wait for its last one stands no branch: ptxas
// would serialise the products.
template <int TOKENS, class Stream, class Started>
__device__ __forceinline__ void multiply_item(Stream& weights, RingReader& ring, int tiles, int lane,
                                              float (&sums)[TOKENS / 2], const Started& started) {
#pragma unroll
  for (float& v : sums) v = 0.0f;
#pragma unroll 1
  for (int kt = 0; kt < tiles; ++kt) {
    std::uint32_t a[2][8];
    weights.decode(0, lane, a[0]);
    std::uint32_t b[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bulk_barrier_wait(ring.full + 8 * ring.at.stage, ring.at.parity);
      b[half] = wgmma_descriptor_low(ring.ring + ring.at.stage * ring.stage_bytes);
      ring.advance(half);
    }
    wgmma_fence();
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if (q >= 2) wgmma_wait<1>();  // the group before the last has read its registers and its stage
      if (q == 3) ring.release(0);
      if (q > 0) {
        weights.decode(q, lane, a[q % 2]);
        wgmma_fence();
      }
      const std::uint32_t at = b[q / 2] + static_cast<unsigned>(q % 2 * 4);
      Wgmma<TOKENS>::add(sums, a[q % 2][0], a[q % 2][1], a[q % 2][2], a[q % 2][3], wgmma_descriptor(at));
      Wgmma<TOKENS>::add(sums, a[q % 2][4], a[q % 2][5], a[q % 2][6], a[q % 2][7], wgmma_descriptor(at + 2));
      wgmma_commit();
    }
    wgmma_wait<0>();
    ring.release(1);
    weights.advance_tile();
    if (kt == 0) started();
  }
}

// Names this warp's stripes to a WeightStream.
template <class Work>
struct StripesOfWarp {
  const Work& work;
  int index, step, rank, warp, lane;

  __device__ __forceinline__ bool next(LaneStripe<Work::kTwo>& at) {
    if (index >= work.items()) return false;
    at = work.stripe(index, rank, warp, lane);
    index += step;
    return true;
  }
};

template <class Work, int... TOKENS>
__device__ __forceinline__ void consume(const Work& work, const GemmRing& ring, const GemmShared& shared,
                                        int index, int step, int rank) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
  const ConsumerPlace place{group, warp, lane, shared.staging + group * kGemmStagingBytes};
  RingReader reader{shared.ring,
                    shared.full,
                    cluster_address(shared.empty, lane < kGemmCluster ? lane : 0),
                    ring.stages,
                    ring.stage_bytes,
                    lane < kGemmCluster,
                    {},
                    {}};
  const int items = work.items(), tiles = work.panels() / 2;
  WeightStream<Work::kFormat, Work::kTwo, StripesOfWarp<Work>> weights({work, index, step, rank, warp, lane},
                                                                       tiles);
  bool first = true;
#pragma unroll 1
  for (; index < items; index += step) {
    const typename Work::Item item = work.item(index, rank);
    const auto brought = work.bring(item);
    // The second warpgroup lets the first one go ahead by some columns, once.
    if (first && group == 1) asm volatile("bar.sync 3, 256;" ::: "memory");
    const auto started = [&] {
      if (first && group == 0) asm volatile("bar.arrive 3, 256;" ::: "memory");
      first = false;
    };
    const int size = round_up(item.count, Work::kTokenStep);
    const auto run = [&]<int N>() {
      float sums[N / 2];
      multiply_item<N>(weights, reader, tiles, lane, sums, started);
      work.template finish<N>(item, brought, sums, place);
    };
    ((size == TOKENS ? run.template operator()<TOKENS>() : void()), ...);
  }
}

// One warp. Lane 0 copies; lanes 8 to 15 ask the L2 for the weights of a consumer warp each.
template <class Work>
__device__ __forceinline__ void produce(const Work& work, const GemmRing& ring, const GemmShared& shared,
                                        int index, int step, int rank) {
  constexpr int kBatch = 4;  // tiles that the L2 is asked for at a time
  const int lane = threadIdx.x % 32, items = work.items(), panels = work.panels();
  const auto ranks = static_cast<std::uint16_t>((1 << kGemmCluster) - 1);
  RingPlace at;
#pragma unroll 1
  for (; index < items; index += step) {
    const typename Work::Item item = work.item(index, rank);
    // This CTA's share of the blocks of eight rows, 1 KB each.
    const int blocks = (item.count + 7) / 8, share = (blocks + kGemmCluster - 1) / kGemmCluster;
    const std::int64_t panel = work.panel_rows() * kGemmPanel;
    const int start = share * rank, bytes = max(0, min(share, blocks - start)) * 1024;
    const std::uint16_t* from = item.panels + static_cast<std::int64_t>(item.row + start * 8) * kGemmPanel;
    const std::uint8_t* codes = nullptr;
    if (lane / 8 == 1) codes = work.ahead(index, rank, lane - 8);
    const auto ask = [&](int tile, int count) {
      constexpr int kTile = static_cast<int>(tile_code_bytes(Work::kFormat));
      count = min(count, panels / 2 - tile);
      if (codes != nullptr && count > 0) bulk_prefetch(codes + tile * kTile, count * kTile);
    };
    ask(0, kGemmAhead);
#pragma unroll 1
    for (int p = 0; p < panels; ++p) {
      bulk_barrier_wait(shared.empty + 8 * at.stage, at.parity ^ 1);
      if (lane == 0) {
        const std::uint32_t full = shared.full + 8 * at.stage;
        const std::uint32_t to = shared.ring + at.stage * ring.stage_bytes + start * 1024;
        bulk_barrier_expect(full, blocks * 1024);
        if (bytes > 0) bulk_copy_to_all(to, from, bytes, full, ranks);
      }
      if (p % (2 * kBatch) == 0) ask(p / 2 + kGemmAhead, kBatch);
      __syncwarp();
      from += panel;
      at.advance(ring.stages);
    }
  }
}

// Barriers of the ring, and the wait for the kernel before this one: whatever a Work reads comes after it.
__device__ __forceinline__ GemmShared begin_products(const GemmRing& ring, const void* raw) {
  const GemmShared shared = GemmShared::of(raw);
  if (threadIdx.x == 0) {
    for (int s = 0; s < ring.stages; ++s) {
      bulk_barrier_init(shared.full + 8 * s);
      bulk_barrier_init(shared.empty + 8 * s, kGemmConsumers / 32 * kGemmCluster);
    }
    bulk_barrier_init_fence();
  }
  cluster_barrier();
  wait_for_predecessor();
  release_successor();
  return shared;
}
template <class Work, int... TOKENS>
__device__ __forceinline__ void run_products(const Work& work, const GemmRing& ring,
                                             const GemmShared& shared) {
  const int rank = static_cast<int>(cluster_rank());
  const int index = static_cast<int>(blockIdx.x) / kGemmCluster,
            step = static_cast<int>(gridDim.x) / kGemmCluster;
  if (threadIdx.x >= kGemmConsumers) {
    leave_registers<40>();
    if (threadIdx.x < kGemmConsumers + 32) produce(work, ring, shared, index, step, rank);
  } else {
    take_registers<232>();
    consume<Work, TOKENS...>(work, ring, shared, index, step, rank);
  }
  cluster_barrier();  // nobody leaves while another CTA may still write here
}

#endif

}  // namespace pivot::cuda
