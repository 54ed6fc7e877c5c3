// What the operators of a step must move and compute: pure functions of shapes, the numerators of every
// "share of its bound" that `pivot bench` prints.
//
// Bytes are those of weights and of cached rows, each read once a call; activations stay in caches and are
// not counted. A multiply and an add are two operations. Roundings, exponentials and norms are not counted.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/model_weights.h"
#include "numeric/row_layout.h"

namespace pivot::cli {

struct Cost {
  double bytes = 0;
  double flops = 0;
  Cost& operator+=(const Cost& other) {
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
};
inline Cost operator+(Cost a, const Cost& b) { return a += b; }

double bytes_of(const Matrix& matrix);
double bytes_of(const ExpertWeights& expert);
double bytes_of(const HyperConnectionWeights& weights);

// W x for `tokens` inputs, W read once.
Cost product_cost(const Matrix& w, double tokens);

// One seam (specification 2.2): hc_post of the ending sublayer, the product with fn, hc_pre.
Cost seam_cost(const ModelConfig& config, const HyperConnectionWeights& hc, double tokens);
// wq_a, wkv, the compressors' wkv and wgate, weights_proj.
Cost latent_cost(const AttentionWeights& weights, double tokens);
// wq_b, and the indexer's.
Cost query_cost(const AttentionWeights& weights, double tokens);
// wo_a (every row reads its own group's inputs) and wo_b.
Cost output_cost(const AttentionWeights& weights, double tokens);
// Routed experts: each distinct id of expert_ids [tokens][K] is read once; and the shared expert.
Cost experts_cost(const MoeWeights& weights, std::span<const std::int32_t> expert_ids, double tokens);
// Every head's dots with `rows` rows and their weighted sum; `read_rows` rows are read from the cache.
Cost attention_cost(const ModelConfig& config, double rows, double read_rows, double row_bytes);
// Every index head's dot with `entries` keys; `read_entries` of them are read from the cache.
Cost index_cost(const ModelConfig& config, double entries, double read_entries, double key_bytes);

// Rows that the token at `position` attends to in a layer of this ratio (specification 2.4), when at most
// `topk` compressed rows are chosen (0: all).
double visible_rows(const ModelConfig& config, int ratio, std::int64_t position, std::int64_t topk);
// The same, summed over positions [begin, end).
double visible_rows(const ModelConfig& config, int ratio, std::int64_t begin, std::int64_t end,
                    std::int64_t topk);

// The least time of a cost: bytes at the rate of reading, operations at the rate of the instruction used.
struct Bound {
  double seconds = 0;
  bool memory = true;  // bytes decide; else operations
};
Bound bound_of(const Cost& cost, double read_bytes_per_second, double flops_per_second);

}  // namespace pivot::cli
