// The decisions of a draw, for kernels and tests alike. What is drawn is what engine/sampler.h draws:
// candidates are the logits above -inf, their weights exp((logit - max) / temperature) in double; without
// top-k and top-p the draw runs over them in id order, otherwise over the best ones in order of preference
// (higher logit, then lower id).
//
// In id order a row is a tree: segments of 2048 ids, chunks of 32, ids. Sums are taken bottom up and the draw
// walks down, so nobody adds 129,280 numbers one after the other. The host adds them one after the other:
// sums differ in their last bits (1e-13 of the total), and with them the token where the random number falls
// that close to a boundary between two. So do exp() of the host and of the device, in the last bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/device/both.h"

namespace pivot::cuda {

inline constexpr int kDrawChunk = 32;
inline constexpr int kDrawSegment = 2048;
inline constexpr int kMaxDrawSegments = 128;  // vocabularies of up to 262,144
inline constexpr int kMaxSortedDraw = 1024;   // candidates in order of preference

struct DrawParams {
  float temperature = 1.0f;  // 0: the most likely token
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::int32_t top_k = 0;  // 0: no limit; else at most kMaxSortedDraw
  std::uint64_t seed = 0, counter = 0;
};

enum class DrawStatus : std::int32_t {
  kDrawn,
  kFault,      // NaN, +inf or nothing finite among the logits
  kNeedsHost,  // a nucleus of more than kMaxSortedDraw tokens
};

struct DrawResult {
  std::int32_t id = -1;
  DrawStatus status = DrawStatus::kDrawn;
};

// What a segment of a row holds.
struct DrawSegment {
  std::uint64_t best = 0;  // draw_rank of its most likely id; 0: none
  std::int32_t faults = 0, candidates = 0;
  double kept = 0;  // weights of at least min_p
  double all = 0;   // every weight
};

// Orders as preference does: higher logit, then lower id. Both zeros are one logit. REQUIRES: no NaN.
constexpr std::uint64_t draw_rank(std::uint32_t logit_bits, std::int32_t id) {
  if (logit_bits == 0x80000000u) logit_bits = 0;
  const std::uint32_t key = (logit_bits & 0x80000000u) != 0 ? ~logit_bits : logit_bits | 0x80000000u;
  return std::uint64_t{key} << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}
constexpr std::int32_t draw_id(std::uint64_t rank) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(rank));
}
// The bits of the logit, a zero without its sign.
constexpr std::uint32_t draw_logit_bits(std::uint64_t rank) {
  const auto key = static_cast<std::uint32_t>(rank >> 32);
  return (key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key;
}

PIVOT_BOTH double draw_weight(float logit, float maximum, float temperature) {
  return exp((static_cast<double>(logit) - static_cast<double>(maximum)) / static_cast<double>(temperature));
}

// Whether the draw needs the candidates in order of preference, given how many there are.
constexpr bool draw_has_top_k(const DrawParams& p, std::int32_t candidates) {
  return p.top_k > 0 && p.top_k < candidates;
}
constexpr bool draw_is_sorted(const DrawParams& p, std::int32_t candidates) {
  return draw_has_top_k(p, candidates) || p.top_p < 1.0f;
}

// The draw among `count` weights in order of preference: the best of `candidates`, at least as many as top-k
// allows or kMaxSortedDraw. `all`: the sum of every candidate's weight. Sums run in order, as the host's do.
// -1: the nucleus is larger than what is here.
PIVOT_BOTH int draw_sorted(const double* weights, int count, std::int32_t candidates, double all,
                           const DrawParams& p, double random) {
  const bool has_top_k = draw_has_top_k(p, candidates), has_top_p = p.top_p < 1.0f;
  if (has_top_k && p.top_k < count) count = p.top_k;
  if (has_top_k) {  // top-p is of what top-k leaves
    all = 0;
    for (int i = 0; i < count; ++i) all += weights[i];
  }
  double kept = 0;
  int end = 0;
  bool closed = has_top_k || count == candidates;  // nothing beyond `count` could belong
  while (end < count) {
    if (weights[end] < static_cast<double>(p.min_p)) {
      closed = true;
      break;
    }
    kept += weights[end++];
    if (has_top_p && kept >= static_cast<double>(p.top_p) * all) {
      closed = true;
      break;
    }
  }
  if (!closed) return -1;
  const double target = random * kept;
  double sum = 0;
  for (int i = 0; i < end; ++i) {
    sum += weights[i];
    if (target < sum) return i;
  }
  return end - 1;  // what rounding may leave over
}

// The child of a node of the id-order tree that `target` falls into: `target` is made relative to it. Where
// rounding leaves nothing, the last child with any weight.
PIVOT_BOTH int draw_child(const double* sums, int count, double& target) {
  int last = 0;
  double before = 0, before_last = 0;
  for (int i = 0; i < count; ++i) {
    if (!(sums[i] > 0)) continue;
    if (target < before + sums[i]) {
      target -= before;
      return i;
    }
    last = i;
    before_last = before;
    before += sums[i];
  }
  target -= before_last;
  return last;
}

}  // namespace pivot::cuda
